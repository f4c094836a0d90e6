#include "kv/wire/wire.h"

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"

namespace nereid::kv::wire {
namespace {

model::BlockKey key(std::uint8_t n) {
    model::BlockKey k;
    k.bytes.fill(n);
    return k;
}

// One of each message, command and answer, with every member set.
std::vector<Message> examples() {
    std::vector<Message> out{
        Hello{.version = 1, .client = "engine-7"},
        Welcome{.version = 1, .epoch = 9, .arena_bytes = 1 << 30, .max_objects = 8192},
        Refuse{.code = "permission_denied", .message = "no"},
        Region{.region = 2, .bytes = 1 << 20},
        StatsCall{.tag = 77, .what = 2},
        Stats{.tag = 77, .json = "{}"},
    };
    const std::vector<ObjectName> objects{{key(1), ObjectKind::kHistory, 0},
                                          {key(2), ObjectKind::kState, 7}};
    Capability capability{};
    capability[5] = 3;
    const Geometry geometry{.block_tokens = 64,
                            .history_bytes = 1000,
                            .state_bytes = 5,
                            .keep_tokens = 2,
                            .replay = ReplayPolicy::kStoredState,
                            .window_tokens = 128,
                            .replay_tokens = 9,
                            .checkpoint_blocks = 4};
    const auto call = [&](Command c) { out.emplace_back(Call{5, capability, std::move(c)}); };
    call(OpenNamespace{.ns = {}, .geometry = geometry, .tenant = 3, .ttl = 72h});
    call(Lookup{.ns = 1,
                .first_block = 2,
                .keys = {key(1), key(2), key(3)},
                .prompt_tokens = 99,
                .places = true});
    call(Get{.ns = 1,
             .objects = objects,
             .lease = 5s,
             .wait = 1s,
             .join_writes = true,
             .stop_at_miss = false});
    call(Renew{.lease = {4}, .hold = 2s});
    call(Release{.lease = {4}});
    call(Reserve{.ns = 1, .objects = objects, .hold = 1s, .ttl = 2h, .attach = true});
    call(Commit{.items = {{{6}, 1, 4096, 1000, 0xdeadbeef}}});
    call(Abort{.reservations = {{6}, {7}}});
    call(Subscribe{.from = 5, .limit = 10, .wait = 1s});
    call(Clear{.ns = 1});
    const auto answer = [&](Answer a) { out.emplace_back(Answered{5, std::move(a)}); };
    answer(NamespaceOpened{.ns = 1, .epoch = 8});
    answer(Found{.blocks = 2,
                 .hit = {2, true, 128, 3},
                 .dram_blocks = 1,
                 .tiers = {Tier::kDram, Tier::kSsd},
                 .epoch = 8});
    answer(Got{.lease = {4},
               .contiguous = 1,
               .status = {ObjectStatus::kOk, ObjectStatus::kMiss},
               .places = {{.offset = 4096, .length = 9, .crc = 1, .stamp = 2, .key = {3, 4}}, {}}});
    answer(Reserved{.status = {ObjectStatus::kOk}, .ids = {{6}}});
    answer(Committed{.status = {ObjectStatus::kCorrupt}});
    answer(Done{});
    answer(Flight{.object = 1, .status = ObjectStatus::kMiss, .reservation = {9}});
    answer(Events{.first = 1,
                  .next = 2,
                  .gap = true,
                  .epoch = 8,
                  .events = {{KvEventType::kRemoved, Tier::kSsd, 1, 3, {5, 6}}}});
    answer(Error{Code::kTooLarge, "too many objects"});
    return out;
}

std::string encoded(const Message& m) {
    std::string out;
    EXPECT_TRUE(encode(m, out));
    return out;
}

TEST(KvWire, RoundTripInAnyPieces) {
    std::string stream;
    std::vector<std::string> each;
    for (const auto& m : examples()) {
        each.push_back(encoded(m));
        stream += each.back();
    }
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, stream.size()}) {
        Decoder decoder;
        std::size_t got = 0;
        for (std::size_t at = 0; at < stream.size(); at += piece) {
            decoder.feed(std::string_view(stream).substr(at, piece));
            for (;;) {
                auto m = decoder.next();
                ASSERT_TRUE(m.ok()) << m.error().message;
                if (!*m) break;
                ASSERT_EQ(encoded(**m), each[got]) << got;
                ++got;
            }
        }
        EXPECT_EQ(got, each.size());
    }
}

TEST(KvWire, EveryFlippedBitIsRefused) {
    for (const auto& m : examples()) {
        const std::string good = encoded(m);
        for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
            std::string bad = good;
            bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
            Decoder decoder;
            decoder.feed(bad);
            const auto r = decoder.next();
            // A length that grew waits for more; nothing is ever accepted.
            ASSERT_TRUE(!r.ok() || !*r) << bit;
        }
    }
}

// With a right checksum: every truncation and every overlong payload.
TEST(KvWire, LyingLengthsAndCountsAreRefused) {
    const auto mend = [](std::string bytes) {
        const auto length = static_cast<std::uint32_t>(bytes.size() - kHeaderBytes);
        std::memcpy(bytes.data() + 8, &length, 4);
        const auto all = as_bytes(bytes);
        const std::uint32_t sum = crc32c(all.subspan(kHeaderBytes), crc32c(all.first(12)));
        std::memcpy(bytes.data() + 12, &sum, 4);
        return bytes;
    };
    for (const auto& m : examples()) {
        const std::string good = encoded(m);
        for (std::size_t n = kHeaderBytes; n < good.size(); ++n) {
            Decoder decoder;
            decoder.feed(mend(good.substr(0, n)));
            ASSERT_EQ(decoder.next().code(), Code::kCorrupt);
            decoder.feed(good);
            ASSERT_EQ(decoder.next().code(), Code::kCorrupt);  // for ever
        }
        Decoder decoder;
        decoder.feed(mend(good + '\0'));
        ASSERT_EQ(decoder.next().code(), Code::kCorrupt);
    }
    // A count of four thousand million keys in a small message.
    std::string bytes = encoded(Call{1, {}, Lookup{}});
    bytes[bytes.size() - 5 - 4] = static_cast<char>(0xff);
    bytes[bytes.size() - 5 - 1] = static_cast<char>(0xff);
    Decoder decoder;
    decoder.feed(mend(bytes));
    EXPECT_EQ(decoder.next().code(), Code::kCorrupt);
}

TEST(KvWire, OverTheBound) {
    Stats big{.tag = 1, .json = std::string(kMaxPayload, 'x')};
    std::string out = "before";
    EXPECT_FALSE(encode(big, out));
    EXPECT_EQ(out, "before");
    std::string header = encoded(StatsCall{});
    header[8 + 3] = 0x40;
    Decoder decoder;
    decoder.feed(header);
    EXPECT_EQ(decoder.next().code(), Code::kCorrupt);  // before its payload is waited for
}

}  // namespace
}  // namespace nereid::kv::wire
