#include "model/engine_wire.h"

#include <cmath>
#include <concepts>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "model/engine_wire_fields.h"

namespace nereid::model::wire {
namespace {

// ---------------------------------------------------------------- message types

template <class T>
inline constexpr std::uint16_t kType = 0;
template <>
inline constexpr std::uint16_t kType<Hello> = 1;
template <>
inline constexpr std::uint16_t kType<Welcome> = 2;
template <>
inline constexpr std::uint16_t kType<Refuse> = 3;
template <>
inline constexpr std::uint16_t kType<Ping> = 4;
template <>
inline constexpr std::uint16_t kType<Pong> = 5;
template <>
inline constexpr std::uint16_t kType<AddRequest> = 16;
template <>
inline constexpr std::uint16_t kType<AbortRequest> = 17;
template <>
inline constexpr std::uint16_t kType<ImportPrefix> = 18;
template <>
inline constexpr std::uint16_t kType<ExportBlocks> = 19;
template <>
inline constexpr std::uint16_t kType<AdmitDecode> = 20;
template <>
inline constexpr std::uint16_t kType<Pin> = 21;
template <>
inline constexpr std::uint16_t kType<Release> = 22;
template <>
inline constexpr std::uint16_t kType<Drain> = 23;
template <>
inline constexpr std::uint16_t kType<MapRegion> = 24;
template <>
inline constexpr std::uint16_t kType<StepFrame> = 64;

constexpr std::size_t kCheckedHeaderBytes =
    12;  // magic, type, flags, length: covered by the checksum

// ---------------------------------------------------------------- kinds of members

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsId = false;
template <class Tag>
inline constexpr bool kIsId<Id<Tag>> = true;
template <class T>
inline constexpr bool kIsPair = false;
template <class A, class B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;

// Values without a gap that memcpy may move: their list is one copy.
template <class T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

bool is_known(AddMode v) { return v <= AddMode::kScore; }
bool is_known(EndReason v) { return v <= EndReason::kPrefilled; }
bool is_known(ReplayClass v) { return v <= ReplayClass::kBounded; }
bool is_known(GrammarKind v) {
    switch (v) {
        case GrammarKind::kNone:
        case GrammarKind::kGbnf:
        case GrammarKind::kJsonSchema:
        case GrammarKind::kRegex:
        case GrammarKind::kLark:
        case GrammarKind::kEbnf:
            return true;
    }
    return false;
}

// ---------------------------------------------------------------- encoder

template <class T>
void put(ByteWriter& w, const T& v) {
    if constexpr (Number<T> || std::is_enum_v<T>) {
        w.put(v);
    } else if constexpr (std::same_as<T, bool>) {
        w.put(static_cast<std::uint8_t>(v ? 1 : 0));
    } else if constexpr (std::same_as<T, std::string>) {
        w.put_string(v);
    } else if constexpr (std::same_as<T, Duration>) {
        w.put(static_cast<std::int64_t>(v.count()));
    } else if constexpr (kIsId<T>) {
        w.put(v.value);
    } else if constexpr (std::same_as<T, Digest256>) {
        w.put_bytes(v);
    } else if constexpr (std::same_as<T, BlockKey>) {
        w.put_bytes(v.bytes);
    } else if constexpr (std::same_as<T, Namespace>) {
        w.put_bytes(v.digest);
    } else if constexpr (std::same_as<T, Error>) {
        w.put_string(code_info(v.code).name);
        w.put_string(v.message);
        w.put_string(v.param);
    } else if constexpr (kIsOptional<T>) {
        put(w, v.has_value());
        if (v.has_value()) put(w, *v);
    } else if constexpr (kIsPair<T>) {
        put(w, v.first);
        put(w, v.second);
    } else if constexpr (kIsVector<T>) {
        if constexpr (Number<typename T::value_type>) {
            w.put_vector(v);
        } else {
            w.put(static_cast<std::uint32_t>(v.size()));
            for (const auto& item : v) put(w, item);
        }
    } else {
        static_assert(Listed<T>, "no encoding for this type");
        static_assert(kListIsComplete<T>, "engine_wire_fields.h does not list every member");
        for_each_field(v, [&w](const auto& member) { put(w, member); });
    }
}

// Bytes of a T with every list empty and every optional absent: no T is shorter.
template <class T>
std::size_t min_bytes() {
    static const std::size_t size = [] {
        std::string text;
        ByteWriter w(text);
        put(w, T{});
        return text.size();
    }();
    return size;
}

// ---------------------------------------------------------------- decoder

// Reads members; the first fault is kept in `fault` and everything after it reads as empty.
class Reader {
  public:
    explicit Reader(std::string_view payload) : bytes_(payload) {}

