#include "kv/wire/wire.h"

#include <concepts>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace nereid::kv::wire {

namespace {

constexpr std::uint32_t kMagic = 0x31574b4e;  // "NKW1"
constexpr std::size_t kCheckedHeader = 12;    // magic, type, flags, length: covered by the checksum

// The members of each struct, in the order of the wire. A struct that gains or loses a member does
// not compile here: a structured binding names them all.
#define NEREID_MEMBERS(Type, ...)      \
    auto members(Type& x) {            \
        auto& [__VA_ARGS__] = x;       \
        return std::tie(__VA_ARGS__);  \
    }                                  \
    auto members(const Type& x) {      \
        const auto& [__VA_ARGS__] = x; \
        return std::tie(__VA_ARGS__);  \
    }
NEREID_MEMBERS(model::Namespace, digest)
NEREID_MEMBERS(model::BlockKey, bytes)
NEREID_MEMBERS(ObjectKey, hi, lo)
NEREID_MEMBERS(Geometry, block_tokens, history_bytes, state_bytes, keep_tokens, replay,
               window_tokens, replay_tokens, checkpoint_blocks)
NEREID_MEMBERS(ObjectName, key, kind, block)
NEREID_MEMBERS(OpenNamespace, ns, geometry, tenant, ttl)
NEREID_MEMBERS(Lookup, ns, first_block, keys, prompt_tokens, places)
NEREID_MEMBERS(Get, ns, objects, lease, wait, join_writes, stop_at_miss)
NEREID_MEMBERS(Renew, lease, hold)
NEREID_MEMBERS(kv::Release, lease)
NEREID_MEMBERS(Reserve, ns, objects, hold, ttl, attach)
NEREID_MEMBERS(CommitItem, reservation, region, offset, length, crc)
NEREID_MEMBERS(Commit, items)
NEREID_MEMBERS(Abort, reservations)
NEREID_MEMBERS(Subscribe, from, limit, wait)
NEREID_MEMBERS(Clear, ns)
NEREID_MEMBERS(NamespaceOpened, ns, epoch)
NEREID_MEMBERS(Hit, blocks, state, compute_from, raw_blocks)
NEREID_MEMBERS(Found, blocks, hit, dram_blocks, tiers, epoch)
NEREID_MEMBERS(SlotRef, offset, length, crc, stamp, key)
NEREID_MEMBERS(Got, lease, contiguous, status, places)
NEREID_MEMBERS(Reserved, status, ids)
NEREID_MEMBERS(Committed, status)
NEREID_MEMBERS(Flight, object, status, reservation)
NEREID_MEMBERS(KvEvent, type, tier, ns, block, key)
NEREID_MEMBERS(Events, first, next, gap, epoch, events)
NEREID_MEMBERS(Hello, version, client)
NEREID_MEMBERS(Welcome, version, epoch, arena_bytes, max_objects)
NEREID_MEMBERS(Refuse, code, message)
NEREID_MEMBERS(Region, region, bytes)
NEREID_MEMBERS(Call, tag, capability, command)
NEREID_MEMBERS(Answered, tag, answer)
NEREID_MEMBERS(StatsCall, tag, what)
NEREID_MEMBERS(Stats, tag, json)
NEREID_MEMBERS(Report, counts)
#undef NEREID_MEMBERS
std::tuple<> members(Done&) { return {}; }
std::tuple<> members(const Done&) { return {}; }

template <class E>
inline constexpr E kLast{};
template <>
inline constexpr ObjectKind kLast<ObjectKind> = ObjectKind::kState;
template <>
inline constexpr ReplayPolicy kLast<ReplayPolicy> = ReplayPolicy::kStoredState;
template <>
inline constexpr Tier kLast<Tier> = Tier::kRemote;
template <>
inline constexpr ObjectStatus kLast<ObjectStatus> = ObjectStatus::kFailed;
template <>
inline constexpr KvEventType kLast<KvEventType> = KvEventType::kCleared;

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsVariant = false;
template <class... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;
template <class T>
inline constexpr bool kIsId = false;
template <class Tag>
inline constexpr bool kIsId<Id<Tag>> = true;
template <class T>
inline constexpr bool kIsBytes = false;
template <std::size_t N>
inline constexpr bool kIsBytes<std::array<std::uint8_t, N>> = true;

// The least number of bytes that a value takes: what bounds a count before anything is allocated.
template <class T>
constexpr std::size_t least() {
    if constexpr (kIsBytes<T>)
        return sizeof(T);
    else if constexpr (std::is_same_v<T, bool> || std::is_enum_v<T>)
        return 1;
    else if constexpr (std::is_integral_v<T>)
        return sizeof(T);
    else if constexpr (kIsId<T>)
        return 8;
    else
        return 4;
}

class Writer {
  public:
    explicit Writer(std::string& out) : w_(out) {}
    template <class T>
    void put(const T& v) {
        if constexpr (kIsBytes<T>) {
            w_.put_bytes(v);
        } else if constexpr (std::is_same_v<T, bool>) {
            w_.put(static_cast<std::uint8_t>(v));
        } else if constexpr (std::is_integral_v<T>) {
            w_.put(v);
        } else if constexpr (std::is_enum_v<T>) {
            w_.put(static_cast<std::uint8_t>(v));
        } else if constexpr (std::is_same_v<T, Duration>) {
            w_.put(static_cast<std::int64_t>(v.count()));
        } else if constexpr (std::is_same_v<T, std::string>) {
            w_.put_string(v);
        } else if constexpr (kIsId<T>) {
            w_.put(v.value);
        } else if constexpr (std::is_same_v<T, Error>) {
            w_.put_string(code_info(v.code).name);
            w_.put_string(v.message);
        } else if constexpr (kIsVector<T>) {
            w_.put(static_cast<std::uint32_t>(v.size()));
            for (const auto& item : v) put(item);
        } else if constexpr (kIsVariant<T>) {
            w_.put(static_cast<std::uint8_t>(v.index()));
            std::visit([&](const auto& item) { put(item); }, v);
        } else {
            std::apply([&](const auto&... m) { (put(m), ...); }, members(v));
        }
    }

