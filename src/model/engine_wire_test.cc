#include "model/engine_wire.h"

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"
#include "model/engine_wire_fields.h"

namespace nereid::model::wire {
namespace {

// ---------------------------------------------------------------- random content and equality,
// from the same lists

template <class T>
void fill(Prng& prng, T& v);

template <class T>
void fill_list(Prng& prng, std::vector<T>& v) {
    v.clear();
    for (std::uint64_t n = prng.below(4); n > 0; --n) fill(prng, v.emplace_back());
}

template <class T>
void fill(Prng& prng, T& v) {
    if constexpr (std::same_as<T, bool>) {
        v = prng.chance(0.5);
    } else if constexpr (std::same_as<T, AddMode>) {
        v = static_cast<AddMode>(prng.below(4));
    } else if constexpr (std::same_as<T, EndReason>) {
        v = static_cast<EndReason>(prng.below(5));
    } else if constexpr (std::same_as<T, ReplayClass>) {
        v = static_cast<ReplayClass>(prng.below(2));
    } else if constexpr (std::same_as<T, GrammarKind>) {
        v = static_cast<GrammarKind>((1u << prng.below(6)) >> 1);
    } else if constexpr (std::is_floating_point_v<T>) {
        v = static_cast<T>(prng.uniform() * 4 - 2);
    } else if constexpr (std::is_integral_v<T>) {
        v = static_cast<T>(prng.next());
    } else if constexpr (std::same_as<T, std::string>) {
        v.clear();
        for (std::uint64_t n = prng.below(12); n > 0; --n)
            v.push_back(static_cast<char>(prng.next()));
    } else if constexpr (std::same_as<T, Duration>) {
        v = Duration(static_cast<std::int64_t>(prng.next()));
    } else if constexpr (std::same_as<T, RequestId> || std::same_as<T, StepId>) {
        v.value = prng.next();
    } else if constexpr (std::same_as<T, Digest256>) {
        for (auto& b : v) b = static_cast<std::uint8_t>(prng.next());
    } else if constexpr (std::same_as<T, BlockKey>) {
        for (auto& b : v.bytes) b = static_cast<std::uint8_t>(prng.next());
    } else if constexpr (std::same_as<T, Namespace>) {
        fill(prng, v.digest);
    } else if constexpr (std::same_as<T, Error>) {
        v.code = static_cast<Code>(prng.below(static_cast<std::uint64_t>(Code::kInternal) + 1));
        fill(prng, v.message);
        fill(prng, v.param);
    } else if constexpr (requires { v.has_value(); }) {
        v.reset();
        if (prng.chance(0.6)) fill(prng, v.emplace());
    } else if constexpr (requires { v.first; }) {
        fill(prng, v.first);
        fill(prng, v.second);
    } else if constexpr (requires { v.emplace_back(); }) {
        fill_list(prng, v);
    } else {
        for_each_field(v, [&prng](auto& member) { fill(prng, member); });
        if constexpr (std::same_as<T, AddRequest>) {
            std::sort(v.images.begin(), v.images.end(),
                      [](const ImageRef& a, const ImageRef& b) { return a.position < b.position; });
        }
    }
}

template <class T>
bool same(const T& a, const T& b);

template <class T>
bool same_value(const T& a, const T& b) {
    return a == b;
}
template <class T>
bool same_value(const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const T& x, const T& y) { return same(x, y); });
}
template <class... T>
bool same_value(const std::variant<T...>& a, const std::variant<T...>& b) {
    return a.index() == b.index() &&
           std::visit([&b]<class X>(const X& x) { return same(x, std::get<X>(b)); }, a);
}

template <class T>
bool same(const T& a, const T& b) {
    if constexpr (Listed<T>) {
        return std::apply([&](auto... member) { return (same(a.*member, b.*member) && ...); },
                          kFields<T>);
    } else {
        return same_value(a, b);
    }
}

template <class T>
T random_one(Prng& prng) {
    T v{};
    fill(prng, v);
    return v;
}

template <class Variant, std::size_t... I>
Variant random_alternative(Prng& prng, std::size_t which, std::index_sequence<I...>) {
    Variant v;
    (void)((which == I && (v = random_one<std::variant_alternative_t<I, Variant>>(prng), true)) ||
           ...);
    return v;
}

