#include "sim/capacity/tiered_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.h"

namespace nereid::sim {
namespace {

// Lists of ids, most recent first, one per tier: the definition.
struct NaiveCache {
    std::array<std::uint64_t, kTiers> capacity;
    std::array<std::vector<std::uint64_t>, kTiers> tiers{};
    std::set<std::uint64_t> all() const {
        std::set<std::uint64_t> s;
        for (const auto& t : tiers) s.insert(t.begin(), t.end());
        return s;
    }
    void use(const std::vector<std::uint64_t>& chain) {
        std::size_t first = 0;
        while (first + 1 < kTiers && capacity[first] == 0) ++first;
        for (std::size_t i = chain.size(); i-- > 0;) {
            for (auto& t : tiers) std::erase(t, chain[i]);
            tiers[first].insert(tiers[first].begin(), chain[i]);
        }
        for (std::size_t t = first; t < kTiers; ++t) {
            while (tiers[t].size() > capacity[t]) {
                const auto id = tiers[t].back();
                tiers[t].pop_back();
                std::size_t below = t + 1;
                while (below < kTiers && capacity[below] == 0) ++below;
                if (below < kTiers) tiers[below].insert(tiers[below].begin(), id);
            }
        }
    }
};

void compare_with_naive(std::array<std::uint64_t, kTiers> capacity, std::uint64_t seed) {
    Prng prng(seed);
    TieredCache cache(capacity);
    NaiveCache naive{capacity};
    for (int round = 0; round < 600; ++round) {
        std::vector<std::uint64_t> chain;
        const std::uint64_t family = prng.below(12);
        for (std::uint64_t i = 0; i < 1 + prng.below(10); ++i) chain.push_back(family * 100 + i);
        std::vector<std::uint64_t> stored, removed;
        const auto before = naive.all();
        cache.use(chain, stored, removed);
        naive.use(chain);
        const auto after = naive.all();
        ASSERT_EQ(cache.size(), after.size());
        std::set<std::uint64_t> told = before;
        told.insert(stored.begin(), stored.end());
        for (const auto id : removed) told.erase(id);
        ASSERT_EQ(told, after);  // the events tell what is there
        const auto hit = cache.match(chain);
        std::uint32_t expected = 0;
        while (expected < chain.size() && after.contains(chain[expected])) ++expected;
        ASSERT_EQ(hit.blocks, expected);
        ASSERT_EQ(hit.by_tier[0] + hit.by_tier[1] + hit.by_tier[2], hit.blocks);
        for (std::size_t t = 0; t < kTiers; ++t) {
            std::uint32_t in_tier = 0;
            for (std::uint32_t i = 0; i < expected; ++i)
                in_tier += std::ranges::count(naive.tiers[t], chain[i]) > 0 ? 1 : 0;
            ASSERT_EQ(hit.by_tier[t], in_tier);
        }
    }
}

TEST(TieredCache, EqualsListsOfEveryShape) {
    compare_with_naive({16, 16, 32}, 1);
    compare_with_naive({20, 0, 0}, 2);
    compare_with_naive({0, 24, 0}, 3);
    compare_with_naive({8, 0, 40}, 4);
    compare_with_naive({3, 2, 1}, 5);
}

TEST(TieredCache, WithoutRoomHoldsNothing) {
    TieredCache cache({0, 0, 0});
    std::vector<std::uint64_t> stored, removed;
    const std::vector<std::uint64_t> chain{1, 2, 3};
    cache.use(chain, stored, removed);
    EXPECT_TRUE(stored.empty());
    EXPECT_EQ(cache.match(chain).blocks, 0u);
}

}  // namespace
}  // namespace nereid::sim
