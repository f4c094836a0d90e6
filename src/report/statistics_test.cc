#include "report/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/distributions.h"

namespace nereid::report {
namespace {

// numpy.quantile([3, 1, 4, 1, 5, 9, 2, 6], q) for q = 0, .25, .5, .9, .99, 1.
TEST(Quantile, IsNumpysDefault) {
    const std::vector<double> sorted = {1, 1, 2, 3, 4, 5, 6, 9};
    EXPECT_DOUBLE_EQ(quantile_sorted(sorted, 0), 1);
    EXPECT_DOUBLE_EQ(quantile_sorted(sorted, 0.25), 1.75);
    EXPECT_DOUBLE_EQ(quantile_sorted(sorted, 0.5), 3.5);
    EXPECT_NEAR(quantile_sorted(sorted, 0.9), 6.9, 1e-12);
    EXPECT_NEAR(quantile_sorted(sorted, 0.99), 8.79, 1e-12);
    EXPECT_DOUBLE_EQ(quantile_sorted(sorted, 1), 9);
    EXPECT_DOUBLE_EQ(quantile_sorted(std::vector{7.0}, 0.3), 7);
}

TEST(Summary, OfASample) {
    const std::vector<double> values = {3, 1, 4, 1, 5, 9, 2, 6};
    const Summary s = summarize(values);
    EXPECT_EQ(s.n, 8U);
    EXPECT_DOUBLE_EQ(s.mean, 3.875);
    EXPECT_NEAR(s.stddev, 2.748376, 1e-6);
    EXPECT_DOUBLE_EQ(s.min, 1);
    EXPECT_DOUBLE_EQ(s.p50, 3.5);
    EXPECT_DOUBLE_EQ(s.max, 9);
    EXPECT_EQ(summarize({}).n, 0U);
    EXPECT_EQ(to_json(s).find("p50")->as_double(), 3.5);
}

TEST(SummaryDeathTest, NanIsRefused) {
    EXPECT_DEATH((void)summarize(std::vector{1.0, std::nan("")}), "NaN");
}

TEST(Histogram, AgreesWithTheExactSummaryWithinItsError) {
    Prng prng(1);
    Histogram histogram, first, second;
    std::vector<double> values;
    for (int i = 0; i < 20'000; ++i) {
        const double v = draw_log_normal(prng, 3, 1.5);
        values.push_back(v);
        histogram.add(v);
        (i % 3 == 0 ? first : second).add(v);
    }
    first.merge(second);
    const Summary exact = summarize(values);
    for (const Histogram* h : {&histogram, &first}) {
        const Summary s = h->summary();
        EXPECT_EQ(s.n, exact.n);
        EXPECT_NEAR(s.mean, exact.mean, 1e-9 * exact.mean);
        EXPECT_NEAR(s.stddev, exact.stddev, 1e-6 * exact.stddev);
        EXPECT_EQ(s.min, exact.min);
        EXPECT_EQ(s.max, exact.max);
        EXPECT_NEAR(s.p50, exact.p50, 1.05 * Histogram::kRelativeError * exact.p50);
        EXPECT_NEAR(s.p99, exact.p99, 1.05 * Histogram::kRelativeError * exact.p99);
    }
    EXPECT_NEAR(histogram.share_at_most(exact.p90), 0.9, 0.01);
    const auto cdf = histogram.cdf();
    EXPECT_DOUBLE_EQ(cdf.back().second, 1);
    EXPECT_TRUE(std::ranges::is_sorted(cdf));
}

TEST(Histogram, ZeroNegativeAndHugeValuesHaveAPlace) {
    Histogram h;
    EXPECT_EQ(h.quantile(0.5), 0);
    for (const double v : {-5.0, 0.0, 1e-30, 1e300, 3.0}) h.add(v);
    EXPECT_EQ(h.count(), 5U);
    EXPECT_EQ(h.quantile(0), 0);
    EXPECT_EQ(h.min(), -5);
    EXPECT_EQ(h.max(), 1e300);
    EXPECT_GE(h.quantile(1), 9e17);
    EXPECT_DOUBLE_EQ(h.share_at_most(1), 0.6);
    h.add(7, 0);
    EXPECT_EQ(h.count(), 5U);
}

TEST(Bootstrap, CoversTheMeanAsOftenAsItSays) {
    Prng prng(2);
    int covered = 0;
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
        std::vector<double> values;
        for (int i = 0; i < 60; ++i) values.push_back(10 + draw_normal(prng));
        const Interval i = bootstrap(values, mean, prng, 0.9, 300);
        EXPECT_LE(i.low, i.estimate);
        EXPECT_GE(i.high, i.estimate);
        covered += i.low <= 10 && 10 <= i.high ? 1 : 0;
    }
    EXPECT_NEAR(covered, 0.9 * kRounds, 16);
}

TEST(Bootstrap, PairedDifferenceSeesWhatIsCommonGoAway) {
    Prng prng(3);
    std::vector<double> a, b;
    for (int i = 0; i < 40; ++i) {
        const double common = 100 * prng.uniform();
        a.push_back(common + 1 + 0.1 * draw_normal(prng));
        b.push_back(common);
    }
    const Interval i = bootstrap_paired_difference(a, b, prng);
    EXPECT_NEAR(i.estimate, 1, 0.1);
    EXPECT_GT(i.low, 0.9);
    EXPECT_LT(i.high, 1.1);
    EXPECT_EQ(bootstrap({}, median, prng).estimate, 0);
}

TEST(Series, KeepsMeanAndMaximumWhileItGrowsCoarser) {
    Series series(8, 1);
    double area = 0;
    for (int i = 0; i < 1000; ++i) {
        const double y = i % 10;
        series.add(i, y, 2);
        area += y * 2;
    }
    EXPECT_EQ(series.width(), 128);
    const auto points = series.points();
    ASSERT_EQ(points.size(), 8U);
    double sum = 0;
    for (const auto& p : points) {
        EXPECT_EQ(p.max, 9);
        EXPECT_NEAR(p.mean, 4.5, 0.2);
        sum += p.mean * (p.x > 900 ? 1000 - 896 : 128) * 2;
    }
    EXPECT_NEAR(sum, area, 1e-6);
}

TEST(Series, LeavesOutSlotsWithoutAValue) {
    Series series(4, 1);
    series.add(0, -3);
    series.add(3.5, -1);
    series.add(2, 100, 0);
    const auto points = series.points();
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(points[0].max, -3);
    EXPECT_EQ(points[1].x, 3.5);
}

}  // namespace
}  // namespace nereid::report
