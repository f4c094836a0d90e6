// Prefix residency against a naive model, and the memory and membership cases of cases/router.md.
#include "router/residency.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/prng.h"

namespace nereid::router {
namespace {

std::vector<BlockHash> chain(std::uint64_t seed, std::size_t n) {
    std::vector<BlockHash> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = keyed_u64(seed, i) | 1;
    return out;
}
std::span<const BlockHash> first(const std::vector<BlockHash>& c, std::size_t n) {
    return std::span(c).first(n);
}

TEST(Residency, LongestPrefixAndWhoHoldsHowMuch) {
    Residency r({});
    for (RankSlot s = 0; s < 8; ++s) r.add_rank(s);
    const auto c = chain(1, 512);
    for (RankSlot s = 0; s < 8; ++s) r.store(s, 0, first(c, 40));
    r.store(2, c[39], std::span(c).subspan(40, 260));
    r.store(5, c[39], std::span(c).subspan(40, 100));
    const PrefixMatch m = r.match(c);
    EXPECT_EQ(m.longest(), 300u);
    EXPECT_EQ(m.level_count, 3u);
    EXPECT_EQ(r.depth(m, 2), 300u);
    EXPECT_EQ(r.depth(m, 5), 140u);
    EXPECT_EQ(r.depth(m, 0), 40u);
    EXPECT_EQ(r.depth(m, 77), 0u);
    std::array<Residency::Holder, 4> out{};
    ASSERT_EQ(r.holders(m, out, 3), 4u);
    EXPECT_EQ(out[0].slot, 2u);
    EXPECT_EQ(out[1].slot, 5u);
    EXPECT_EQ(out[2].depth, 40u);
}

TEST(Residency, NothingMatchesNothing) {
    Residency r({});
    r.add_rank(0);
    EXPECT_EQ(r.match({}).longest(), 0u);
    EXPECT_EQ(r.match(chain(1, 5)).longest(), 0u);
    r.store(0, 0, chain(2, 5));
    EXPECT_EQ(r.match(chain(1, 5)).longest(), 0u);
    EXPECT_EQ(r.match(first(chain(2, 5), 1)).longest(), 1u);
}

// R12: a block in the middle of a prompt is no hit: only a chain from its beginning is. R22: blocks
// whose parent the rank does not hold are refused and counted.
TEST(Residency, R12_R22_MiddleBlocksDoNotMatchAndOrphansAreRefused) {
    Residency r({});
    r.add_rank(0);
    const auto c = chain(1, 64);
    r.store(0, c[9], std::span(c).subspan(10, 20));
    EXPECT_EQ(r.match(c).longest(), 0u);
    EXPECT_EQ(r.stats().orphans, 20u);
    EXPECT_EQ(r.stats().blocks, 0u);
    // The start is lost, the rest is not: no match either.
    r.store(0, 0, c);
    r.remove(0, first(c, 1));
    EXPECT_EQ(r.match(c).longest(), 0u);
}

struct Naive {
    std::map<BlockHash, std::set<RankSlot>> held;
    std::uint32_t depth(std::span<const BlockHash> c, RankSlot s) const {
        std::uint32_t d = 0;
        for (const BlockHash b : c) {
            const auto it = held.find(b);
            if (it == held.end() || !it->second.contains(s)) break;
            ++d;
        }
        return d;
    }
};

// Ranks store and drop prefixes of chains that share beginnings (a tail goes before its head, as
// engines do). Depths are the naive ones wherever the answer lists the rank.
TEST(Residency, PropertyAgainstANaiveModel) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        Prng prng(seed);
        Residency r({});
        Naive naive;
        constexpr RankSlot kRanks = 6;
        for (RankSlot s = 0; s < kRanks; ++s) r.add_rank(s);
        // A tree of chains: three trunks, each with branches.
        std::vector<std::vector<BlockHash>> chains;
        for (std::uint64_t t = 0; t < 3; ++t) {
            const auto trunk = chain(100 * seed + t, 20);
            for (std::uint64_t b = 0; b < 4; ++b) {
                auto c = trunk;
                c.resize(5 + 5 * b);
                const auto tail = chain(10'000 * seed + 10 * t + b, 30);
                c.insert(c.end(), tail.begin(), tail.end());
                chains.push_back(std::move(c));
            }
        }
        std::array<std::map<std::size_t, std::size_t>, kRanks> lengths;  // chain -> blocks stored
        TimePoint now{};
        for (int step = 0; step < 600; ++step) {
            const auto s = static_cast<RankSlot>(prng.below(kRanks));
            const std::size_t which = prng.below(chains.size());
            const auto& c = chains[which];
            const std::uint32_t have = naive.depth(c, s);
            const std::uint64_t what = prng.below(20);
            if (what < 12) {
                const std::size_t upto = have + prng.below(c.size() - have + 1);
                r.store(s, have == 0 ? 0 : c[have - 1], std::span(c).subspan(have, upto - have));
                for (std::size_t i = have; i < upto; ++i) naive.held[c[i]].insert(s);
            } else if (what < 18) {
                // Drop a tail that no other chain of this rank needs.
                std::size_t shared = 0;
                for (const auto& o : chains) {
                    if (&o == &c) continue;
                    std::size_t k = 0;
                    while (k < c.size() && k < o.size() && c[k] == o[k]) ++k;
                    shared = std::max(shared, k);
                }
                if (have <= shared) continue;
                const std::size_t keep = shared + prng.below(have - shared);
                std::vector<BlockHash> gone(c.begin() + static_cast<std::ptrdiff_t>(keep),
                                            c.begin() + have);
                r.remove(s, gone);
                for (const BlockHash b : gone) naive.held[b].erase(s);
            } else if (what == 18) {
                r.clear_rank(s);
                for (auto& [b, h] : naive.held) h.erase(s);
            } else {
                r.remove_rank(s);
                r.add_rank(s);
                for (auto& [b, h] : naive.held) h.erase(s);
            }
            now = now + 1ms;
            r.maintain(now, 40);
            const auto& q = chains[prng.below(chains.size())];
            const PrefixMatch m = r.match(q);
            std::uint32_t longest = 0;
            for (RankSlot k = 0; k < kRanks; ++k) longest = std::max(longest, naive.depth(q, k));
            ASSERT_EQ(m.longest(), longest) << "seed " << seed << " step " << step;
            for (RankSlot k = 0; k < kRanks; ++k) {
                if (m.level_count < PrefixMatch::kMaxLevels) {
                    ASSERT_EQ(r.depth(m, k), naive.depth(q, k)) << seed << " " << step << " " << k;
                } else {
                    ASSERT_LE(r.depth(m, k), naive.depth(q, k));
                }
            }
        }
        std::array<std::uint64_t, kRanks> counts{};
        std::uint64_t distinct = 0;
        for (const auto& [b, h] : naive.held) {
            distinct += h.empty() ? 0 : 1;
            for (const RankSlot s : h) ++counts[s];
        }
        for (RankSlot s = 0; s < kRanks; ++s) EXPECT_EQ(r.blocks_of(s), counts[s]);
        for (int i = 0; i < 100; ++i) r.maintain(now, 4096);
        EXPECT_EQ(r.stats().blocks, distinct);
    }
}

TEST(Residency, SpeculativeEntriesEndUnlessTheirEventComes) {
    Residency r({.speculative_ttl = 2s});
    r.add_rank(0);
    r.add_rank(1);
    const auto c = chain(7, 10);
    TimePoint now{1s};
    r.expect(0, c, now);
    EXPECT_EQ(r.match(c).longest(), 10u);
    r.store(0, 0, first(c, 4));
    r.maintain(now + 1s);
    EXPECT_EQ(r.match(c).longest(), 10u);
    r.expect(0, c, now + 1s);  // anew: the first TTL does not end it
    r.maintain(now + Duration(2500ms));
    EXPECT_EQ(r.match(c).longest(), 10u);
    r.maintain(now + Duration(3500ms));
    EXPECT_EQ(r.match(c).longest(), 4u);
    EXPECT_EQ(r.stats().expired, 6u);
    EXPECT_EQ(r.stats().speculative, 0u);
    // What events say is not made speculative by expecting it.
    r.expect(0, first(c, 4), now + 4s);
    r.maintain(now + 10s);
    EXPECT_EQ(r.match(c).longest(), 4u);
    // Of a rank that is removed in between, nothing comes back.
    r.expect(1, c, now + 10s);
    r.remove_rank(1);
    r.add_rank(1);
    r.maintain(now + 20s);
    EXPECT_EQ(r.blocks_of(1), 0u);
}

// R16, R17, R18: one byte budget for all, enforced at insert, whatever the workers do.
TEST(Residency, R16_R17_R18_MemoryStaysUnderItsBound) {
    constexpr std::uint64_t kBound = 1u << 20u;
    Residency r({.max_bytes = kBound, .max_speculative = 4096});
    for (RankSlot s = 0; s < 64; ++s) r.add_rank(s);
    Prng prng(3);
    TimePoint now{};
    std::uint64_t stored = 0;
    for (int i = 0; i < 6000; ++i) {
        const auto s = static_cast<RankSlot>(prng.below(64));
        const auto c = chain(prng.below(4000), 8 + prng.below(120));
        if (prng.chance(0.2)) {
            r.expect(s, c, now);
        } else {
            r.store(s, 0, c);
        }
        stored += c.size();
        if (prng.chance(0.01)) r.clear_rank(s);
        if (prng.chance(0.01)) {
            r.remove_rank(s);
            r.add_rank(s);
        }
        now = now + 5ms;
        if (i % 10 == 0) r.maintain(now, 64);
        ASSERT_LE(r.stats().bytes, kBound + 4096) << i;
    }
    const auto stats = r.stats();
    EXPECT_GT(stored, 300'000u);
    EXPECT_GT(stats.replaced, 0u);
    EXPECT_GT(stats.blocks, 40'000u);  // and it holds much in it
    std::uint64_t by_rank = 0;
    for (RankSlot s = 0; s < 64; ++s) by_rank += r.blocks_of(s);
    EXPECT_LT(by_rank, 64u * 200'000u);  // no count has gone below zero
}

// R18: what a removed worker held is given back. R23: the others' entries stay.
TEST(Residency, R18_R23_RemovingARankTouchesOnlyItsEntries) {
    Residency r({});
    for (RankSlot s = 0; s < 3; ++s) r.add_rank(s);
    const auto shared = chain(1, 50);
    for (RankSlot s = 0; s < 3; ++s) r.store(s, 0, shared);
    std::vector<std::vector<BlockHash>> own;
    for (RankSlot s = 0; s < 3; ++s) {
        own.push_back(chain(10 + s, 1000));
        r.store(s, 0, own.back());
    }
    for (int life = 0; life < 200; ++life) {  // a rolling restart, many times
        r.remove_rank(1);
        EXPECT_EQ(r.match(own[1]).longest(), 0u);
        EXPECT_EQ(r.match(own[0]).longest(), 1000u);
        EXPECT_EQ(r.depth(r.match(shared), 2), 50u);
        r.maintain(TimePoint{}, 100);
        r.add_rank(1);
        r.store(1, 0, shared);
        r.store(1, 0, own[1]);
        ASSERT_EQ(r.match(own[1]).longest(), 1000u);
        ASSERT_EQ(r.blocks_of(1), 1050u);
    }
    for (int i = 0; i < 100; ++i) r.maintain(TimePoint{}, 4096);
    EXPECT_EQ(r.stats().blocks, 3050u);
    r.remove_rank(0);
    r.remove_rank(1);
    r.remove_rank(2);
    for (int i = 0; i < 100; ++i) r.maintain(TimePoint{}, 4096);
    EXPECT_EQ(r.stats().blocks, 0u);
    EXPECT_EQ(r.stats().sets, 0u);
}

// Many holders of one prefix: sets stay few, and the last level is the shared beginning.
TEST(Residency, ASystemPromptHeldByAllIsOneSet) {
    Residency r({});
    constexpr RankSlot kRanks = 300;
    const auto system = chain(5, 30);
    for (RankSlot s = 0; s < kRanks; ++s) {
        r.add_rank(s);
        r.store(s, 0, system);
        r.store(s, system.back(), chain(1000 + s, 50));
    }
    EXPECT_EQ(r.stats().sets, 1u);
    auto c = system;
    const auto tail = chain(1007, 50);
    c.insert(c.end(), tail.begin(), tail.end());
    const PrefixMatch m = r.match(c);
    EXPECT_EQ(m.level_count, 2u);
    EXPECT_EQ(r.depth(m, 7), 80u);
    EXPECT_EQ(r.depth(m, 250), 30u);
    for (RankSlot s = 0; s < kRanks; s += 2) r.remove(s, system);
    EXPECT_EQ(r.stats().sets, 1u);
    EXPECT_EQ(r.depth(r.match(system), 250), 0u);
    EXPECT_EQ(r.depth(r.match(system), 251), 30u);
}

TEST(Residency, MoreDepthsThanLevelsKeepsTheDeepAndTheShared) {
    Residency r({});
    const auto c = chain(9, 400);
    for (RankSlot s = 0; s < 20; ++s) {
        r.add_rank(s);
        r.store(s, 0, first(c, 20 * (s + 1)));
    }
    const PrefixMatch m = r.match(c);
    EXPECT_EQ(m.level_count, PrefixMatch::kMaxLevels);
    EXPECT_EQ(m.longest(), 400u);
    EXPECT_EQ(r.depth(m, 19), 400u);
    EXPECT_EQ(r.depth(m, 18), 380u);
    EXPECT_EQ(r.depth(m, 0), 20u);
    EXPECT_LE(r.depth(m, 5), 120u);
}

TEST(Residency, ReserveMakesRoomAtOnce) {
    Residency r({});
    r.add_rank(0);
    r.reserve(100'000);
    const std::uint64_t bytes = r.stats().bytes;
    r.store(0, 0, chain(1, 80'000));
    EXPECT_EQ(r.stats().blocks, 80'000u);
    EXPECT_LT(r.stats().bytes, bytes + bytes / 20);
}

}  // namespace
}  // namespace nereid::router
