#include "report/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/distributions.h"
#include "report/page.h"
#include "report/plot_frame.h"

namespace nereid::report {
namespace {

// Tags open and close in order, attributes are quoted, no NaN or infinity became a coordinate.
void expect_well_formed(const std::string& svg) {
    std::vector<std::string> open;
    for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
        const std::size_t end = svg.find('>', at);
        ASSERT_NE(end, std::string::npos);
        const std::string tag = svg.substr(at + 1, end - at - 1);
        ASSERT_EQ(std::ranges::count(tag, '"') % 2, 0) << tag;
        if (tag.starts_with('/')) {
            ASSERT_FALSE(open.empty()) << tag;
            ASSERT_EQ(open.back(), tag.substr(1));
            open.pop_back();
        } else if (!tag.ends_with('/')) {
            open.push_back(tag.substr(0, tag.find(' ')));
        }
    }
    EXPECT_TRUE(open.empty());
    for (const char* bad : {"\"nan", "\"inf", "\"-nan", "\"-inf", " nan", " inf", " -nan"})
        EXPECT_EQ(svg.find(bad), std::string::npos) << bad;
}

std::vector<double> values(const std::vector<Tick>& ticks) {
    std::vector<double> v;
    for (const Tick& t : ticks) v.push_back(t.value);
    return v;
}
std::vector<std::string> labels(const std::vector<Tick>& ticks) {
    std::vector<std::string> v;
    for (const Tick& t : ticks) v.push_back(t.label);
    return v;
}

TEST(Ticks, AreRoundNumbers) {
    EXPECT_EQ(labels(linear_ticks(0, 1, 5)),
              (std::vector<std::string>{"0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
    EXPECT_EQ(labels(linear_ticks(-3, 8, 5)), (std::vector<std::string>{"0", "5"}));
    EXPECT_EQ(labels(linear_ticks(0, 250'000, 5)),
              (std::vector<std::string>{"0", "50k", "100k", "150k", "200k", "250k"}));
    EXPECT_EQ(labels(linear_ticks(0, 3e6, 3)), (std::vector<std::string>{"0", "1M", "2M", "3M"}));
    EXPECT_EQ(values(log_ticks(1, 1000, 5)), (std::vector<double>{1, 10, 100, 1000}));
    EXPECT_EQ(labels(log_ticks(2, 40, 6)), (std::vector<std::string>{"2", "5", "10", "20"}));
    EXPECT_TRUE(linear_ticks(1, 1, 5).empty());
    EXPECT_TRUE(log_ticks(0, 5, 5).empty());
    for (const double scale : {1e-7, 1.0, 3e8}) {
        for (double high = 1; high < 10; high += 0.37) {
            const auto ticks = linear_ticks(0, high * scale, 6);
            EXPECT_GE(ticks.size(), 3U) << high * scale;
            EXPECT_LE(ticks.size(), 8U) << high * scale;
            std::set<std::string> distinct;
            for (const Tick& t : ticks) distinct.insert(t.label);
            EXPECT_EQ(distinct.size(), ticks.size()) << high * scale;
        }
    }
}

const double kNan = std::numeric_limits<double>::quiet_NaN();

LinePlot example_lines() {
    LinePlot plot{.title = "Queue <depth> & \"load\"",
                  .x = {.label = "time (s)"},
                  .y = {.label = "requests waiting"},
                  .series = {},
                  .marks = {{20, false, "limit 20"}, {60, true, "worker lost"}}};
    for (int s = 0; s < 3; ++s) {
        XySeries series{.name = fmt::format("policy {}", s), .points = {}, .dashed = s == 2};
        for (int i = 0; i <= 120; ++i) {
            series.points.emplace_back(i,
                                       i == 40 ? kNan : 12 + 6 * s + 5 * std::sin(i / (6.0 + s)));
        }
        plot.series.push_back(series);
    }
    return plot;
}

TEST(Plots, LinesAreWellFormedEscapedAndBroken) {
    const std::string svg = draw(example_lines());
    expect_well_formed(svg);
    EXPECT_NE(svg.find("Queue &lt;depth&gt; &amp; &quot;load&quot;"), std::string::npos);
    EXPECT_NE(svg.find("policy 2"), std::string::npos);
    EXPECT_NE(svg.find("worker lost"), std::string::npos);
    // The gap: two sub-paths in each series.
    const auto path = svg.find("<path d=\"");
    const std::string d = svg.substr(path, svg.find('"', path + 9) - path);
    EXPECT_EQ(std::ranges::count(d, 'M'), 2);
}

TEST(Plots, NothingToShowIsStillAPlot) {
    expect_well_formed(
        draw(LinePlot{.title = "empty", .x = {.label = "x"}, .y = {.label = "y"}, .series = {}}));
    expect_well_formed(
        draw(LinePlot{.title = "log",
                      .x = {.label = "x", .log = true},
                      .y = {.label = "y", .log = true},
                      .series = {{.name = "s", .points = {{-1, 2}, {0, 0}, {kNan, kNan}}}}}));
    expect_well_formed(
        draw(CdfPlot{.title = "empty", .x = {.label = "x"}, .samples = {{"none", {}}}}));
    expect_well_formed(
        draw(BarPlot{.title = "empty", .value = {.label = "v"}, .categories = {}, .series = {}}));
    expect_well_formed(draw(HeatMap{.title = "empty",
                                    .row_label = "rank",
                                    .x = {.label = "t"},
                                    .value_label = "v",
                                    .cells = {}}));
    expect_well_formed(draw(HeatMap{.title = "no value",
                                    .row_label = "rank",
                                    .x = {.label = "t"},
                                    .value_label = "v",
                                    .cells = {{kNan}, {}}}));
    expect_well_formed(
        draw(Timeline{.title = "empty", .x = {.label = "t"}, .kinds = {}, .rows = {}}));
}

TEST(Plots, ManyPointsAreThinnedAndKeepTheirExtremes) {
    LinePlot plot{.title = "long",
                  .x = {.label = "x"},
                  .y = {.label = "y"},
                  .series = {{.name = "s", .points = {}}}};
    for (int i = 0; i < 300'000; ++i)
        plot.series[0].points.emplace_back(i, i == 123'456 ? 1000 : i % 7);
    const std::string svg = draw(plot);
    expect_well_formed(svg);
    EXPECT_LT(svg.size(), 60'000U);
    plot.series[0].points[123'456].second = 5;
    EXPECT_NE(draw(plot), svg);  // the one spike is in it
}

BarPlot example_bars() {
    return {.title = "Goodput by policy",
            .value = {.label = "requests/s within the SLO"},
            .categories = {"round robin", "least requests", "two-term cost"},
            .series = {{"fresh view", {{81}, {86.4}, {97.2, std::pair(95.0, 99.1)}}},
                       {"1 s stale", {{80}, {55.3}, {94.1, std::pair(92.2, 96.0)}}}},
            .marks = {{100, true, "oracle"}}};
}

HeatMap example_heat() {
    HeatMap map{.title = "KV used by rank",
                .row_label = "rank",
                .x = {.label = "time (s)", .min = 0, .max = 600},
                .value_label = "KV (%)",
                .cells = {}};
    for (int r = 0; r < 320; ++r) {
        std::vector<double> row;
        for (int c = 0; c < 1500; ++c)
            row.push_back(r == 100 && c > 700 && c < 900 ? kNan
                                                         : 50 + 40 * std::sin(c / 90.0 + r / 40.0));
        map.cells.push_back(row);
    }
    return map;
}

Timeline example_timeline() {
    Timeline t{.title = "Steps of 24 ranks",
               .x = {.label = "time (ms)"},
               .kinds = {"decode", "prefill", "barrier wait"},
               .rows = {}};
    Prng prng(4);
    for (int r = 0; r < 24; ++r) {
        Timeline::Row row{.name = fmt::format("rank {}", r), .spans = {}};
        for (int step = 0; step < (r == 0 ? 3000 : 40); ++step) {
            const double length = r == 0 ? 2000.0 / 3000 : 50;
            const double begin = step * length;
            const double busy = length * (0.6 + 0.4 * prng.uniform());
            row.spans.push_back({begin, begin + busy, static_cast<std::uint32_t>(prng.below(2))});
            row.spans.push_back({begin + busy, begin + length, 2});
        }
        t.rows.push_back(row);
    }
    return t;
}

TEST(Plots, GridsAndBarsAreWellFormedAndBounded) {
    expect_well_formed(draw(example_bars()));
    const std::string heat = draw(example_heat());
    expect_well_formed(heat);
    EXPECT_LT(heat.size(), 120'000U);
    const std::string timeline = draw(example_timeline());
    expect_well_formed(timeline);
    EXPECT_LT(timeline.size(), 400'000U);
}

TEST(PlotsDeathTest, WrongShapesAreOurBugs) {
    BarPlot bars = example_bars();
    bars.series[0].bars.pop_back();
    EXPECT_DEATH((void)draw(bars), "one bar per category");
    Timeline t = example_timeline();
    t.rows[0].spans[0].kind = 9;
    EXPECT_DEATH((void)draw(t), "unknown kind");
}

TEST(Human, IsReadable) {
    EXPECT_EQ(human(0), "0");
    EXPECT_EQ(human(0.97312), "0.9731");
    EXPECT_EQ(human(-12.5), "-12.5");
    EXPECT_EQ(human(999.96), "1\u2009000");
    EXPECT_EQ(human(1234567), "1\u2009234\u2009567");
    EXPECT_EQ(human(-1234.4), "-1\u2009234");
    EXPECT_EQ(human(1.5e-7), "1.500e-07");
    EXPECT_EQ(human(kNan), "-");
}

TEST(Page, IsSelfContainedAndEscaped) {
    Page page("Report <1>", "policy & plan");
    page.section("One")
        .figures({{"efficiency", human(0.973)}})
        .paragraph("<script>alert(1)</script>");
    page.section("Two").table(
        {.header = {"name", "value"}, .rows = {{"a<b", "12 ms"}, {"c"}}, .caption = "units: ms"});
    page.section("Three").parameters({{"seed", "1"}}).folded("scenario", "a = \"<x>\"");
    const std::string html = page.finish();
    EXPECT_EQ(html.find("<script"), std::string::npos);
    EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
    EXPECT_NE(html.find("<td class=\"n\">12 ms</td>"), std::string::npos);
    EXPECT_NE(html.find("href=\"#s3\""), std::string::npos);
    EXPECT_NE(html.find("img-src data:"), std::string::npos);  // heat maps
    for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
        EXPECT_EQ(html.find(outside), std::string::npos) << outside;
}

// Leaves the page behind for people: open $TMPDIR/nereid_report_demo.html.
TEST(Page, AFullReportStaysSmall) {
    Page page("Demonstration");
    page.section("Plots");
    for (const std::string& svg : {draw(example_lines()), draw(example_bars()),
                                   draw(example_heat()), draw(example_timeline())})
        page.plot(svg, "caption");
    const std::string html = page.finish();
    EXPECT_LT(html.size(), 600'000U);
    // The only address is the name space of SVG, which nobody fetches.
    std::string rest = html;
    for (auto at = rest.find("http://www.w3.org/2000/svg"); at != std::string::npos;
         at = rest.find("http://www.w3.org/2000/svg"))
        rest.erase(at, 26);
    EXPECT_EQ(rest.find("http:"), std::string::npos);
    std::ofstream(testing::TempDir() + "/nereid_report_demo.html") << html;
}

}  // namespace
}  // namespace nereid::report