constexpr std::size_t kCommands = std::variant_size_v<Command>;
constexpr std::size_t kKinds = 5 + kCommands + 1;

// Message of kind 0..kKinds-1: Hello, Welcome, Refuse, Ping, Pong, each command, StepFrame.
Message random_message(Prng& prng, std::size_t kind) {
    if (kind < 5) {
        switch (kind) {
            case 0:
                return random_one<Hello>(prng);
            case 1:
                return random_one<Welcome>(prng);
            case 2:
                return random_one<Refuse>(prng);
            case 3:
                return random_one<Ping>(prng);
            default:
                return random_one<Pong>(prng);
        }
    }
    if (kind < 5 + kCommands) {
        return random_alternative<Command>(prng, kind - 5, std::make_index_sequence<kCommands>());
    }
    return random_one<StepFrame>(prng);
}

std::string encoded(const Message& message) {
    std::string out;
    EXPECT_TRUE(encode(message, out));
    return out;
}

// What a decoder fed `bytes` at once says first.
Result<std::optional<Message>> decoded(std::string_view bytes) {
    Decoder decoder;
    decoder.feed(bytes);
    return decoder.next();
}

// A message as a hostile peer would make it: any type and payload with a right header.
std::string forged(std::uint16_t type, std::string_view payload, std::uint16_t flags = 0) {
    std::string out;
    ByteWriter w(out);
    w.put(kMagic);
    w.put(type);
    w.put(flags);
    w.put(static_cast<std::uint32_t>(payload.size()));
    w.put(crc32c(as_bytes(payload), crc32c(as_bytes(out))));
    out.append(payload);
    return out;
}

// ---------------------------------------------------------------- tests

TEST(EngineWire, EveryMessageSurvivesTheTrip) {
    Prng prng(1);
    for (int round = 0; round < 200; ++round) {
        for (std::size_t kind = 0; kind < kKinds; ++kind) {
            const Message message = random_message(prng, kind);
            const auto back = decoded(encoded(message));
            ASSERT_TRUE(back.ok()) << kind << ": " << back.error().message;
            ASSERT_TRUE(back->has_value());
            ASSERT_TRUE(same(**back, message)) << kind;
            ASSERT_EQ(encoded(**back), encoded(message));
        }
    }
}

TEST(EngineWire, CommandsAndFramesEncodeAsTheirMessages) {
    Prng prng(2);
    const auto command = std::get<Command>(random_message(prng, 5));
    const auto frame = random_one<StepFrame>(prng);
    std::string a;
    std::string b;
    EXPECT_TRUE(encode(command, a));
    EXPECT_TRUE(encode(frame, b));
    EXPECT_EQ(a, encoded(Message(command)));
    EXPECT_EQ(b, encoded(Message(frame)));
}

TEST(EngineWire, AnyChunkingGivesTheSameMessages) {
    Prng prng(3);
    for (int round = 0; round < 100; ++round) {
        std::vector<Message> sent;
        std::string stream;
        for (int i = 0; i < 12; ++i) {
            sent.push_back(random_message(prng, prng.below(kKinds)));
            ASSERT_TRUE(encode(sent.back(), stream));
        }
        Decoder decoder;
        std::size_t received = 0;
        const std::uint64_t largest = round < 20 ? 1 : 1 + prng.below(2000);
        for (std::size_t at = 0; at < stream.size();) {
            const std::size_t n =
                std::min<std::size_t>(stream.size() - at, 1 + prng.below(largest));
            decoder.feed(std::string_view(stream).substr(at, n));
            at += n;
            while (true) {
                auto next = decoder.next();
                ASSERT_TRUE(next.ok()) << next.error().message;
                if (!next->has_value()) break;
                ASSERT_LT(received, sent.size());
                ASSERT_TRUE(same(**next, sent[received]));
                ++received;
            }
        }
        EXPECT_EQ(received, sent.size());
    }
}

TEST(EngineWire, EveryTruncationNeedsMore) {
    Prng prng(4);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
        const std::string whole = encoded(random_message(prng, kind));
        for (std::size_t n = 0; n < whole.size(); ++n) {
            const auto got = decoded(std::string_view(whole).substr(0, n));
            ASSERT_TRUE(got.ok()) << kind << " cut at " << n;
            ASSERT_FALSE(got->has_value()) << kind << " cut at " << n;
        }
    }
}

