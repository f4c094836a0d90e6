#include "base/prng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace nereid {
namespace {

// From a separate transcription in Python, which gives the published first outputs of splitmix64
// for seed 1234567 (6457827717110365317, 3203168211198807973, ...) and of xoshiro256** for state
// {1,2,3,4} (11520, 0, 1509978240, 1215971899390074240, ...). It pins both algorithms and the
// seeding.
TEST(Prng, ReferenceValues) {
    Prng a(0);
    const std::uint64_t want[] = {0x99ec5f36cb75f2b4u, 0xbf6e1f784956452au, 0x1a5f849d4933e6e0u,
                                  0x6aa594f1262d2d2cu, 0xbba5ad4a1f842e59u};
    for (const std::uint64_t w : want) EXPECT_EQ(a.next(), w);
}

TEST(Prng, SameSeedSameStreamAndForksDiffer) {
    Prng a(7);
    Prng b(7);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
    Prng f = a.fork();
    Prng g = b.fork();
    EXPECT_EQ(f.next(), g.next());
    EXPECT_NE(f.next(), a.next());
}

// Chi-square against uniform; 99.99 % quantile for 9 degrees of freedom is 33.7. Seeds are fixed,
// so this never flakes.
TEST(Prng, BelowIsUniformAlsoForAwkwardBounds) {
    for (const std::uint64_t n : {std::uint64_t{10}, (std::uint64_t{1} << 63) + 12345}) {
        Prng prng(n);
        std::vector<double> seen(10);
        constexpr int kDraws = 100'000;
        for (int i = 0; i < kDraws; ++i) {
            const std::uint64_t v = prng.below(n);
            ASSERT_LT(v, n);
            seen[static_cast<std::size_t>(static_cast<double>(v) / static_cast<double>(n) * 10)] +=
                1;
        }
        double chi = 0;
        for (const double s : seen)
            chi += (s - kDraws / 10.0) * (s - kDraws / 10.0) / (kDraws / 10.0);
        EXPECT_LT(chi, 33.7) << n;
    }
    EXPECT_EQ(Prng(1).below(1), 0u);
}

// Without rejection a multiply maps 2^64 draws onto 3 * 2^62 values so that every third value comes
// twice as often.
TEST(Prng, BelowHasNoModuloBias) {
    Prng prng(8);
    std::array<double, 3> seen{};
    constexpr int kDraws = 30'000;
    for (int i = 0; i < kDraws; ++i) seen[prng.below(std::uint64_t{3} << 62) % 3] += 1;
    for (const double s : seen) EXPECT_NEAR(s, kDraws / 3.0, 400);  // about 5 standard deviations
}

TEST(Prng, UniformAndExponentialHaveTheirMeans) {
    Prng prng(3);
    double sum = 0;
    double exp_sum = 0;
    constexpr int kDraws = 200'000;
    for (int i = 0; i < kDraws; ++i) {
        const double u = prng.uniform();
        ASSERT_GE(u, 0.0);
        ASSERT_LT(u, 1.0);
        sum += u;
        const double e = prng.exponential(2.5);
        ASSERT_GE(e, 0.0);
        ASSERT_TRUE(std::isfinite(e));
        exp_sum += e;
    }
    EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
    EXPECT_NEAR(exp_sum / kDraws, 2.5, 0.03);
    EXPECT_FALSE(Prng(1).chance(0.0));
    EXPECT_TRUE(Prng(1).chance(1.0));
}

// Pinned: answers of a seeded request must not change with a new build.
TEST(Keyed, ValuesArePinned) {
    EXPECT_EQ(keyed_u64(0, 0), 0xa706dd2f4d197e6fu);
    EXPECT_EQ(keyed_u64(42, 7), 0x40dd2b9196388fc1u);
}

TEST(Keyed, NeighboursAreUnrelated) {
    // Flipping one bit of the seed or of the position flips about half of the 64 bits.
    double flipped = 0;
    int pairs = 0;
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        for (std::uint64_t position = 0; position < 16; ++position) {
            for (int bit = 0; bit < 64; ++bit) {
                const auto base = keyed_u64(seed, position);
                flipped += __builtin_popcountll(base ^ keyed_u64(seed ^ (1ull << bit), position));
                flipped += __builtin_popcountll(base ^ keyed_u64(seed, position ^ (1ull << bit)));
                pairs += 2;
            }
        }
    }
    EXPECT_NEAR(flipped / pairs, 32.0, 0.2);

    std::vector<double> u;
    for (std::uint64_t p = 0; p < 10'000; ++p) u.push_back(keyed_uniform(9, p));
    std::sort(u.begin(), u.end());
    double worst = 0;  // Kolmogorov-Smirnov distance; 1.63/sqrt(n) is the 1 % bound
    for (std::size_t i = 0; i < u.size(); ++i) {
        worst = std::max(worst,
                         std::fabs(u[i] - static_cast<double>(i) / static_cast<double>(u.size())));
    }
    EXPECT_LT(worst, 1.63 / 100);
}

}  // namespace
}  // namespace nereid
