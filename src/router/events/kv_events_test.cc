// Bytes captured from vLLM 0.32 (shared/peers/vllm/vectors), SGLang's positional form, faults,
// sequences, and the translation into our chain.
#include "router/events/kv_events.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/prng.h"
#include "router/events/chain.h"
#include "router/residency.h"

namespace nereid::router {
namespace {

std::string unhex(std::string_view hex) {
    std::string out(hex.size() / 2, '\0');
    EXPECT_TRUE(from_hex(hex, {reinterpret_cast<std::uint8_t*>(out.data()), out.size()}));
    return out;
}

// kv_event_stored_child.json
const std::string kChild = unhex(
    "93cb41dac31083042f5a918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cffed36a"
    "c416"
    "1c21ffb1706172656e745f626c6f636b5f68617368cfda6fae9b84627b55a9746f6b656e5f696473dc00204e564dcc"
    "dc45"
    "4e57ccdc49544c4f52ccdc534744ccdc505448424acc8c5accc75cccc75cccc75cccc7aa626c6f636b5f73697a6520"
    "a76c"
    "6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75"
    "705f"
    "69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00");
// kv_event_all_cleared.json
const std::string kCleared =
    unhex("93cb41dac3114fce152e9181a474797065b0416c6c426c6f636b73436c656172656400");

// A writer of msgpack for what follows.
struct Pack {
    std::string out;
    Pack& array(std::size_t n) { return put(static_cast<char>(0x90 | n)); }
    Pack& map(std::size_t n) { return put(static_cast<char>(0x80 | n)); }
    Pack& nil() { return put(static_cast<char>(0xc0)); }
    Pack& put(char c) {
        out.push_back(c);
        return *this;
    }
    Pack& str(std::string_view s) {
        put(static_cast<char>(0xd9)).put(static_cast<char>(s.size()));
        out += s;
        return *this;
    }
    Pack& bin(std::string_view s) {
        put(static_cast<char>(0xc4)).put(static_cast<char>(s.size()));
        out += s;
        return *this;
    }
    Pack& num(std::int64_t v) {
        put(static_cast<char>(0xd3));
        for (int shift = 56; shift >= 0; shift -= 8) put(static_cast<char>(v >> shift & 0xff));
        return *this;
    }
    Pack& nums(std::initializer_list<std::int64_t> list) {
        array(list.size());
        for (const std::int64_t v : list) num(v);
        return *this;
    }
};

TEST(KvEvents, VllmsOwnBytes) {
    const auto batch = decode_kv_events(kChild);
    ASSERT_TRUE(batch.ok()) << batch.error().message;
    EXPECT_NEAR(batch->timestamp, 1795965452.06539, 1e-3);
    EXPECT_EQ(batch->dp_rank, 0u);
    ASSERT_EQ(batch->events.size(), 1u);
    const auto& stored = std::get<BlockStored>(batch->events[0]);
    EXPECT_EQ(stored.blocks, std::vector<EngineHash>{18362137496136720895u});
    EXPECT_EQ(stored.parent, 15739991205647383381u);
    EXPECT_EQ(stored.block_size, 32u);
    ASSERT_EQ(stored.tokens.size(), 32u);
    EXPECT_EQ(stored.tokens[3], 220);
    EXPECT_TRUE(stored.extra.empty());
    const auto cleared = decode_kv_events(kCleared);
    ASSERT_TRUE(cleared.ok());
    EXPECT_TRUE(std::holds_alternative<AllBlocksCleared>(cleared->events.at(0)));
}

TEST(KvEvents, SglangsPositionalFormAndByteHashes) {
    Pack p;
    p.array(2).num(7).array(3);
    p.array(7)
        .str("BlockStored")
        .array(2)
        .num(-5)
        .bin(std::string("\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02", 10));
    p.nil().nums({1, 2, 3, 4}).num(2).nil().str("GPU");
    p.array(2).str("BlockRemoved").nums({9});
    p.array(1).str("AllBlocksCleared");
    const auto batch = decode_kv_events(p.out);
    ASSERT_TRUE(batch.ok()) << batch.error().message;
    ASSERT_EQ(batch->events.size(), 3u);
    const auto& stored = std::get<BlockStored>(batch->events[0]);
    EXPECT_EQ(stored.blocks, (std::vector<EngineHash>{static_cast<EngineHash>(-5), 0x0102}));
    EXPECT_FALSE(stored.parent.has_value());
    EXPECT_EQ(stored.tokens, (std::vector<TokenId>{1, 2, 3, 4}));
    EXPECT_EQ(std::get<BlockRemoved>(batch->events[1]).blocks, std::vector<EngineHash>{9});
    EXPECT_FALSE(batch->dp_rank.has_value());
}

// R21: blocks of auxiliary groups, of sliding windows and of other media never reach the index.
TEST(KvEvents, R21_OnlyTheMainGroupOnTheGpuCounts) {
    Pack p;
    p.array(2).num(7).array(5);
    const auto event = [&](std::string_view key, auto value) -> Pack& {
        p.map(3).str("type").str("BlockRemoved").str("block_hashes").nums({1}).str(key);
        if constexpr (std::is_integral_v<decltype(value)>)
            return p.num(value);
        else
            return p.str(value);
    };
    event("group_idx", 1);
    event("kv_cache_spec_kind", "sliding_window");
    event("medium", "CPU");
    event("something_new", "x");
    p.map(1).str("type").str("BlockTouched");
    const auto batch = decode_kv_events(p.out);
    ASSERT_TRUE(batch.ok()) << batch.error().message;
    EXPECT_EQ(batch->skipped, 4u);
    EXPECT_EQ(batch->events.size(), 1u);
}

TEST(KvEvents, EveryTruncationAndEveryFlipIsAnErrorOrAValue) {
    for (std::size_t n = 0; n < kChild.size(); ++n) {
        EXPECT_EQ(decode_kv_events(std::string_view(kChild).substr(0, n)).code(), Code::kCorrupt);
    }
    EXPECT_FALSE(decode_kv_events(kChild + "x").ok());
    std::string damaged = kChild;
    for (std::size_t i = 0; i < damaged.size(); ++i) {
        for (const char flip : {'\x01', '\x80', '\xff'}) {
            damaged[i] = static_cast<char>(damaged[i] ^ flip);
            (void)decode_kv_events(damaged);
            damaged[i] = static_cast<char>(damaged[i] ^ flip);
        }
    }
    // Counts that lie are refused before anything is allocated.
    EXPECT_FALSE(decode_kv_events(unhex("92cb0000000000000000ddffffffff")).ok());
    // Nesting without end.
    std::string deep = unhex("93cb000000000000000090");
    deep.append(100'000, static_cast<char>(0x91));
    EXPECT_FALSE(decode_kv_events(deep).ok());
    EXPECT_FALSE(decode_sequence("1234567").ok());
    EXPECT_EQ(*decode_sequence(encode_replay_request(0x0102030405060708u)), 0x0102030405060708u);
}

using Source = EventSequence::Source;
using Verdict = EventSequence::Verdict;

// R20: gaps are noticed, replayed, and when replay cannot mend them the rank begins anew; a first
// sequence over 0 is a gap too.
TEST(KvEvents, R20_Sequences) {
    EventSequence s;
    EXPECT_EQ(s.observe(2, Source::kLive).verdict, Verdict::kGap);
    EXPECT_EQ(s.missing_from(), 0u);
    for (std::uint64_t n = 0; n < 3; ++n) {
        const auto d = s.observe(n, Source::kReplay);
        EXPECT_EQ(d.verdict, Verdict::kApply);
        EXPECT_FALSE(d.clear_first);
    }
    EXPECT_FALSE(s.replay_ended());
    EXPECT_EQ(s.observe(3, Source::kLive).verdict, Verdict::kApply);
    EXPECT_EQ(s.observe(3, Source::kLive).verdict, Verdict::kRepeat);
    // A gap whose replay ends before the latest message: asked again from there.
    EXPECT_EQ(s.observe(6, Source::kLive).verdict, Verdict::kGap);
    EXPECT_EQ(s.observe(4, Source::kReplay).verdict, Verdict::kApply);
    EXPECT_EQ(s.observe(7, Source::kLive).verdict, Verdict::kGap);
    EXPECT_TRUE(s.replay_ended());
    EXPECT_EQ(s.missing_from(), 5u);
    EXPECT_EQ(s.gaps(), 2u);
    for (std::uint64_t n = 5; n < 8; ++n) s.observe(n, Source::kReplay);
    EXPECT_FALSE(s.replay_ended());
    EXPECT_EQ(s.resets(), 0u);
    // The engine's buffer begins later than the gap.
    EXPECT_EQ(s.observe(20'000, Source::kLive).verdict, Verdict::kGap);
    auto d = s.observe(10'001, Source::kReplay);
    EXPECT_EQ(d.verdict, Verdict::kApply);
    EXPECT_TRUE(d.clear_first);
    EXPECT_FALSE(s.observe(10'002, Source::kReplay).clear_first);
    // The engine began again, unseen until its message 5.
    d = s.observe(5, Source::kLive);
    EXPECT_EQ(d.verdict, Verdict::kGap);
    EXPECT_TRUE(d.clear_first);
    EXPECT_EQ(s.missing_from(), 0u);
    // A replay endpoint that answers nothing: go on with what comes.
    EXPECT_FALSE(s.replay_ended());
    d = s.observe(6, Source::kLive);
    EXPECT_EQ(d.verdict, Verdict::kApply);
    EXPECT_FALSE(d.clear_first);  // nothing was known since the last clear
    EXPECT_EQ(s.resets(), 2u);
}

// Whatever is lost, repeated or disordered: applied sequences rise, and after a clear nothing older
// is believed.
TEST(KvEvents, PropertyOfSequences) {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        Prng prng(seed);
        EventSequence s;
        std::uint64_t engine = 0;
        std::int64_t applied = -1;
        std::uint64_t buffer = 0;  // oldest that replay has
        for (int step = 0; step < 500; ++step) {
            const auto see = [&](std::uint64_t n, Source source) {
                const auto d = s.observe(n, source);
                if (d.clear_first) applied = -1;
                if (d.verdict != Verdict::kApply) return;
                if (applied >= 0) ASSERT_EQ(static_cast<std::int64_t>(n), applied + 1);
                applied = static_cast<std::int64_t>(n);
            };
            if (prng.chance(0.02)) {
                engine = 0;  // restart
                buffer = 0;
            }
            if (prng.chance(0.8)) see(engine, Source::kLive);
            ++engine;
            if (engine > 20) buffer = engine - 20;
            while (s.replaying() && prng.chance(0.5)) {
                for (std::uint64_t n = std::max(buffer, s.missing_from()); n < engine; ++n) {
                    see(n, Source::kReplay);
                    if (prng.chance(0.05)) break;
                }
                s.replay_ended();
            }
        }
        EXPECT_GT(s.gaps(), 0u);
    }
}

TEST(Chain, ARequestAndItsEventsHaveTheSameNames) {
    std::vector<TokenId> tokens(200);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7 % 50);
    const auto names = chain_of(tokens, 32);
    ASSERT_EQ(names.size(), 6u);
    ChainTranslator t(32);
    const std::span<const TokenId> all(tokens);
    const auto root =
        t.stored({.blocks = {11, 22}, .tokens = {all.begin(), all.begin() + 64}, .block_size = 32});
    EXPECT_EQ(root.parent, 0u);
    EXPECT_EQ(root.blocks, std::vector<BlockHash>(names.begin(), names.begin() + 2));
    const auto child = t.stored({.blocks = {33},
                                 .parent = 22,
                                 .tokens = {all.begin() + 64, all.begin() + 96},
                                 .block_size = 32});
    EXPECT_EQ(child.parent, names[1]);
    EXPECT_EQ(child.blocks, std::vector<BlockHash>{names[2]});
    Residency r({});
    r.add_rank(0);
    r.store(0, root.parent, root.blocks);
    r.store(0, child.parent, child.blocks);
    EXPECT_EQ(r.match(names).longest(), 3u);
    r.remove(0, t.removed({.blocks = {33, 44}}));
    EXPECT_EQ(r.match(names).longest(), 2u);
    EXPECT_EQ(t.size(), 2u);
    // Salt, adapter and other tokens are other names.
    EXPECT_NE(chain_of(tokens, 32, "", "tenant")[0], names[0]);
    EXPECT_NE(chain_of(tokens, 32, "adapter")[0], names[0]);
    EXPECT_NE(chain_of(all.subspan(1), 32)[0], names[0]);
    t.clear();
    EXPECT_EQ(t.size(), 0u);
}

TEST(Chain, TextHasTheSameNamesHoweverItIsCut) {
    std::string text;
    Prng prng(6);
    for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>('a' + prng.below(26)));
    TextChain whole(512);
    whole.add(text);
    EXPECT_EQ(whole.blocks().size(), 9u);
    TextChain pieces(512);
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = 1 + prng.below(900);
        pieces.add(std::string_view(text).substr(at, n));
        at += n;
    }
    EXPECT_EQ(pieces.blocks(), whole.blocks());
    TextChain other(512);
    other.add(text.substr(0, 2000) + "!" + text.substr(2000));
    EXPECT_EQ(other.blocks()[2], whole.blocks()[2]);
    EXPECT_NE(other.blocks()[3], whole.blocks()[3]);
}

TEST(Chain, TheSaltIsWrittenAsVllmWritesIt) {
    std::vector<TokenId> tokens(64, 5);
    ChainTranslator t(32);
    Pack salt;  // [salt]
    salt.out = std::string("\x91\xa6tenant", 8);
    const auto stored =
        t.stored({.blocks = {1, 2}, .tokens = tokens, .block_size = 32, .extra = {salt.out, ""}});
    EXPECT_EQ(stored.blocks, chain_of(tokens, 32, "", "tenant"));
}

TEST(Chain, R19_R22_UnknownParentsAndOtherSizesAreCounted) {
    ChainTranslator t(32, 3);
    EXPECT_TRUE(
        t.stored({.blocks = {1}, .parent = 9, .tokens = std::vector<TokenId>(32), .block_size = 32})
            .blocks.empty());
    EXPECT_TRUE(t.stored({.blocks = {1}, .tokens = std::vector<TokenId>(16), .block_size = 16})
                    .blocks.empty());
    EXPECT_TRUE(t.stored({.blocks = {1}, .block_size = 32}).blocks.empty());
    EXPECT_EQ(t.orphans(), 1u);
    EXPECT_EQ(t.mismatched(), 2u);
    EXPECT_EQ(
        t.stored({.blocks = {1, 2, 3, 4}, .tokens = std::vector<TokenId>(128), .block_size = 32})
            .blocks.size(),
        3u);
    EXPECT_EQ(t.refused(), 1u);
}

TEST(Chain, PropertyTheTableIsAMap) {
    Prng prng(5);
    ChainTranslator t(1, 1000);
    std::map<EngineHash, BlockHash> naive;
    for (int step = 0; step < 20'000; ++step) {
        const EngineHash h = prng.below(700);
        if (prng.chance(0.55)) {
            const auto s = t.stored({.blocks = {h},
                                     .tokens = {static_cast<TokenId>(prng.below(1000))},
                                     .block_size = 1});
            if (!s.blocks.empty()) naive[h] = s.blocks[0];
        } else {
            const auto gone = t.removed({.blocks = {h}});
            const auto it = naive.find(h);
            ASSERT_EQ(gone.empty(), it == naive.end());
            if (it != naive.end()) {
                ASSERT_EQ(gone[0], it->second);
                naive.erase(it);
            }
        }
        ASSERT_EQ(t.size(), naive.size());
    }
}

}  // namespace
}  // namespace nereid::router
