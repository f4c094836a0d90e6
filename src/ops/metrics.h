// Metrics: a registry of counters, gauges and histograms, written out in Prometheus' text format
// 0.0.4.
//
// A component registers its families once, keeps the references it gets, and increments them
// without locks (relaxed atomics) from any thread. There is no global registry: the process owns
// one and passes it in; it outlives all references. The same family may be registered again with
// the same signature (several shards): it is the same family.
//
// Labels are fixed per family, their values come from closed sets (a route, a state; a configured
// model name), never from what a client sends. Two guards keep a mistake from filling memory (case
// O52): a label may list its values, and a family has a cap of series. What does not fit is counted
// in one series whose labels are all "other", and nereid_metrics_series_dropped_total{family}
// counts how often that answer was given.
//
// Names: snake_case, base units, unit last; counters end in _total (CHECK at registration: a wrong
// name is our bug). Registration and with() take a mutex and are for start-up or rare events;
// render() takes it for the whole text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace nereid::ops {

class Counter {
  public:
    void add(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
    std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> value_{0};
};

// A counter of time, shown in seconds. Negative durations are ignored.
class TimeCounter {
  public:
    void add(Duration d) noexcept {
        if (d.count() > 0) value_.fetch_add(d.count(), std::memory_order_relaxed);
    }
    Duration value() const noexcept { return Duration(value_.load(std::memory_order_relaxed)); }

  private:
    std::atomic<std::int64_t> value_{0};  // nanoseconds: 292 years
};

class Gauge {
  public:
    void set(double v) noexcept { value_.store(v, std::memory_order_relaxed); }
    void add(double v) noexcept { value_.fetch_add(v, std::memory_order_relaxed); }
    double value() const noexcept { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<double> value_{0};
};

class Histogram {
  public:
    // `bounds`: upper bounds, rising, finite; the bucket of +Inf is implied.
    explicit Histogram(std::span<const double> bounds);
    void observe(double v) noexcept;  // O(log buckets); NaN is ignored
    void observe(Duration d) noexcept { observe(to_seconds(d)); }

    struct Snapshot {
        std::vector<std::uint64_t> counts;  // per bucket, not cumulative; the last is that of +Inf
        std::uint64_t count = 0;            // their sum
        double sum = 0;  // may be of some observations more or fewer than `count`
    };
    Snapshot snapshot() const;
    std::span<const double> bounds() const { return bounds_; }

  private:
    std::vector<double> bounds_;
    std::vector<std::atomic<std::uint64_t>> counts_;
    std::atomic<double> sum_{0};
};

// Buckets for what Nereid measures. Token gaps follow the GenAI conventions' server buckets,
// widened downwards.
std::span<const double> request_seconds_buckets();  // 1 ms .. 600 s
std::span<const double> token_seconds_buckets();    // 1 ms .. 2.5 s
std::span<const double> short_seconds_buckets();    // 10 us .. 1 s: added latency, steps
std::span<const double> token_count_buckets();      // 1 .. 1,048,576, times 4
std::span<const double> byte_buckets();             // 256 B .. 1 GiB, times 4

struct Label {
    Label(const char* label_name) : name(label_name) {}  // NOLINT(google-explicit-constructor)
    Label(std::string label_name, std::vector<std::string> only)
        : name(std::move(label_name)), values(std::move(only)) {}
    std::string name;
    std::vector<std::string> values =
        {};  // the closed set; empty = any value, up to the family's cap
    bool operator==(const Label&) const = default;
};

class Registry;
namespace detail {
struct FamilyInfo;
}

// Series of one name. A reference stays valid as long as the registry.
template <class T>
class Family {
  public:
    // The series with these label values, in the order of the labels (CHECK on their number).
    T& with(std::initializer_list<std::string_view> values) {
        return with(std::span(values.begin(), values.size()));
    }
    T& with(std::span<const std::string_view> values);

  private:
    friend class Registry;
    Family(Registry& registry, detail::FamilyInfo& info) : registry_(registry), info_(info) {}
    Registry& registry_;
    detail::FamilyInfo& info_;
    std::map<std::vector<std::string>, std::unique_ptr<T>> series_;  // under the registry's mutex
};

class Registry {
  public:
    static constexpr std::size_t kMaxSeries = 200;  // per family, unless said otherwise

    Registry();
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    Counter& counter(std::string_view name, std::string_view help);
    Family<Counter>& counter(std::string_view name, std::string_view help,
                             std::vector<Label> labels, std::size_t max_series = kMaxSeries);
    TimeCounter& time_counter(std::string_view name,
                              std::string_view help);  // name: ..._seconds_total
    Family<TimeCounter>& time_counter(std::string_view name, std::string_view help,
                                      std::vector<Label> labels,
                                      std::size_t max_series = kMaxSeries);
    Gauge& gauge(std::string_view name, std::string_view help);
    Family<Gauge>& gauge(std::string_view name, std::string_view help, std::vector<Label> labels,
                         std::size_t max_series = kMaxSeries);
    // Histogram names end in _seconds, _bytes or _tokens.
    Histogram& histogram(std::string_view name, std::string_view help,
                         std::span<const double> bounds);
    Family<Histogram>& histogram(std::string_view name, std::string_view help,
                                 std::span<const double> bounds, std::vector<Label> labels,
                                 std::size_t max_series = kMaxSeries);

    // `collect` runs before every render, outside the mutex, on the thread that renders: it copies
    // counters that live elsewhere (a pure room's struct, a sink's drops) into its handles.
    void before_render(std::function<void()> collect);

    // The text for GET /metrics; content type "text/plain; version=0.0.4; charset=utf-8". Families
    // by name, series by label values: the same values give the same bytes. Allocates; about 1 us
    // per series.
    std::string render();

  private:
    template <class T>
    friend class Family;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace nereid::ops