    std::string_view fault() const {
        if (!fault_.empty()) return fault_;
        if (bytes_.bad()) return "payload is shorter than its members";
        if (!bytes_.at_end()) return "payload is longer than its members";
        return {};
    }

    template <class T>
    void get(T& v) {
        if constexpr (std::is_enum_v<T>) {
            v = bytes_.get<T>();
            if (!is_known(v)) refuse("unknown enumerator");
        } else if constexpr (std::same_as<T, bool>) {
            const auto raw = bytes_.get<std::uint8_t>();
            if (raw > 1) refuse("a boolean is neither 0 nor 1");
            v = raw == 1;
        } else if constexpr (std::same_as<T, double>) {
            v = bytes_.get<double>();
            if (!std::isfinite(v)) refuse("a sampling parameter is not finite");
        } else if constexpr (Number<T>) {
            v = bytes_.get<T>();
        } else if constexpr (std::same_as<T, std::string>) {
            v = bytes_.get_string();
        } else if constexpr (std::same_as<T, Duration>) {
            v = Duration(bytes_.get<std::int64_t>());
        } else if constexpr (kIsId<T>) {
            v.value = bytes_.get<std::uint64_t>();
        } else if constexpr (std::same_as<T, Digest256>) {
            bytes_.get_bytes(v);
        } else if constexpr (std::same_as<T, BlockKey>) {
            bytes_.get_bytes(v.bytes);
        } else if constexpr (std::same_as<T, Namespace>) {
            bytes_.get_bytes(v.digest);
        } else if constexpr (std::same_as<T, Error>) {
            v.code = code_from_name(bytes_.get_string());
            v.message = bytes_.get_string();
            v.param = bytes_.get_string();
        } else if constexpr (kIsOptional<T>) {
            bool present = false;
            get(present);
            if (present) get(v.emplace());
        } else if constexpr (kIsPair<T>) {
            get(v.first);
            get(v.second);
        } else if constexpr (kIsVector<T>) {
            get_list(v);
        } else {
            for_each_field(v, [this](auto& member) { this->get(member); });
            check(v);
        }
    }

  private:
    template <class T>
    void get_list(std::vector<T>& v) {
        if constexpr (Number<T>) {
            v = bytes_.get_vector<T>();
        } else {
            const std::uint32_t count = bytes_.get_count(min_bytes<T>());
            v.reserve(count);
            for (std::uint32_t i = 0; i < count && !bad(); ++i) get(v.emplace_back());
        }
    }

    template <class T>
    void check(const T&) {}
    // block_chain relies on it.
    void check(const AddRequest& add) {
        for (std::size_t i = 1; i < add.images.size(); ++i) {
            if (add.images[i].position < add.images[i - 1].position)
                refuse("images are not sorted by position");
        }
    }

    bool bad() const { return bytes_.bad() || !fault_.empty(); }
    void refuse(std::string_view why) {
        if (!bad()) fault_ = why;
    }

