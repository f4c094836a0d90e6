#include "gateway/rate_limits.h"

#include <gtest/gtest.h>

#include <array>

namespace nereid::gateway {
namespace {

TEST(RateLimits, EachDialectsNamesAndTimes) {
    const std::array limits{RateLimit{"requests", 10, 3, 250ms},
                            RateLimit{"tokens", 5000, 0, 366s}};
    const WallTime now{1'796'000'000s};
    io::Headers openai;
    add_rate_limits(openai, limits, false, now);
    EXPECT_EQ(openai.get("x-ratelimit-limit-requests"), "10");
    EXPECT_EQ(openai.get("x-ratelimit-remaining-requests"), "3");
    EXPECT_EQ(openai.get("x-ratelimit-reset-requests"), "250ms");
    EXPECT_EQ(openai.get("x-ratelimit-remaining-tokens"), "0");
    EXPECT_EQ(openai.get("x-ratelimit-reset-tokens"), "6m6s");
    io::Headers anthropic;
    add_rate_limits(anthropic, limits, true, now);
    EXPECT_EQ(anthropic.get("anthropic-ratelimit-requests-limit"), "10");
    EXPECT_EQ(anthropic.get("anthropic-ratelimit-requests-reset"), "2026-11-30T00:53:21Z");
    EXPECT_EQ(anthropic.get("anthropic-ratelimit-tokens-reset"), "2026-11-30T00:59:26Z");
}

}  // namespace
}  // namespace nereid::gateway
