#include "kv/client/staging.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace nereid::kv::client {
namespace {

// Against a plain map of pages.
TEST(Staging, NeverGivesAPageTwiceAndGetsAllBack) {
    constexpr std::uint64_t kPages = 64;
    Staging s(kPages * 4096);
    std::vector<bool> taken(kPages);
    std::map<std::uint64_t, std::uint64_t> mine;
    Prng rng(1);
    for (int i = 0; i < 20'000; ++i) {
        if (rng.chance(0.5) && !mine.empty()) {
            const auto it = mine.lower_bound(rng.below(kPages * 4096));
            if (it == mine.end()) continue;
            for (std::uint64_t p = 0; p < it->second; ++p) taken[it->first / 4096 + p] = false;
            s.give(it->first);
            mine.erase(it);
            continue;
        }
        const std::uint64_t bytes = 1 + rng.below(10 * 4096);
        const std::uint64_t pages = (bytes + 4095) / 4096;
        const auto at = s.take(bytes);
        if (!at) {
            // Then there is no gap so long.
            std::uint64_t run = 0;
            for (const bool t : taken) {
                run = t ? 0 : run + 1;
                ASSERT_LT(run, pages);
            }
            continue;
        }
        for (std::uint64_t p = 0; p < pages; ++p) {
            ASSERT_FALSE(taken[*at / 4096 + p]);
            taken[*at / 4096 + p] = true;
        }
        mine[*at] = pages;
    }
    for (const auto& [at, pages] : mine) s.give(at);
    s.give(4096 * 1000);
    EXPECT_EQ(s.taken(), 0U);
    EXPECT_EQ(s.take(kPages * 4096), 0U);
    EXPECT_FALSE(s.take(1));
    EXPECT_FALSE(Staging(0).take(1));
    EXPECT_FALSE(Staging(4096).take(0));
}

}  // namespace
}  // namespace nereid::kv::client
