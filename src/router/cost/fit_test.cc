#include "router/cost/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/prng.h"

namespace nereid::router {
namespace {

double noisy(Prng& prng, double ms, double spread) {
    return ms * (1 + spread * (2 * prng.uniform() - 1));
}

TEST(CostFit, FindsThePrefillModel) {
    const PrefillCost truth{.fixed_ms = 8, .per_token_ms = 0.12, .per_token_context_ms = 3e-6};
    CostFit fit({});
    Prng prng(1);
    for (int i = 0; i < 2000; ++i) {
        const auto uncached = static_cast<TokenCount>(10 + prng.exponential(3000));
        const auto cached =
            static_cast<TokenCount>(prng.chance(0.5) ? prng.exponential(20'000) : 0);
        fit.observe_prefill(uncached, cached, noisy(prng, truth.ms(uncached, cached), 0.1));
    }
    for (const TokenCount u : {50u, 1000u, 20'000u}) {
        for (const TokenCount c : {0u, 10'000u, 60'000u}) {
            EXPECT_NEAR(fit.model().prefill.ms(u, c) / truth.ms(u, c), 1, 0.05) << u << " " << c;
        }
    }
}

TEST(CostFit, FindsTheDecodeModelAndFollowsAChange) {
    DecodeCost truth{.fixed_ms = 20, .per_request_ms = 0.1, .per_kv_token_ms = 4e-5};
    CostFit fit({});
    Prng prng(2);
    const auto feed = [&](int n) {
        for (int i = 0; i < n; ++i) {
            const double requests = 1 + static_cast<double>(prng.below(120));
            const double kv = requests * (1000 + prng.exponential(4000));
            fit.observe_decode(requests, kv, noisy(prng, truth.step_ms(requests, kv), 0.05));
        }
    };
    feed(3000);
    EXPECT_NEAR(fit.model().decode.step_ms(80, 400'000) / truth.step_ms(80, 400'000), 1, 0.03);
    EXPECT_NEAR(fit.model().decode.per_kv_token_ms / truth.per_kv_token_ms, 1, 0.15);
    truth.per_kv_token_ms *= 1.5;  // another kernel
    feed(6000);
    EXPECT_NEAR(fit.model().decode.step_ms(80, 400'000) / truth.step_ms(80, 400'000), 1, 0.03);
}

// R42: a cold start or a stall does not poison the model; a changed world is learnt all the same.
TEST(CostFit, R42_OutliersAreDroppedAndAChangedWorldIsLearnt) {
    const DecodeCost truth{.fixed_ms = 20, .per_request_ms = 0.1, .per_kv_token_ms = 4e-5};
    CostFit fit({});
    Prng prng(3);
    const auto feed = [&](int n, double times) {
        for (int i = 0; i < n; ++i) {
            const double requests = 1 + static_cast<double>(prng.below(100));
            const double kv = requests * 3000;
            fit.observe_decode(requests, kv, times * truth.step_ms(requests, kv));
        }
    };
    feed(500, 1);
    const double before = fit.model().decode.step_ms(50, 150'000);
    feed(20, 50);
    EXPECT_EQ(fit.dropped(), 20u);
    EXPECT_EQ(fit.model().decode.step_ms(50, 150'000), before);
    EXPECT_FALSE(fit.observe_decode(10, 1000, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(fit.observe_decode(10, 1000, -1));
    EXPECT_FALSE(fit.observe_decode(0, 1000, 1));
    EXPECT_FALSE(fit.observe_decode(10, std::numeric_limits<double>::infinity(), 10));
    feed(3000, 8);  // it stays so: another machine
    EXPECT_NEAR(fit.model().decode.step_ms(50, 150'000) / before, 8, 1);
}

TEST(CostFit, PropertyParametersStayInBoundsWhateverComes) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Prng prng(seed);
        CostFit fit({});
        for (int i = 0; i < 3000; ++i) {
            const auto u = static_cast<TokenCount>(prng.below(200'000));
            fit.observe_prefill(u, static_cast<TokenCount>(prng.below(200'000)),
                                prng.exponential(1000));
            fit.observe_decode(static_cast<double>(prng.below(300)), prng.exponential(1e6),
                               prng.exponential(100));
            fit.observe_encode(static_cast<double>(prng.below(20'000)), prng.exponential(100));
            fit.observe_transfer(u, prng.exponential(10));
            const CostModel& m = fit.model();
            for (const double p :
                 {m.prefill.fixed_ms, m.prefill.per_token_ms, m.prefill.per_token_context_ms,
                  m.decode.fixed_ms, m.decode.per_request_ms, m.decode.per_kv_token_ms,
                  m.encode.fixed_ms, m.encode.per_patch_ms, m.transfer.latency_ms,
                  m.transfer.bytes_per_ms}) {
                ASSERT_TRUE(std::isfinite(p) && p >= 0);
            }
            ASSERT_GE(m.prefill.ms(u, 0), 0);
        }
    }
}

TEST(CostFit, TransferAndEncode) {
    CostFit fit({});
    Prng prng(4);
    const TransferCost truth{.latency_ms = 3, .bytes_per_ms = 1e6, .kv_bytes_per_token = 2e3};
    const EncodeCost encode{.fixed_ms = 5, .per_patch_ms = 0.05};
    for (int i = 0; i < 2000; ++i) {
        const auto tokens = static_cast<TokenCount>(1 + prng.below(50'000));
        fit.observe_transfer(tokens, truth.ms(tokens));
        const double patches = 1 + static_cast<double>(prng.below(9000));
        fit.observe_encode(patches, encode.ms(patches));
    }
    EXPECT_NEAR(fit.model().transfer.ms(20'000) / truth.ms(20'000), 1, 0.02);
    EXPECT_NEAR(fit.model().encode.ms(4000) / encode.ms(4000), 1, 0.02);
}

}  // namespace
}  // namespace nereid::router