// The same with a right length and checksum: then the members end too early, which must be found.
TEST(EngineWire, EveryTruncatedPayloadIsCorrupt) {
    Prng prng(5);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
        const std::string whole = encoded(random_message(prng, kind));
        std::uint16_t type;
        std::memcpy(&type, whole.data() + 4, sizeof type);
        const std::string_view payload = std::string_view(whole).substr(kHeaderBytes);
        ASSERT_TRUE(decoded(forged(type, payload)).ok());
        for (std::size_t n = 0; n < payload.size(); ++n) {
            ASSERT_EQ(decoded(forged(type, payload.substr(0, n))).code(), Code::kCorrupt)
                << kind << " cut at " << n;
        }
        ASSERT_EQ(decoded(forged(type, std::string(payload) + "x")).code(), Code::kCorrupt) << kind;
    }
}

TEST(EngineWire, EveryByteFlipIsCorruptOrNeedsMore) {
    Prng prng(6);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
        const std::string whole = encoded(random_message(prng, kind));
        for (std::size_t at = 0; at < whole.size(); ++at) {
            for (int bit = 0; bit < 9; ++bit) {
                std::string damaged = whole;
                damaged[at] = static_cast<char>(damaged[at] ^ (bit == 8 ? 0xff : 1 << bit));
                const auto got = decoded(damaged);
                if (got.ok()) {
                    // Only a longer length can still be waited for.
                    ASSERT_FALSE(got->has_value()) << kind << " byte " << at;
                    ASSERT_TRUE(at >= 8 && at < 12) << kind << " byte " << at;
                } else {
                    ASSERT_EQ(got.code(), Code::kCorrupt);
                }
            }
        }
    }
}

// Random payloads under a right header: never a crash; whatever is accepted encodes to the same
// bytes again.
TEST(EngineWire, RandomPayloadsAreDecodedStrictly) {
    Prng prng(7);
    int accepted = 0;
    for (int round = 0; round < 30'000; ++round) {
        const std::string seed = encoded(random_message(prng, prng.below(kKinds)));
        std::uint16_t type;
        std::memcpy(&type, seed.data() + 4, sizeof type);
        std::string payload = seed.substr(kHeaderBytes);
        for (std::uint64_t n = 1 + prng.below(3); n > 0 && !payload.empty(); --n) {
            payload[prng.below(payload.size())] =
                static_cast<char>(prng.chance(0.3) ? 0xff : prng.next());
        }
        const std::string message = forged(type, payload);
        const auto got = decoded(message);
        if (!got.ok()) continue;
        ASSERT_TRUE(got->has_value());
        ++accepted;
        const bool has_error = type == 3 || type == 64;  // an unknown code name becomes "internal"
        if (!has_error) {
            ASSERT_EQ(encoded(**got), message);
        }
    }
    EXPECT_GT(accepted, 1000);
}

// A list that claims 2^32 - 1 items in a short payload: refused before anything is allocated (ASan
// would stop a 100 GiB allocation; so would the machine).
TEST(EngineWire, LyingCountsAreRefused) {
    int refused = 0;
    for (const std::uint16_t type : {std::uint16_t{64}, std::uint16_t{16}, std::uint16_t{18}}) {
        for (std::size_t lead = 0; lead < 200; ++lead) {
            const auto got = decoded(
                forged(type, std::string(lead, '\0') + "\xff\xff\xff\xff" + std::string(60, '\0')));
            // Where the four bytes fall on plain numbers the message may be right after all.
            if (!got.ok()) {
                ASSERT_EQ(got.code(), Code::kCorrupt);
            }
            refused += got.ok() ? 0 : 1;
        }
    }
    EXPECT_GE(refused, 3 * 200 - 4);
}

