// Plots as SVG text, to be put into a Page (report/page.h): lines, cumulative distributions, bars,
// a heat map, timelines of ranks.
//
// Pure functions. Colours are CSS variables that the page sets for light and dark; a plot alone
// carries fall-backs and can be saved as an .svg file. Every plot has a title, axes with unit,
// round ticks and, with two or more series, a legend. Non-finite values are gaps. Texts are escaped
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nereid::report {

struct Axis {
    std::string label;  // with unit: "time to first token (ms)"
    bool log = false;   // values <= 0 are left out
    std::optional<double> min = {};
    std::optional<double> max = {};
};

struct XySeries {
    std::string name;
    std::vector<std::pair<double, double>> points;  // x ascending
    bool dashed = false;
    bool steps = false;    // hold y until the next x
    bool markers = false;  // a dot at each point
};

// A horizontal or vertical reference line ("SLO 200 ms").
struct Mark {
    double at = 0;
    bool vertical = false;
    std::string label;
};

struct PlotSize {
    int width = 760;
    int height = 320;
};

struct LinePlot {
    std::string title;
    Axis x, y;
    std::vector<XySeries> series;
    std::vector<Mark> marks = {};
    PlotSize size = {};
};
std::string draw(const LinePlot& plot);

// Empirical distribution functions of samples; long ones are thinned to 400 points each.
struct CdfPlot {
    std::string title;
    Axis x;
    std::vector<std::pair<std::string, std::vector<double>>> samples;
    std::vector<Mark> marks = {};
    PlotSize size = {};
};
std::string draw(const CdfPlot& plot);

// Groups of horizontal bars: one group per category, one bar per series; optional intervals.
struct BarPlot {
    struct Bar {
        double value = 0;
        std::optional<std::pair<double, double>> interval = {};
    };
    struct Series {
        std::string name;
        std::vector<Bar> bars;  // one per category
    };
    std::string title;
    Axis value;
    std::vector<std::string> categories;
    std::vector<Series> series;
    std::vector<Mark> marks = {};  // at values
    int width = 760;
};
std::string draw(const BarPlot& plot);

// cells[row][column]; rows top to bottom (ranks), columns left to right (time). Larger than about
// 400 x 160 cells is reduced by maximum. NaN is no value.
struct HeatMap {
    std::string title;
    std::string row_label;    // "rank"
    Axis x;                   // min and max say what the columns span
    std::string value_label;  // "KV used (%)"
    std::vector<std::vector<double>> cells;
    std::vector<std::string> row_names = {};   // empty: 0, 1, ...
    std::optional<double> min = {}, max = {};  // of the colour scale
    PlotSize size = {};
};
std::string draw(const HeatMap& plot);

// Rows of coloured intervals: what each rank did when.
struct Timeline {
    struct Span {
        double from = 0, to = 0;
        std::uint32_t kind = 0;  // index into kinds
    };
    struct Row {
        std::string name;
        std::vector<Span> spans;  // ascending, disjoint
    };
    std::string title;
    Axis x;
    std::vector<std::string> kinds;
    std::vector<Row> rows;
    int width = 760;
};
std::string draw(const Timeline& plot);

}  // namespace nereid::report