  private:
    ByteWriter w_;
};

class Reader {
  public:
    explicit Reader(std::string_view in) : r_(in) {}
    template <class T>
    void get(T& v) {
        if (bad()) return;
        if constexpr (kIsBytes<T>) {
            r_.get_bytes(v);
        } else if constexpr (std::is_same_v<T, bool>) {
            const auto raw = r_.get<std::uint8_t>();
            refused_ |= raw > 1;
            v = raw == 1;
        } else if constexpr (std::is_integral_v<T>) {
            v = r_.get<T>();
        } else if constexpr (std::is_enum_v<T>) {
            const auto raw = r_.get<std::uint8_t>();
            refused_ |= raw > static_cast<std::uint8_t>(kLast<T>);
            v = static_cast<T>(raw);
        } else if constexpr (std::is_same_v<T, Duration>) {
            const auto raw = r_.get<std::int64_t>();
            refused_ |= raw < 0;
            v = Duration(raw);
        } else if constexpr (std::is_same_v<T, std::string>) {
            v = std::string(r_.get_string());
        } else if constexpr (kIsId<T>) {
            v.value = r_.get<std::uint64_t>();
        } else if constexpr (std::is_same_v<T, Error>) {
            const std::string_view name = r_.get_string();
            v.code = code_from_name(name);
            refused_ |= !bad() && code_info(v.code).name != name;
            v.message = std::string(r_.get_string());
        } else if constexpr (kIsVector<T>) {
            using Item = typename T::value_type;
            const std::uint32_t count = r_.get_count(least<Item>());
            // No more than what is there can hold, whatever the item's true size.
            v.reserve(std::min<std::size_t>(count, r_.remaining() / least<Item>()));
            for (std::uint32_t i = 0; i < count && !bad(); ++i) get(v.emplace_back());
        } else if constexpr (kIsVariant<T>) {
            const auto index = r_.get<std::uint8_t>();
            if (index >= std::variant_size_v<T>) {
                refused_ = true;
                return;
            }
            choose(v, index, std::make_index_sequence<std::variant_size_v<T>>());
        } else {
            std::apply([&](auto&... m) { (get(m), ...); }, members(v));
        }
    }
    bool bad() const { return refused_ || r_.bad(); }
    bool whole() const { return !refused_ && r_.at_end(); }

  private:
    template <class T, std::size_t... I>
    void choose(T& v, std::size_t index, std::index_sequence<I...>) {
        ((I == index ? get(v.template emplace<I>()) : void()), ...);
    }
    ByteReader r_;
    bool refused_ = false;
};

}  // namespace

bool encode(const Message& message, std::string& out) {
    const std::size_t begin = out.size();
    ByteWriter header(out);
    header.put(kMagic);
    header.put(static_cast<std::uint16_t>(message.index() + 1));
    header.put(std::uint16_t{0});
    header.put(std::uint32_t{0});
    header.put(std::uint32_t{0});
    std::visit([&](const auto& m) { Writer(out).put(m); }, message);
    const std::size_t length = out.size() - begin - kHeaderBytes;
    if (length > kMaxPayload) {
        out.resize(begin);
        return false;
    }
    const auto length32 = static_cast<std::uint32_t>(length);
    std::memcpy(out.data() + begin + 8, &length32, sizeof length32);
    const auto all = as_bytes(std::string_view(out).substr(begin));
    const std::uint32_t sum = crc32c(all.subspan(kHeaderBytes), crc32c(all.first(kCheckedHeader)));
    std::memcpy(out.data() + begin + kCheckedHeader, &sum, sizeof sum);
    return true;
}

Result<std::optional<Message>> Decoder::fail(std::string_view what) {
    failed_ = true;
    buffer_.clear();
    at_ = 0;
    return Error{Code::kCorrupt, "kv-wire: " + std::string(what)};
}

Result<std::optional<Message>> Decoder::next() {
    if (failed_) return fail("failed before");
    const std::string_view rest = std::string_view(buffer_).substr(at_);
    if (rest.size() < kHeaderBytes) {
        if (at_ > 0) buffer_.erase(0, at_);
        at_ = 0;
        return std::optional<Message>();
    }
    ByteReader header(rest.substr(0, kHeaderBytes));
    if (header.get<std::uint32_t>() != kMagic) return fail("not this protocol");
    const auto type = header.get<std::uint16_t>();
    const auto flags = header.get<std::uint16_t>();
    const auto length = header.get<std::uint32_t>();
    const auto sum = header.get<std::uint32_t>();
    if (type == 0 || type > std::variant_size_v<Message> || flags != 0)
        return fail("a message of an unknown type");
    if (length > kMaxPayload) return fail("a message over the bound");
    if (rest.size() < kHeaderBytes + length) return std::optional<Message>();
    const auto bytes = as_bytes(rest);
    if (crc32c(bytes.subspan(kHeaderBytes, length), crc32c(bytes.first(kCheckedHeader))) != sum)
        return fail("a message fails its checksum");
    Reader reader(rest.substr(kHeaderBytes, length));
    Message out;
    const auto read = [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((I + 1 == type ? reader.get(out.emplace<I>()) : void()), ...);
    };
    read(std::make_index_sequence<std::variant_size_v<Message>>());
    if (!reader.whole()) return fail("a message with impossible values");
    at_ += kHeaderBytes + length;
    return std::optional<Message>(std::move(out));
}

}  // namespace nereid::kv::wire
