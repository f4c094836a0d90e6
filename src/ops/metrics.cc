#include "ops/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/utf8.h"

namespace nereid::ops {

namespace detail {
struct FamilyInfo {
    std::string name;
    std::string help;
    std::string_view type;  // counter, gauge, histogram
    std::vector<Label> labels;
    std::vector<double> bounds;  // histogram
    std::size_t max_series = 0;
    Counter* dropped =
        nullptr;  // of nereid_metrics_series_dropped_total, made at the first drop; under the mutex
};
}  // namespace detail

namespace {

using detail::FamilyInfo;

constexpr std::string_view kOther = "other";
constexpr std::string_view kDroppedName = "nereid_metrics_series_dropped_total";

// ---------------------------------------------------------------- names

bool is_snake_case(std::string_view name) {
    if (name.empty() || name[0] < 'a' || name[0] > 'z') return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
}

void check_names(const FamilyInfo& info) {
    CHECK_MSG(is_snake_case(info.name), info.name);
    CHECK_MSG(!info.help.empty(), info.name);
    const bool total = info.name.ends_with("_total");
    CHECK_MSG((info.type == "counter") == total, info.name);
    if (info.type == "histogram") {
        CHECK_MSG(info.name.ends_with("_seconds") || info.name.ends_with("_bytes") ||
                      info.name.ends_with("_tokens"),
                  info.name);
    }
    for (const Label& label : info.labels) {
        CHECK_MSG(is_snake_case(label.name) && !label.name.starts_with("__") && label.name != "le",
                  info.name);
    }
}

bool same_signature(const FamilyInfo& a, const FamilyInfo& b) {
    return a.help == b.help && a.type == b.type && a.labels == b.labels && a.bounds == b.bounds &&
           a.max_series == b.max_series;
}

// ---------------------------------------------------------------- text format 0.0.4

void append_number(std::string& out, double v) {
    if (std::isnan(v)) {
        out.append("NaN");
    } else if (std::isinf(v)) {
        out.append(v > 0 ? "+Inf" : "-Inf");
    } else {
        char raw[40];
        out.append(raw, std::to_chars(raw, raw + sizeof raw, v).ptr);
    }
}

void append_number(std::string& out, std::uint64_t v) {
    char raw[24];
    out.append(raw, std::to_chars(raw, raw + sizeof raw, v).ptr);
}

// A label's value escapes quotes too; a help text must not.
void append_escaped(std::string& out, std::string_view text, bool quotes) {
    for (const char c : text) {
        if (c == '\n')
            out.append("\\n");
        else if (c == '\\' || (c == '"' && quotes))
            out.append(1, '\\').append(1, c);
        else
            out.push_back(c);
    }
}

// name{a="x",b="y",le="0.1"}, then a space. `le` is nullptr where there is none.
void append_series(std::string& out, const FamilyInfo& info, std::string_view suffix,
                   const std::vector<std::string>& values, const double* le = nullptr) {
    out.append(info.name).append(suffix);
    char open = '{';
    for (std::size_t i = 0; i < values.size(); ++i) {
        out.append(1, std::exchange(open, ',')).append(info.labels[i].name).append("=\"");
        append_escaped(out, values[i], true);
        out.push_back('"');
    }
    if (le != nullptr) {
        out.append(1, std::exchange(open, ',')).append("le=\"");
        append_number(out, *le);
        out.push_back('"');
    }
    out.append(open == '{' ? " " : "} ");
}

void append_metric(std::string& out, const FamilyInfo& info, const std::vector<std::string>& values,
                   const Counter& c) {
    append_series(out, info, "", values);
    append_number(out, c.value());
    out.push_back('\n');
}
void append_metric(std::string& out, const FamilyInfo& info, const std::vector<std::string>& values,
                   const TimeCounter& c) {
    append_series(out, info, "", values);
    append_number(out, to_seconds(c.value()));
    out.push_back('\n');
}
void append_metric(std::string& out, const FamilyInfo& info, const std::vector<std::string>& values,
                   const Gauge& g) {
    append_series(out, info, "", values);
    append_number(out, g.value());
    out.push_back('\n');
}
void append_metric(std::string& out, const FamilyInfo& info, const std::vector<std::string>& values,
                   const Histogram& h) {
    const Histogram::Snapshot snapshot = h.snapshot();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < snapshot.counts.size(); ++i) {
        cumulative += snapshot.counts[i];
        const double le = i < h.bounds().size() ? h.bounds()[i] : kInfinity;
        append_series(out, info, "_bucket", values, &le);
        append_number(out, cumulative);
        out.push_back('\n');
    }
    append_series(out, info, "_sum", values);
    append_number(out, snapshot.sum);
    out.push_back('\n');
    append_series(out, info, "_count", values);
    append_number(out, snapshot.count);
    out.push_back('\n');
}

template <class T>
std::unique_ptr<T> make_metric(const FamilyInfo& info) {
    if constexpr (std::is_same_v<T, Histogram>)
        return std::make_unique<T>(info.bounds);
    else
        return std::make_unique<T>();
}

}  // namespace

