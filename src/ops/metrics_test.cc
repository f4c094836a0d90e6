#include "ops/metrics.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/prng.h"

namespace nereid::ops {
namespace {

// ---------------------------------------------------------------- a reader of text format 0.0.4,
// strict

struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
};
struct FamilyText {
    std::string type;
    std::string help;
    std::vector<Sample> samples;
};

bool name_char(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
           (!first && c >= '0' && c <= '9');
}

class Reader {
  public:
    // Every rule broken is reported through gtest.
    static std::map<std::string, FamilyText> read(std::string_view text) {
        Reader reader;
        EXPECT_TRUE(text.empty() || text.back() == '\n') << "the last line must end";
        while (!text.empty()) {
            const auto end = text.find('\n');
            reader.line(text.substr(0, end));
            text.remove_prefix(end + 1);
        }
        for (auto& [name, family] : reader.families_) reader.check(name, family);
        return reader.families_;
    }

  private:
    void line(std::string_view text) {
        if (text.starts_with("# HELP ")) return help(text.substr(7));
        if (text.starts_with("# TYPE ")) return type(text.substr(7));
        ASSERT_FALSE(text.empty() || text[0] == '#') << text;
        sample(text);
    }
    void help(std::string_view text) {
        const auto space = text.find(' ');
        current_ = text.substr(0, space);
        EXPECT_TRUE(families_.emplace(current_, FamilyText{}).second)
            << "a family comes once and in one piece: " << current_;
        families_[current_].help = unescape(text.substr(space + 1), false);
    }
    void type(std::string_view text) {
        const auto space = text.find(' ');
        EXPECT_EQ(text.substr(0, space), current_);
        families_[current_].type = text.substr(space + 1);
        EXPECT_TRUE(families_[current_].samples.empty()) << "TYPE comes before samples";
    }
    void sample(std::string_view text) {
        Sample s;
        std::size_t at = 0;
        while (at < text.size() && name_char(text[at], at == 0)) ++at;
        s.name = text.substr(0, at);
        if (text[at] == '{') {
            do {
                const std::size_t name = ++at;
                while (name_char(text[at], at == name) && text[at] != ':') ++at;
                const std::string key(text.substr(name, at - name));
                ASSERT_EQ(text.substr(at, 2), "=\"") << text;
                const std::size_t value = at += 2;
                while (text.at(at) != '"') at += text[at] == '\\' ? 2 : 1;
                EXPECT_TRUE(
                    s.labels.emplace(key, unescape(text.substr(value, at - value), true)).second)
                    << text;
                ++at;
            } while (text.at(at) == ',');
            ASSERT_EQ(text[at++], '}') << text;
        }
        ASSERT_EQ(text[at++], ' ') << text;
        s.value = number(text.substr(at));
        EXPECT_TRUE(seen_.insert(std::string(text.substr(0, at))).second)
            << "one series twice: " << text;
        ASSERT_TRUE(s.name == current_ || s.name.starts_with(current_ + "_"))
            << "sample outside its family: " << text;
        families_[current_].samples.push_back(std::move(s));
    }
    static double number(std::string_view text) {
        if (text == "+Inf") return std::numeric_limits<double>::infinity();
        if (text == "-Inf") return -std::numeric_limits<double>::infinity();
        if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
        double v = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
        EXPECT_TRUE(error == std::errc{} && end == text.data() + text.size()) << text;
        return v;
    }
    static std::string unescape(std::string_view text, bool quotes) {
        std::string out;
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\\') {
                out.push_back(text[i]);
                continue;
            }
            const char c = text.at(++i);
            EXPECT_TRUE(c == 'n' || c == '\\' || (c == '"' && quotes)) << text;
            out.push_back(c == 'n' ? '\n' : c);
        }
        return out;
    }
    static void check(const std::string& name, const FamilyText& family) {
        EXPECT_FALSE(family.help.empty()) << name;
        EXPECT_FALSE(family.samples.empty()) << name;
        if (family.type == "histogram") return check_histogram(name, family);
        EXPECT_TRUE(family.type == "counter" || family.type == "gauge") << name;
        for (const Sample& s : family.samples) {
            EXPECT_EQ(s.name, name);
            if (family.type == "counter") {
                EXPECT_GE(s.value, 0) << name;
            }
        }
    }
    static void check_histogram(const std::string& name, const FamilyText& family) {
        double last = -1;
        double last_le = -std::numeric_limits<double>::infinity();
        for (const Sample& s : family.samples) {
            if (s.name == name + "_bucket") {
                const double le = number(s.labels.at("le"));
                EXPECT_GT(le, last_le) << name;
                EXPECT_GE(s.value, last) << name << " buckets are cumulative";
                last = s.value;
                last_le = le;
            } else if (s.name == name + "_count") {
                EXPECT_EQ(last_le, std::numeric_limits<double>::infinity()) << name;
                EXPECT_EQ(s.value, last) << name << " count is the +Inf bucket";
                last = -1;
                last_le = -std::numeric_limits<double>::infinity();
            } else {
                EXPECT_EQ(s.name, name + "_sum");
            }
        }
    }

    std::map<std::string, FamilyText> families_;
    std::set<std::string> seen_;
    std::string current_;
};

