#include "report/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace nereid::report {

double quantile_sorted(std::span<const double> sorted, double q) {
    CHECK(!sorted.empty() && q >= 0 && q <= 1);
    const double at = q * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const std::size_t high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double mean(std::span<const double> values) {
    if (values.empty()) return 0;
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::span<const double> values) {
    if (values.empty()) return 0;
    std::vector<double> sorted(values.begin(), values.end());
    std::ranges::sort(sorted);
    return quantile_sorted(sorted, 0.5);
}

Summary summarize(std::span<const double> values) {
    Summary s;
    if (values.empty()) return s;
    std::vector<double> sorted(values.begin(), values.end());
    for (const double v : sorted) CHECK_MSG(!std::isnan(v), "a sample holds NaN");
    std::ranges::sort(sorted);
    s.n = sorted.size();
    s.mean = mean(sorted);
    double squares = 0;
    for (const double v : sorted) squares += (v - s.mean) * (v - s.mean);
    s.stddev = s.n < 2 ? 0 : std::sqrt(squares / static_cast<double>(s.n - 1));
    s.min = sorted.front();
    s.p50 = quantile_sorted(sorted, 0.50);
    s.p90 = quantile_sorted(sorted, 0.90);
    s.p95 = quantile_sorted(sorted, 0.95);
    s.p99 = quantile_sorted(sorted, 0.99);
    s.max = sorted.back();
    return s;
}

Json to_json(const Summary& s) {
    Json j;
    j.set("n", s.n).set("mean", s.mean).set("stddev", s.stddev).set("min", s.min).set("p50", s.p50);
    return j.set("p90", s.p90).set("p95", s.p95).set("p99", s.p99).set("max", s.max);
}

Json to_json(const Interval& i) {
    Json j;
    return j.set("estimate", i.estimate).set("low", i.low).set("high", i.high);
}

namespace {

// Bucket 0 is <= 0; bucket b > 0 ends at kSmallest * kGrowth^(b - 1). Its geometric middle is
// within sqrt(kGrowth) - 1 < 1 % of every value in it.
constexpr double kSmallest = 1e-9;
constexpr double kLargest = 1e18;
constexpr double kGrowth = 1.0199;

std::size_t bucket_of(double value) {
    if (value <= 0) return 0;
    const double clamped = std::clamp(value, kSmallest, kLargest);
    static const double kPerLog = 1 / std::log(kGrowth);
    return 1 + static_cast<std::size_t>(std::ceil(std::log(clamped / kSmallest) * kPerLog));
}
double bucket_end(std::size_t bucket) {
    return bucket == 0 ? 0 : kSmallest * std::pow(kGrowth, static_cast<double>(bucket - 1));
}

}  // namespace

Histogram::Histogram() : buckets_(bucket_of(kLargest) + 2) {}

void Histogram::add(double value, std::uint64_t count) {
    CHECK_MSG(!std::isnan(value), "a sample holds NaN");
    if (count == 0) return;
    buckets_[bucket_of(value)] += count;
    min_ = count_ == 0 ? value : std::min(min_, value);
    max_ = count_ == 0 ? value : std::max(max_, value);
    count_ += count;
    sum_ += value * static_cast<double>(count);
    sum_squares_ += value * value * static_cast<double>(count);
}

void Histogram::merge(const Histogram& other) {
    if (other.count_ == 0) return;
    min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
    max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
    for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b] += other.buckets_[b];
    count_ += other.count_;
    sum_ += other.sum_;
    sum_squares_ += other.sum_squares_;
}

double Histogram::quantile(double q) const {
    CHECK(q >= 0 && q <= 1);
    if (count_ == 0) return 0;
    const auto rank = static_cast<std::uint64_t>(q * static_cast<double>(count_ - 1));
    std::uint64_t below = 0;
    std::size_t b = 0;
    while (below + buckets_[b] <= rank) below += buckets_[b++];
    const double middle = b == 0 ? 0 : bucket_end(b) / std::sqrt(kGrowth);
    return std::clamp(middle, min_, max_);
}