// ---------------------------------------------------------------- histogram

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        CHECK_MSG(std::isfinite(bounds_[i]) && (i == 0 || bounds_[i - 1] < bounds_[i]),
                  "histogram bounds must rise");
    }
}

void Histogram::observe(double v) noexcept {
    if (std::isnan(v)) return;
    // The first bucket whose bound is >= v: `le` is inclusive.
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin();
    counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(v, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::snapshot() const {
    Snapshot s;
    s.counts.reserve(counts_.size());
    for (const auto& c : counts_) {
        s.counts.push_back(c.load(std::memory_order_relaxed));
        s.count += s.counts.back();
    }
    s.sum = sum_.load(std::memory_order_relaxed);
    return s;
}

std::span<const double> request_seconds_buckets() {
    static constexpr double kBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                         2.5,   5,      10,    20,   40,    60,   120, 300,  600};
    return kBounds;
}
std::span<const double> token_seconds_buckets() {
    static constexpr double kBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                         0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5};
    return kBounds;
}
std::span<const double> short_seconds_buckets() {
    static constexpr double kBounds[] = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025,
                                         0.0005,  0.001,    0.0025,  0.005,  0.01,
                                         0.025,   0.05,     0.1,     0.25,   1};
    return kBounds;
}
std::span<const double> token_count_buckets() {
    static constexpr double kBounds[] = {1,    4,     16,    64,     256,    1024,
                                         4096, 16384, 65536, 262144, 1048576};
    return kBounds;
}
std::span<const double> byte_buckets() {
    static constexpr double kBounds[] = {256,      1024,     4096,      16384,
                                         65536,    262144,   1048576,   4194304,
                                         16777216, 67108864, 268435456, 1073741824};
    return kBounds;
}

// ---------------------------------------------------------------- registry

struct Registry::Impl {
    template <class T>
    struct Entry {
        FamilyInfo info;
        Family<T> family;
        Entry(Registry& registry, FamilyInfo i) : info(std::move(i)), family(registry, info) {}
    };
    template <class T>
    using Owned = std::unique_ptr<Entry<T>>;
    using AnyEntry =
        std::variant<Owned<Counter>, Owned<TimeCounter>, Owned<Gauge>, Owned<Histogram>>;

    std::mutex mutex;
    std::map<std::string, AnyEntry, std::less<>> families;  // under mutex
    std::vector<std::function<void()>> collectors;          // under mutex
    Family<Counter>* dropped = nullptr;

    template <class T>
    Family<T>& family(Registry& registry, FamilyInfo info) {
        check_names(info);
        const std::scoped_lock lock(mutex);
        auto it = families.find(info.name);
        if (it == families.end()) {
            std::string name = info.name;
            it =
                families
                    .emplace(std::move(name), std::make_unique<Entry<T>>(registry, std::move(info)))
                    .first;
            return std::get<Owned<T>>(it->second)->family;
        }
        auto* entry = std::get_if<Owned<T>>(&it->second);
        CHECK_MSG(entry != nullptr && same_signature((*entry)->info, info), it->first);
        return (*entry)->family;
    }