double value_of(const std::map<std::string, FamilyText>& families, const std::string& family,
                const std::map<std::string, std::string>& labels = {}) {
    for (const Sample& s : families.at(family).samples) {
        if (s.labels == labels) return s.value;
    }
    ADD_FAILURE() << "no such series of " << family;
    return std::numeric_limits<double>::quiet_NaN();
}

// ---------------------------------------------------------------- tests

TEST(Metrics, TextIsExact) {
    Registry registry;
    auto& requests =
        registry.counter("nereid_requests_total", "Requests by route.", {"route", "code"});
    registry.gauge("nereid_queue_depth", "Requests that wait.").set(2.5);
    registry.time_counter("nereid_busy_seconds_total", "Time spent computing.").add(1500ms);
    const double bounds[] = {0.005, 1};
    auto& latency = registry.histogram("nereid_wait_seconds", "Wait.", bounds);
    requests.with({"models", "200"}).add();
    requests.with({"chat", "200"}).add(41);
    requests.with({"chat", "429"}).add(2);
    latency.observe(5ms);
    latency.observe(0.006);
    latency.observe(7.0);
    EXPECT_EQ(registry.render(),
              "# HELP nereid_busy_seconds_total Time spent computing.\n"
              "# TYPE nereid_busy_seconds_total counter\n"
              "nereid_busy_seconds_total 1.5\n"
              "# HELP nereid_queue_depth Requests that wait.\n"
              "# TYPE nereid_queue_depth gauge\n"
              "nereid_queue_depth 2.5\n"
              "# HELP nereid_requests_total Requests by route.\n"
              "# TYPE nereid_requests_total counter\n"
              "nereid_requests_total{route=\"chat\",code=\"200\"} 41\n"
              "nereid_requests_total{route=\"chat\",code=\"429\"} 2\n"
              "nereid_requests_total{route=\"models\",code=\"200\"} 1\n"
              "# HELP nereid_wait_seconds Wait.\n"
              "# TYPE nereid_wait_seconds histogram\n"
              "nereid_wait_seconds_bucket{le=\"0.005\"} 1\n"
              "nereid_wait_seconds_bucket{le=\"1\"} 2\n"
              "nereid_wait_seconds_bucket{le=\"+Inf\"} 3\n"
              "nereid_wait_seconds_sum 7.011\n"
              "nereid_wait_seconds_count 3\n");
}