    ByteReader bytes_;
    std::string_view fault_;
};

// ---------------------------------------------------------------- framing

struct Header {
    std::uint32_t magic = 0;
    std::uint16_t type = 0;
    std::uint16_t flags = 0;
    std::uint32_t length = 0;
    std::uint32_t checksum = 0;
};

Header read_header(std::string_view bytes) {
    ByteReader r(bytes);
    Header h;
    h.magic = r.get<std::uint32_t>();
    h.type = r.get<std::uint16_t>();
    h.flags = r.get<std::uint16_t>();
    h.length = r.get<std::uint32_t>();
    h.checksum = r.get<std::uint32_t>();
    return h;
}

std::uint32_t checksum_of(std::string_view message) {
    return crc32c(as_bytes(message.substr(kHeaderBytes)),
                  crc32c(as_bytes(message.substr(0, kCheckedHeaderBytes))));
}

template <class T>
bool encode_one(const T& v, std::string& out) {
    static_assert(kType<T> != 0, "no message type for this struct");
    const std::size_t start = out.size();
    ByteWriter w(out);
    w.put(kMagic);
    w.put(kType<T>);
    w.put(std::uint16_t{0});
    w.put(std::uint64_t{0});  // length and checksum, known below
    put(w, v);
    const std::size_t length = out.size() - start - kHeaderBytes;
    if (length > kMaxPayload) {
        out.resize(start);
        return false;
    }
    const auto length32 = static_cast<std::uint32_t>(length);
    std::memcpy(out.data() + start + 8, &length32, sizeof length32);
    const std::uint32_t checksum = checksum_of(std::string_view(out).substr(start));
    std::memcpy(out.data() + start + 12, &checksum, sizeof checksum);
    return true;
}

std::unexpected<Error> corrupt(std::string_view what) {
    return err(Code::kCorrupt, "engine-wire: " + std::string(what));
}

template <class T>
Result<std::optional<Message>> decode_as(std::string_view payload) {
    Reader reader(payload);
    T v{};
    reader.get(v);
    if (const auto fault = reader.fault(); !fault.empty()) return corrupt(fault);
    if constexpr (requires { Command(std::move(v)); }) {
        return std::optional<Message>(Command(std::move(v)));
    } else {
        return std::optional<Message>(std::move(v));
    }
}

// Tries the types of a list in turn.
template <class... T>
struct Types {};
using AllTypes = Types<Hello, Welcome, Refuse, Ping, Pong, AddRequest, AbortRequest, ImportPrefix,
                       ExportBlocks, AdmitDecode, Pin, Release, Drain, MapRegion, StepFrame>;

template <class... T>
bool is_known_type(Types<T...>, std::uint16_t type) {
    return ((type == kType<T>) || ...);
}

template <class... T>
Result<std::optional<Message>> decode_payload(Types<T...>, std::uint16_t type,
                                              std::string_view payload) {
    Result<std::optional<Message>> result = corrupt("unknown message type");
    (void)((type == kType<T> ? (result = decode_as<T>(payload), true) : false) || ...);
    return result;
}

}  // namespace

bool encode(const Message& message, std::string& out) {
    return std::visit(
        [&out]<class T>(const T& v) {
            if constexpr (std::same_as<T, Command> || std::same_as<T, StepFrame>)
                return encode(v, out);
            else
                return encode_one(v, out);
        },
        message);
}

bool encode(const Command& command, std::string& out) {
    return std::visit([&out](const auto& v) { return encode_one(v, out); }, command);
}

bool encode(const StepFrame& frame, std::string& out) { return encode_one(frame, out); }

void Decoder::feed(std::string_view bytes) {
    if (failed_) return;
    // What has been taken is dropped once it is more than what is left, so that each byte moves at
    // most once on average.
    if (at_ != 0 && at_ >= buffer_.size() - at_) {
        buffer_.erase(0, at_);
        at_ = 0;
    }
    buffer_.append(bytes);
}

Result<std::optional<Message>> Decoder::next() {
    if (failed_) return *failed_;
    auto result = take();
    if (!result.ok()) {
        failed_ = result.error();
        buffer_ = {};
        at_ = 0;
    }
    return result;
}

Result<std::optional<Message>> Decoder::take() {
    const std::string_view rest = std::string_view(buffer_).substr(at_);
    if (rest.size() < kHeaderBytes) return std::optional<Message>();
    const Header header = read_header(rest);
    if (header.magic != kMagic)
        return corrupt("wrong magic: the peer does not speak engine-wire 1");
    if (!is_known_type(AllTypes{}, header.type))
        return corrupt("unknown message type " + std::to_string(header.type));
    if (header.flags != 0) return corrupt("flags are set");
    if (header.length > kMaxPayload)
        return corrupt("payload of " + std::to_string(header.length) + " bytes is over the bound");
    if (rest.size() - kHeaderBytes < header.length) return std::optional<Message>();

    const std::string_view message = rest.substr(0, kHeaderBytes + header.length);
    if (checksum_of(message) != header.checksum) return corrupt("checksum does not match");
    at_ += message.size();
    return decode_payload(AllTypes{}, header.type, message.substr(kHeaderBytes));
}

}  // namespace nereid::model::wire