    // Precondition: mutex is held.
    template <class T>
    T& series(FamilyInfo& info, std::map<std::vector<std::string>, std::unique_ptr<T>>& all,
              std::span<const std::string_view> values) {
        CHECK_MSG(values.size() == info.labels.size(), info.name);
        std::vector<std::string> key;
        key.reserve(values.size());
        bool fits = true;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto& closed = info.labels[i].values;
            fits = fits && (closed.empty() ||
                            std::find(closed.begin(), closed.end(), values[i]) != closed.end());
            key.push_back(replace_invalid_utf8(values[i]));
        }
        if (const auto it = all.find(key); it != all.end()) return *it->second;
        if (!fits || all.size() >= info.max_series) {
            count_drop(info);
            key.assign(values.size(), std::string(kOther));
        }
        auto& slot = all[std::move(key)];
        if (!slot) slot = make_metric<T>(info);
        return *slot;
    }

    void count_drop(FamilyInfo& info) {
        if (info.name == kDroppedName) return;
        if (info.dropped == nullptr) {
            const std::string_view name = info.name;
            info.dropped = &series(dropped->info_, dropped->series_, std::span(&name, 1));
        }
        info.dropped->add();
    }

    void render(std::string& out) {
        const std::scoped_lock lock(mutex);
        for (const auto& [name, any] : families) {
            std::visit(
                [&](const auto& entry) {
                    if (entry->family.series_.empty()) return;
                    out.append("# HELP ").append(name).append(1, ' ');
                    append_escaped(out, entry->info.help, false);
                    out.append("\n# TYPE ")
                        .append(name)
                        .append(1, ' ')
                        .append(entry->info.type)
                        .append(1, '\n');
                    for (const auto& [values, metric] : entry->family.series_) {
                        append_metric(out, entry->info, values, *metric);
                    }
                },
                any);
        }
    }
};

template <class T>
T& Family<T>::with(std::span<const std::string_view> values) {
    const std::scoped_lock lock(registry_.impl_->mutex);
    return registry_.impl_->series(info_, series_, values);
}
template class Family<Counter>;
template class Family<TimeCounter>;
template class Family<Gauge>;
template class Family<Histogram>;

Registry::Registry() : impl_(std::make_unique<Impl>()) {
    impl_->dropped = &counter(
        kDroppedName,
        "Label values that did not fit a family's closed set or cap and were counted as \"other\".",
        {"family"}, 1000);
}
Registry::~Registry() = default;

namespace {

FamilyInfo info_of(std::string_view name, std::string_view help, std::string_view type,
                   std::vector<Label> labels, std::size_t max_series,
                   std::span<const double> bounds = {}) {
    CHECK_MSG(max_series >= 1, name);
    return {std::string(name),
            replace_invalid_utf8(help),
            type,
            std::move(labels),
            {bounds.begin(), bounds.end()},
            max_series,
            nullptr};
}

}  // namespace

Counter& Registry::counter(std::string_view name, std::string_view help) {
    return counter(name, help, {}).with({});
}
Family<Counter>& Registry::counter(std::string_view name, std::string_view help,
                                   std::vector<Label> labels, std::size_t max_series) {
    return impl_->family<Counter>(*this,
                                  info_of(name, help, "counter", std::move(labels), max_series));
}

TimeCounter& Registry::time_counter(std::string_view name, std::string_view help) {
    return time_counter(name, help, {}).with({});
}
Family<TimeCounter>& Registry::time_counter(std::string_view name, std::string_view help,
                                            std::vector<Label> labels, std::size_t max_series) {
    CHECK_MSG(name.ends_with("_seconds_total"), name);
    return impl_->family<TimeCounter>(
        *this, info_of(name, help, "counter", std::move(labels), max_series));
}

Gauge& Registry::gauge(std::string_view name, std::string_view help) {
    return gauge(name, help, {}).with({});
}
Family<Gauge>& Registry::gauge(std::string_view name, std::string_view help,
                               std::vector<Label> labels, std::size_t max_series) {
    return impl_->family<Gauge>(*this, info_of(name, help, "gauge", std::move(labels), max_series));
}

Histogram& Registry::histogram(std::string_view name, std::string_view help,
                               std::span<const double> bounds) {
    return histogram(name, help, bounds, {}).with({});
}
Family<Histogram>& Registry::histogram(std::string_view name, std::string_view help,
                                       std::span<const double> bounds, std::vector<Label> labels,
                                       std::size_t max_series) {
    return impl_->family<Histogram>(
        *this, info_of(name, help, "histogram", std::move(labels), max_series, bounds));
}

void Registry::before_render(std::function<void()> collect) {
    const std::scoped_lock lock(impl_->mutex);
    impl_->collectors.push_back(std::move(collect));
}

std::string Registry::render() {
    std::vector<std::function<void()>> collectors;
    {
        const std::scoped_lock lock(impl_->mutex);
        collectors = impl_->collectors;
    }
    for (const auto& collect : collectors) collect();
    std::string out;
    impl_->render(out);
    return out;
}

}  // namespace nereid::ops
