// Internal to plots: scales and ticks, SVG text, the frame with axes, title and legend.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/plot.h"

namespace nereid::report {

struct Tick {
    double value;
    std::string label;
};
// Round steps of 1, 2, 5 x 10^k; about `wanted` of them within [min, max].
std::vector<Tick> linear_ticks(double min, double max, int wanted);
// Decades, with 2 and 5 between them when there are few.
std::vector<Tick> log_ticks(double min, double max, int wanted);

// Maps values to pixels.
struct Scale {
    double min = 0, max = 1;
    bool log = false;
    double from = 0, to = 1;  // pixels of min and max
    double at(double value) const;
    bool shows(double value) const;  // finite, and positive on a log scale
    std::vector<Tick> ticks(int wanted) const;
};
// The range of values, widened to round ticks, as the axis wants it. `zero`: linear axes of
// non-negative values begin at 0.
Scale make_scale(const Axis& axis, double low, double high, bool zero);

// style="..." with the colour of a series, or of "ink", "soft", "line", "mark".
std::string series_colour(std::size_t index);
std::string named_colour(std::string_view name);

enum class Anchor : std::uint8_t { kStart, kMiddle, kEnd };
void text(std::string& out, double x, double y, std::string_view s, Anchor anchor,
          std::string_view colour = "ink", std::string_view extra = {});
double text_width(std::string_view s);  // an estimate at 12 px
void line(std::string& out, double x0, double y0, double x1, double y1, std::string_view colour,
          std::string_view extra = {});

std::string open_svg(int width, int height, std::string_view title);  // with the title drawn
// Swatches under the title; returns the y below the last row. Nothing for fewer than two names.
double legend(std::string& out, const std::vector<std::string>& names, int width,
              const std::vector<bool>& dashed = {});

// Places axes and grid: `left` holds the longest tick label of y; x and y get their pixel ranges.
struct Frame {
    double left, top, right, bottom;
};
Frame draw_axes(std::string& out, Scale& x, Scale& y, const Axis& x_axis, const Axis& y_axis,
                PlotSize size, double top);

}  // namespace nereid::report