TEST(Metrics, EveryShapeReadsBackByTheRules) {
    Registry registry;
    Prng prng(5);
    auto& models = registry.counter("nereid_tokens_total",
                                    "Back\\slash and\nline break, \"quotes\" stay.", {"model"});
    for (const std::string_view name :
         {"plain", "with \"quotes\"", "back\\slash", "line\nbreak", "caf\xc3\xa9", "bad \xff"}) {
        models.with({name}).add(prng.below(100));
    }
    auto& sizes = registry.histogram("nereid_body_bytes", "Bodies.", byte_buckets(), {"route"});
    for (int i = 0; i < 1000; ++i)
        sizes.with({i % 2 == 0 ? "chat" : "files"}).observe(prng.exponential(50'000));
    for (const auto& [name, v] : {std::pair("nereid_a", std::numeric_limits<double>::infinity()),
                                  std::pair("nereid_b", -std::numeric_limits<double>::infinity()),
                                  std::pair("nereid_c", std::numeric_limits<double>::quiet_NaN()),
                                  std::pair("nereid_d", 1e300), std::pair("nereid_e", -0.1)}) {
        registry.gauge(name, "Odd values.").set(v);
    }
    registry.histogram("nereid_empty_seconds", "Nothing yet.", request_seconds_buckets());
    registry.counter("nereid_never_total", "A family without series is not shown.", {"route"});

    const auto families = Reader::read(registry.render());
    EXPECT_EQ(families.at("nereid_tokens_total").help,
              "Back\\slash and\nline break, \"quotes\" stay.");
    std::set<std::string> names;
    for (const Sample& s : families.at("nereid_tokens_total").samples)
        names.insert(s.labels.at("model"));
    EXPECT_EQ(names, (std::set<std::string>{"plain", "with \"quotes\"", "back\\slash",
                                            "line\nbreak", "caf\xc3\xa9", "bad \xef\xbf\xbd"}));
    EXPECT_TRUE(std::isnan(value_of(families, "nereid_c")));
    EXPECT_EQ(value_of(families, "nereid_a"), std::numeric_limits<double>::infinity());
    EXPECT_EQ(value_of(families, "nereid_e"), -0.1);
    EXPECT_FALSE(families.contains("nereid_never_total"));
    EXPECT_EQ(registry.render(), registry.render());
}

TEST(Metrics, SameValuesInAnyOrderGiveTheSameText) {
    Registry a;
    Registry b;
    a.counter("nereid_x_total", "X.", {"k"}).with({"1"}).add();
    a.counter("nereid_x_total", "X.", {"k"}).with({"2"}).add();
    a.gauge("nereid_g", "G.");
    b.gauge("nereid_g", "G.");
    b.counter("nereid_x_total", "X.", {"k"}).with({"2"}).add();
    b.counter("nereid_x_total", "X.", {"k"}).with({"1"}).add();
    EXPECT_EQ(a.render(), b.render());
}

TEST(Metrics, RegisteringAgainGivesTheSameSeries) {
    Registry registry;
    Counter& a = registry.counter("nereid_x_total", "X.");
    Counter& b = registry.counter("nereid_x_total", "X.");
    EXPECT_EQ(&a, &b);
    auto& f = registry.counter("nereid_y_total", "Y.", {"k"});
    EXPECT_EQ(&f.with({"1"}), &f.with({"1"}));
    EXPECT_NE(&f.with({"1"}), &f.with({"2"}));
}

// O52: whatever a mistake puts into a label, memory stays bounded and the loss is seen.
TEST(Metrics, SeriesAreCapped_O52) {
    Registry registry;
    auto& users = registry.counter("nereid_users_total", "By user.", {"user"}, 3);
    for (int i = 0; i < 1000; ++i) users.with({"u" + std::to_string(i)}).add();
    users.with({"u1"}).add(10);
    const auto families = Reader::read(registry.render());
    EXPECT_EQ(families.at("nereid_users_total").samples.size(), 4u);
    EXPECT_EQ(value_of(families, "nereid_users_total", {{"user", "u1"}}), 11);
    EXPECT_EQ(value_of(families, "nereid_users_total", {{"user", "other"}}), 997);
    EXPECT_EQ(value_of(families, "nereid_metrics_series_dropped_total",
                       {{"family", "nereid_users_total"}}),
              997);
}

TEST(Metrics, AClosedSetTakesNothingElse) {
    Registry registry;
    auto& f = registry.counter("nereid_r_total", "R.", {{"route", {"chat", "models"}}, "code"});
    f.with({"chat", "200"}).add();
    f.with({"/etc/passwd", "200"}).add(5);
    const auto families = Reader::read(registry.render());
    EXPECT_EQ(value_of(families, "nereid_r_total", {{"route", "chat"}, {"code", "200"}}), 1);
    EXPECT_EQ(value_of(families, "nereid_r_total", {{"route", "other"}, {"code", "other"}}), 5);
    EXPECT_EQ(
        value_of(families, "nereid_metrics_series_dropped_total", {{"family", "nereid_r_total"}}),
        1);
}

TEST(Metrics, BucketsAreInclusiveAndNanIsIgnored) {
    const double bounds[] = {1, 2};
    Histogram h(bounds);
    for (const double v :
         {-5.0, 1.0, 1.0000001, 2.0, 2.1, std::numeric_limits<double>::quiet_NaN()})
        h.observe(v);
    const auto s = h.snapshot();
    EXPECT_EQ(s.counts, (std::vector<std::uint64_t>{2, 2, 1}));
    EXPECT_EQ(s.count, 5u);
    EXPECT_NEAR(s.sum, 1.1000001, 1e-9);
}

TEST(Metrics, PresetBucketsRise) {
    for (const auto bounds : {request_seconds_buckets(), token_seconds_buckets(),
                              short_seconds_buckets(), token_count_buckets(), byte_buckets()}) {
        EXPECT_EQ(Histogram(bounds).snapshot().counts.size(), bounds.size() + 1);
    }
}

TEST(Metrics, CollectorsRunBeforeTheText) {
    Registry registry;
    Gauge& g = registry.gauge("nereid_late", "Set when asked for.");
    int calls = 0;
    registry.before_render([&] {
        g.set(++calls);
        registry.counter("nereid_made_late_total", "A collector may register.").add();
    });
    EXPECT_EQ(value_of(Reader::read(registry.render()), "nereid_late"), 1);
    EXPECT_EQ(value_of(Reader::read(registry.render()), "nereid_made_late_total"), 2);
}

TEST(MetricsDeathTest, WrongNamesAreOurBugs) {
    Registry registry;
    EXPECT_DEATH(registry.counter("nereid_requests", "No _total."), "nereid_requests");
    EXPECT_DEATH(registry.gauge("nereid_depth_total", "A gauge with _total."),
                 "nereid_depth_total");
    EXPECT_DEATH(registry.gauge("Nereid", "Upper case."), "Nereid");
    EXPECT_DEATH(registry.gauge("nereid_g", ""), "nereid_g");
    EXPECT_DEATH(registry.gauge("nereid_g", "Label le.", {"le"}), "nereid_g");
    EXPECT_DEATH(registry.histogram("nereid_h", "No unit.", byte_buckets()), "nereid_h");
    EXPECT_DEATH(registry.time_counter("nereid_t_total", "No unit."), "nereid_t_total");
    registry.counter("nereid_x_total", "X.", {"k"});
    EXPECT_DEATH(registry.counter("nereid_x_total", "X.", {"other_label"}), "nereid_x_total");
    EXPECT_DEATH(registry.gauge("nereid_x_total", "X.", {"k"}), "nereid_x_total");
    EXPECT_DEATH(registry.counter("nereid_x_total", "X.", {"k"}).with({"a", "b"}),
                 "nereid_x_total");
}

// Nothing is lost between threads, and a text read meanwhile is always right by the rules.
TEST(Metrics, ConcurrentIncrementsAreAllCounted) {
    Registry registry;
    Counter& c = registry.counter("nereid_c_total", "C.");
    TimeCounter& t = registry.time_counter("nereid_t_seconds_total", "T.");
    Gauge& g = registry.gauge("nereid_g", "G.");
    auto& h = registry.histogram("nereid_h_seconds", "H.", request_seconds_buckets(), {"who"});
    constexpr int kThreads = 4;
    constexpr int kEach = 20'000;
    // tidy: allow thread because lock-free counters are tested by threads
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            const std::string who = std::to_string(i % 2);
            for (int n = 0; n < kEach; ++n) {
                c.add();
                t.add(1ms);
                g.add(n % 2 == 0 ? 1 : -1);
                h.with({who}).observe(0.25);
            }
        });
    }
    for (int i = 0; i < 20; ++i) (void)Reader::read(registry.render());
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(c.value(), std::uint64_t{kThreads * kEach});
    EXPECT_EQ(t.value(), kThreads * kEach * 1ms);
    EXPECT_EQ(g.value(), 0);
    for (const std::string_view who : {"0", "1"}) {
        EXPECT_EQ(h.with({who}).snapshot().count, std::uint64_t{kThreads / 2 * kEach});
        EXPECT_EQ(h.with({who}).snapshot().sum, kThreads / 2 * kEach * 0.25);
    }
}

}  // namespace
}  // namespace nereid::ops
