// Statistics of measured samples: quantiles, summaries, a mergeable histogram, bootstrap intervals.
//
// Quantiles interpolate linearly between order statistics (Hyndman and Fan 1996, type 7: what numpy
// does by default). NaN in a sample is a CHECK: a missing measurement is left out by the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/prng.h"

namespace nereid::report {

// Precondition: `sorted` is ascending and not empty, q in [0, 1].
double quantile_sorted(std::span<const double> sorted, double q);

struct Summary {
    std::uint64_t n = 0;
    double mean = 0, stddev = 0;  // stddev with n - 1; 0 for n < 2
    double min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// All zeros for an empty sample. Cost: a copy and a sort.
Summary summarize(std::span<const double> values);
Json to_json(const Summary& s);

// Counts in buckets of bounded relative width: any number of samples in fixed memory, quantiles
// within `kRelativeError`, merging is exact. Values <= 0 share one bucket at 0; over 1e18 clamp.
class Histogram {
  public:
    static constexpr double kRelativeError = 0.01;

    Histogram();
    void add(double value, std::uint64_t count = 1);
    void merge(const Histogram& other);
    std::uint64_t count() const { return count_; }
    double sum() const { return sum_; }
    double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
    double min() const { return count_ == 0 ? 0 : min_; }
    double max() const { return count_ == 0 ? 0 : max_; }
    double quantile(double q) const;  // 0 when empty
    // Samples <= value, over all; 0 when empty.
    double share_at_most(double value) const;
    Summary summary() const;  // quantiles within kRelativeError, the rest exact
    // (upper border of the bucket, share of samples at most that) for every non-empty bucket.
    std::vector<std::pair<double, double>> cdf() const;

  private:
    std::vector<std::uint64_t> buckets_;
    std::uint64_t count_ = 0;
    double sum_ = 0, sum_squares_ = 0, min_ = 0, max_ = 0;
};

struct Interval {
    double estimate = 0, low = 0, high = 0;
};
using Statistic = std::function<double(std::span<const double>)>;
double mean(std::span<const double> values);    // 0 when empty
double median(std::span<const double> values);  // 0 when empty

// Percentile bootstrap (Efron 1979): `statistic` over `resamples` samples drawn with replacement.
// An empty sample gives zeros. Cost: resamples * (n + cost of the statistic).
Interval bootstrap(std::span<const double> values, const Statistic& statistic, Prng& prng,
                   double confidence = 0.95, std::uint32_t resamples = 2000);
// The same for mean(a[i] - b[i]). Precondition: equal sizes.
Interval bootstrap_paired_difference(std::span<const double> a, std::span<const double> b,
                                     Prng& prng, double confidence = 0.95,
                                     std::uint32_t resamples = 2000);
Json to_json(const Interval& i);

// A time series of bounded size: values added at rising times fall into equal slots; when the slots
// are used up, neighbours merge and the slot width doubles. Each slot knows mean and maximum.
class Series {
  public:
    // Precondition: slots >= 2 and even, width > 0. An x that is infinite never fits.
    explicit Series(std::size_t slots = 512, double width = 1);
    // `x` may not fall below 0. Weighted mean: weight is e.g. the duration for which y held.
    void add(double x, double y, double weight = 1);
    double width() const { return width_; }
    struct Point {
        double x = 0, mean = 0, max = 0;  // x is the middle of the slot
    };
    std::vector<Point> points() const;  // slots without a value are left out

  private:
    struct Slot {
        double weight = 0, sum = 0, max = 0;
    };
    std::vector<Slot> slots_;
    double width_;
};

}  // namespace nereid::report