TEST(EngineWire, HeaderFaultsAreFoundBeforeThePayload) {
    const std::string ping = encoded(Ping{1});
    const auto with = [&ping](std::size_t at, std::string_view bytes) {
        std::string header = ping.substr(0, kHeaderBytes);
        header.replace(at, bytes.size(), bytes);
        return decoded(header);
    };
    EXPECT_NE(with(0, "HTTP").error().message.find("magic"), std::string::npos);
    EXPECT_NE(
        with(4, std::string_view("\xff\0", 2)).error().message.find("unknown message type 255"),
        std::string::npos);
    EXPECT_NE(with(6, "\x01").error().message.find("flags"), std::string::npos);
    EXPECT_NE(with(8, "\xff\xff\xff\x7f").error().message.find("over the bound"),
              std::string::npos);
    EXPECT_NE(decoded(forged(0, "")).error().message.find("unknown message type 0"),
              std::string::npos);
}

TEST(EngineWire, AnErrorIsForEver) {
    Decoder decoder;
    decoder.feed(encoded(Ping{1}));
    decoder.feed("garbage garbage garbage");
    decoder.feed(encoded(Ping{2}));
    ASSERT_TRUE(decoder.next()->has_value());
    const auto first = decoder.next();
    EXPECT_EQ(first.code(), Code::kCorrupt);
    decoder.feed(encoded(Ping{3}));
    EXPECT_EQ(decoder.next().error(), first.error());
}

TEST(EngineWire, ValuesThatNoPeerMaySend) {
    AddRequest add;
    add.prompt = {1};
    add.images = {{5, {}}, {4, {}}};
    EXPECT_NE(decoded(encoded(Command(add))).error().message.find("not sorted"), std::string::npos);
    add.images.clear();
    add.sampling.temperature = std::numeric_limits<double>::quiet_NaN();
    EXPECT_NE(decoded(encoded(Command(add))).error().message.find("not finite"), std::string::npos);
    add.sampling.temperature = {};
    add.mode = static_cast<AddMode>(9);
    EXPECT_NE(decoded(encoded(Command(add))).error().message.find("enumerator"), std::string::npos);
    add.mode = AddMode::kUnified;
    add.grammar_kind = static_cast<GrammarKind>(3);
    EXPECT_NE(decoded(encoded(Command(add))).error().message.find("enumerator"), std::string::npos);
}

// A newer engine may name a code that we do not know.
TEST(EngineWire, UnknownErrorCodeIsInternal) {
    std::string payload;
    ByteWriter w(payload);
    w.put_string("code_of_the_future");
    w.put_string("m");
    w.put_string("p");
    const auto got = decoded(forged(3, payload));
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(std::get<Refuse>(**got).error, (Error{Code::kInternal, "m", "p"}));
}

TEST(EngineWire, APayloadOverTheBoundIsNotEncoded) {
    AddRequest add;
    add.prompt = {1};
    add.image_bytes = {std::string(kMaxPayload, 'x')};
    std::string out = "before";
    EXPECT_FALSE(encode(Command(add), out));
    EXPECT_EQ(out, "before");
    add.image_bytes = {std::string(kMaxPayload - 1000, 'x')};
    EXPECT_TRUE(encode(Command(add), out));
    EXPECT_TRUE(decoded(std::string_view(out).substr(6))->has_value());
}

// docs/formats/engine-wire.md shows these bytes.
TEST(EngineWireFormat, PinnedBytes) {
    EXPECT_EQ(to_hex(as_bytes(encoded(Hello{1, 1, "gw"}))),
              "4e455731010000000a000000544c165101000100020000006777");
    EXPECT_EQ(to_hex(as_bytes(encoded(Ping{7}))),
              "4e45573104000000080000004efdd8190700000000000000");
    EXPECT_EQ(to_hex(as_bytes(encoded(Command(AbortRequest{{9}})))),
              "4e45573111000000080000001d08a8ca0900000000000000");
    StepFrame frame;
    frame.step = {3};
    frame.tokens = {{{9}, 42, -0.5f, {{42, -0.5f}}}};
    EXPECT_EQ(to_hex(as_bytes(encoded(frame))),
              "4e45573140000000880000004e7656980300000000000000000000000100000009000000000000002a00"
              "0000000000bf010000002a000000000000bf000000000000000000000000000000000000000000000000"
              "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
              "0000000000000000000000000000000000000000000000000000");
}

}  // namespace
}  // namespace nereid::model::wire
