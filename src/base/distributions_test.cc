#include "base/distributions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

namespace nereid {
namespace {

struct Moments {
    double mean, deviation;
};

Moments moments(const std::function<double(Prng&)>& draw, std::uint64_t seed) {
    Prng prng(seed);
    constexpr int kDraws = 60'000;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < kDraws; ++i) {
        const double x = draw(prng);
        sum += x;
        squares += x * x;
    }
    const double mean = sum / kDraws;
    return {mean, std::sqrt(squares / kDraws - mean * mean)};
}

struct Row {
    const char* name;
    std::function<double(Prng&)> draw;
    double mean, deviation;
};

TEST(Distributions, MeanAndDeviationAreThoseOfTheTextbook) {
    const Row rows[] = {
        {"normal", [](Prng& p) { return draw_normal(p); }, 0, 1},
        {"log-normal", [](Prng& p) { return draw_log_normal(p, 1, 0.5); }, std::exp(1 + 0.125),
         std::exp(1.125) * std::sqrt(std::exp(0.25) - 1)},
        {"gamma 2.5", [](Prng& p) { return draw_gamma(p, 2.5, 3); }, 7.5, 3 * std::sqrt(2.5)},
        {"gamma 0.3", [](Prng& p) { return draw_gamma(p, 0.3, 2); }, 0.6, 2 * std::sqrt(0.3)},
        {"lomax 5", [](Prng& p) { return draw_lomax(p, 8, 5); }, 2, 2 * std::sqrt(5.0 / 3.0)},
        {"poisson 0.4", [](Prng& p) { return static_cast<double>(draw_poisson(p, 0.4)); }, 0.4,
         std::sqrt(0.4)},
        {"poisson 12", [](Prng& p) { return static_cast<double>(draw_poisson(p, 12)); }, 12,
         std::sqrt(12.0)},
        {"poisson 200", [](Prng& p) { return static_cast<double>(draw_poisson(p, 200)); }, 200,
         std::sqrt(200.0)},
    };
    for (const Row& row : rows) {
        const Moments m = moments(row.draw, 7);
        EXPECT_NEAR(m.mean, row.mean, 0.02 * row.deviation + 0.01) << row.name;
        EXPECT_NEAR(m.deviation, row.deviation, 0.06 * row.deviation) << row.name;
    }
}

TEST(Distributions, PoissonOfZeroIsZero) {
    Prng prng(1);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(draw_poisson(prng, 0), 0U);
}

TEST(Distributions, ZipfFollowsItsLaw) {
    const Zipf zipf(50, 1.1);
    Prng prng(3);
    std::vector<double> seen(50);
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) ++seen[zipf.draw(prng)];
    double total = 0;
    for (std::uint32_t k = 0; k < 50; ++k) {
        EXPECT_NEAR(seen[k] / kDraws, zipf.probability(k), 0.005) << k;
        total += zipf.probability(k);
    }
    EXPECT_NEAR(total, 1, 1e-12);
    EXPECT_NEAR(zipf.probability(0) / zipf.probability(9), std::pow(10, 1.1), 1e-9);
    EXPECT_EQ(Zipf(1, 2).draw(prng), 0U);
}

TEST(Distributions, ShuffleIsAPermutationAndUniform) {
    Prng prng(5);
    std::vector<int> first_place(6);
    for (int round = 0; round < 12'000; ++round) {
        std::vector<int> v(6);
        std::iota(v.begin(), v.end(), 0);
        shuffle(v, prng);
        ++first_place[static_cast<std::size_t>(v[0])];
        std::ranges::sort(v);
        for (int i = 0; i < 6; ++i) ASSERT_EQ(v[static_cast<std::size_t>(i)], i);
    }
    for (const int n : first_place) EXPECT_NEAR(n, 2000, 200);
}

// Workloads and expert loads of recorded studies depend on these values: they are frozen.
TEST(Distributions, ValuesAreFrozen) {
    Prng prng(42);
    const double values[] = {draw_normal(prng), draw_log_normal(prng, 0, 1), draw_gamma(prng, 2, 1),
                             draw_lomax(prng, 1, 2)};
    const double frozen[] = {-0.30326306467873798, 3.8336285755245285, 2.2123456517366793,
                             1.5820615741546122};
    for (int i = 0; i < 4; ++i)
        EXPECT_NEAR(values[i], frozen[i], 1e-12) << fmt::format("{:.17g}", values[i]);
    EXPECT_EQ(draw_poisson(prng, 9), 7U);
    EXPECT_EQ(Zipf(100, 1).draw(prng), 13U);
}

}  // namespace
}  // namespace nereid