double Histogram::share_at_most(double value) const {
    if (count_ == 0) return 0;
    const std::size_t last = bucket_of(value);
    std::uint64_t n = 0;
    for (std::size_t b = 0; b <= last; ++b) n += buckets_[b];
    return static_cast<double>(n) / static_cast<double>(count_);
}

Summary Histogram::summary() const {
    Summary s;
    if (count_ == 0) return s;
    const auto n = static_cast<double>(count_);
    s.n = count_;
    s.mean = mean();
    const double variance = count_ < 2 ? 0 : (sum_squares_ - sum_ * sum_ / n) / (n - 1);
    s.stddev = std::sqrt(std::max(0.0, variance));
    s.min = min_;
    s.p50 = quantile(0.50);
    s.p90 = quantile(0.90);
    s.p95 = quantile(0.95);
    s.p99 = quantile(0.99);
    s.max = max_;
    return s;
}

std::vector<std::pair<double, double>> Histogram::cdf() const {
    std::vector<std::pair<double, double>> points;
    std::uint64_t below = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
        if (buckets_[b] == 0) continue;
        below += buckets_[b];
        points.emplace_back(std::min(bucket_end(b), max_),
                            static_cast<double>(below) / static_cast<double>(count_));
    }
    return points;
}

namespace {

Interval percentile_interval(double estimate, std::vector<double>& draws, double confidence) {
    std::ranges::sort(draws);
    return {estimate, quantile_sorted(draws, (1 - confidence) / 2),
            quantile_sorted(draws, (1 + confidence) / 2)};
}

}  // namespace

Interval bootstrap(std::span<const double> values, const Statistic& statistic, Prng& prng,
                   double confidence, std::uint32_t resamples) {
    CHECK(confidence > 0 && confidence < 1 && resamples >= 1);
    if (values.empty()) return {};
    std::vector<double> sample(values.size());
    std::vector<double> draws;
    draws.reserve(resamples);
    for (std::uint32_t r = 0; r < resamples; ++r) {
        for (double& x : sample) x = values[static_cast<std::size_t>(prng.below(values.size()))];
        draws.push_back(statistic(sample));
    }
    return percentile_interval(statistic(values), draws, confidence);
}

Interval bootstrap_paired_difference(std::span<const double> a, std::span<const double> b,
                                     Prng& prng, double confidence, std::uint32_t resamples) {
    CHECK(a.size() == b.size());
    std::vector<double> differences(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) differences[i] = a[i] - b[i];
    return bootstrap(differences, mean, prng, confidence, resamples);
}

Series::Series(std::size_t slots, double width) : slots_(slots), width_(width) {
    CHECK(slots >= 2 && slots % 2 == 0 && width > 0);
}

void Series::add(double x, double y, double weight) {
    CHECK(x >= 0 && weight >= 0);
    while (x >= width_ * static_cast<double>(slots_.size())) {
        for (std::size_t i = 0; i < slots_.size(); i += 2) {
            const Slot a = slots_[i];
            const Slot b = slots_[i + 1];
            Slot merged{a.weight + b.weight, a.sum + b.sum, std::max(a.max, b.max)};
            if (a.weight == 0) merged.max = b.max;
            if (b.weight == 0) merged.max = a.max;
            slots_[i / 2] = merged;
        }
        std::fill(slots_.begin() + static_cast<std::ptrdiff_t>(slots_.size() / 2), slots_.end(),
                  Slot{});
        width_ *= 2;
    }
    if (weight == 0) return;
    Slot& slot = slots_[static_cast<std::size_t>(x / width_)];
    slot.max = slot.weight == 0 ? y : std::max(slot.max, y);
    slot.weight += weight;
    slot.sum += y * weight;
}

std::vector<Series::Point> Series::points() const {
    std::vector<Point> out;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].weight == 0) continue;
        out.push_back({(static_cast<double>(i) + 0.5) * width_, slots_[i].sum / slots_[i].weight,
                       slots_[i].max});
    }
    return out;
}

}  // namespace nereid::report
