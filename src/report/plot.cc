// Lines, CDFs and bars of plot.h.
#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "report/plot_frame.h"

namespace nereid::report {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
    double low = kInfinity, high = -kInfinity;
    void add(double v, const Axis& axis) {
        if (!std::isfinite(v) || (axis.log && v <= 0)) return;
        low = std::min(low, v);
        high = std::max(high, v);
    }
};

// At most two points a pixel column, its lowest and highest: what the eye would see anyway.
std::vector<std::pair<double, double>> thin(const std::vector<std::pair<double, double>>& points,
                                            const Scale& x) {
    if (points.size() <= 2000) return points;
    std::vector<std::pair<double, double>> out;
    std::size_t i = 0;
    while (i < points.size()) {
        if (!std::isfinite(points[i].second)) {
            out.push_back(points[i++]);
            continue;
        }
        const double column = std::floor(x.at(points[i].first));
        std::size_t low = i, high = i, end = i;
        while (end < points.size() && std::isfinite(points[end].second) &&
               std::floor(x.at(points[end].first)) == column) {
            if (points[end].second < points[low].second) low = end;
            if (points[end].second > points[high].second) high = end;
            ++end;
        }
        out.push_back(points[std::min(low, high)]);
        if (low != high) out.push_back(points[std::max(low, high)]);
        i = end;
    }
    return out;
}

void draw_series(std::string& out, const XySeries& series, std::size_t index, const Scale& x,
                 const Scale& y) {
    std::string path;
    std::string dots;
    bool pen_down = false;
    double last_y = 0;
    for (const auto& [px, py] : thin(series.points, x)) {
        if (!x.shows(px) || !y.shows(py)) {
            pen_down = false;
            continue;
        }
        if (pen_down && series.steps) path += fmt::format("L{:.1f} {:.1f}", x.at(px), last_y);
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', x.at(px), y.at(py));
        last_y = y.at(py);
        pen_down = true;
        if (series.markers)
            dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" style=\"fill:{}\"/>",
                                x.at(px), y.at(py), series_colour(index));
    }
    if (path.empty()) return;
    out += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{} "
        "style=\"stroke:{}\"/>",
        path, series.dashed ? " stroke-dasharray=\"5 3\"" : "", series_colour(index));
    out += dots;
}

void draw_marks(std::string& out, const std::vector<Mark>& marks, const Scale& x, const Scale& y,
                const Frame& f) {
    double label_y = f.top + 12;
    for (const Mark& m : marks) {
        constexpr const char* kDashes = "stroke-dasharray=\"4 3\" stroke-width=\"1.3\"";
        const Scale& scale = m.vertical ? x : y;
        if (!scale.shows(m.at) || m.at < scale.min || m.at > scale.max) continue;
        if (m.vertical) {
            line(out, x.at(m.at), f.top, x.at(m.at), f.bottom, "mark", kDashes);
            const bool left = x.at(m.at) + 6 + text_width(m.label) > f.right;
            text(out, x.at(m.at) + (left ? -5 : 5), label_y, m.label,
                 left ? Anchor::kEnd : Anchor::kStart, "mark");
            label_y += 14;
        } else {
            line(out, f.left, y.at(m.at), f.right, y.at(m.at), "mark", kDashes);
            text(out, f.right - 4, y.at(m.at) - 4, m.label, Anchor::kEnd, "mark");
        }
    }
}

// A nested svg clips what lies outside of the axes' range.
std::string open_clip(const Frame& f) {
    return fmt::format(
        "<svg x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" viewBox=\"{0:.1f} "
        "{1:.1f} {2:.1f} {3:.1f}\">",
        f.left, f.top - 2, f.right - f.left, f.bottom - f.top + 4);
}

}  // namespace

std::string draw(const LinePlot& plot) {
    std::string out = open_svg(plot.size.width, plot.size.height, plot.title);
    Range xs, ys;
    std::vector<std::string> names;
    std::vector<bool> dashed;
    for (const XySeries& s : plot.series) {
        names.push_back(s.name);
        dashed.push_back(s.dashed);
        for (const auto& [px, py] : s.points) {
            if (!std::isfinite(py)) continue;
            xs.add(px, plot.x);
            ys.add(py, plot.y);
        }
    }
    for (const Mark& m : plot.marks) (m.vertical ? xs : ys).add(m.at, m.vertical ? plot.x : plot.y);
    const double top = legend(out, names, plot.size.width, dashed);
    Axis x_axis = plot.x;
    // The x axis ends where the data end, not at the next round number.
    if (!x_axis.log && xs.low < xs.high) {
        x_axis.min = x_axis.min.value_or(xs.low);
        x_axis.max = x_axis.max.value_or(xs.high);
    }
    Scale x = make_scale(x_axis, xs.low, xs.high, false);
    Scale y = make_scale(plot.y, ys.low, ys.high, ys.low >= 0 && ys.low < 0.7 * ys.high);
    const Frame f = draw_axes(out, x, y, plot.x, plot.y, plot.size, top);
    out += open_clip(f);
    for (std::size_t i = 0; i < plot.series.size(); ++i) draw_series(out, plot.series[i], i, x, y);
    out += "</svg>";
    draw_marks(out, plot.marks, x, y, f);
    out += "</svg>";
    return out;
}

std::string draw(const CdfPlot& plot) {
    LinePlot lines{.title = plot.title,
                   .x = plot.x,
                   .y = {.label = "share of samples", .min = 0, .max = 1},
                   .series = {},
                   .marks = plot.marks,
                   .size = plot.size};
    constexpr std::size_t kPoints = 400;
    for (const auto& [name, values] : plot.samples) {
        std::vector<double> sorted;
        for (const double v : values) {
            if (std::isfinite(v)) sorted.push_back(v);
        }
        std::ranges::sort(sorted);
        XySeries s{.name = name, .points = {}, .steps = true};
        const std::size_t n = sorted.size();
        const std::size_t shown = std::min(n, kPoints);
        for (std::size_t k = 1; k <= shown; ++k) {
            const std::size_t rank = k * n / shown;  // 1..n, ends at n
            s.points.emplace_back(sorted[rank - 1],
                                  static_cast<double>(rank) / static_cast<double>(n));
        }
        lines.series.push_back(std::move(s));
    }
    return draw(lines);
}

std::string draw(const BarPlot& plot) {
    constexpr double kBar = 16, kGap = 12;
    const auto groups = static_cast<double>(plot.categories.size());
    const auto bars = static_cast<double>(std::max<std::size_t>(1, plot.series.size()));
    std::vector<std::string> names;
    Range range;
    for (const auto& s : plot.series) {
        CHECK_MSG(s.bars.size() == plot.categories.size(), "one bar per category");
        names.push_back(s.name);
        for (const auto& b : s.bars) {
            range.add(b.value, plot.value);
            if (b.interval) range.add(b.interval->second, plot.value);
        }
    }
    for (const Mark& m : plot.marks) range.add(m.at, plot.value);
    std::string body;
    const double top = legend(body, names, plot.width) +
                       (plot.marks.empty() ? 6 : 6 + 14.0 * static_cast<double>(plot.marks.size()));
    const int height = static_cast<int>(top + groups * (bars * kBar + kGap) + 46);
    double widest = 20;
    for (const std::string& c : plot.categories) widest = std::max(widest, text_width(c));
    Scale x = make_scale(plot.value, range.low, range.high, true);
    const Frame f{.left = std::min(widest + 14, plot.width * 0.5),
                  .top = top,
                  .right = plot.width - 64.0,
                  .bottom = height - 40.0};
    x.from = f.left;
    x.to = f.right;
    for (const Tick& t : x.ticks(std::max(2, static_cast<int>((f.right - f.left) / 80)))) {
        line(body, x.at(t.value), f.top, x.at(t.value), f.bottom, "line");
        text(body, x.at(t.value), f.bottom + 16, t.label, Anchor::kMiddle, "soft");
    }
    text(body, (f.left + f.right) / 2, f.bottom + 34, plot.value.label, Anchor::kMiddle, "soft");
    double y = f.top + kGap / 2;
    for (std::size_t c = 0; c < plot.categories.size(); ++c) {
        text(body, f.left - 8, y + bars * kBar / 2 + 4, plot.categories[c], Anchor::kEnd);
        for (std::size_t s = 0; s < plot.series.size(); ++s, y += kBar) {
            const BarPlot::Bar& bar = plot.series[s].bars[c];
            if (!x.shows(bar.value)) continue;
            const double from = std::clamp(x.at(x.log ? x.min : 0), f.left, f.right);
            const double end = std::clamp(x.at(bar.value), f.left, f.right);
            body += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" "
                "style=\"fill:{}\"/>",
                std::min(from, end), y + 1, std::abs(end - from), kBar - 3, series_colour(s));
            double label_at = end;
            if (bar.interval && x.shows(bar.interval->first) && x.shows(bar.interval->second)) {
                const double low = std::clamp(x.at(bar.interval->first), f.left, f.right);
                const double high = std::clamp(x.at(bar.interval->second), f.left, f.right);
                const double middle = y + kBar / 2 - 0.5;
                line(body, low, middle, high, middle, "ink", "stroke-width=\"1.4\"");
                line(body, low, middle - 3, low, middle + 3, "ink");
                line(body, high, middle - 3, high, middle + 3, "ink");
                label_at = std::max(label_at, high);
            }
            text(body, label_at + 5, y + kBar / 2 + 3.5, fmt::format("{:.4g}", bar.value),
                 Anchor::kStart, "soft", "font-size=\"11\"");
        }
        y += kGap;
    }
    line(body, f.left, f.top, f.left, f.bottom, "soft");
    Frame above = f;
    above.top = f.top - 14.0 * static_cast<double>(plot.marks.size());
    std::vector<Mark> marks = plot.marks;
    for (Mark& m : marks) m.vertical = true;
    draw_marks(body, marks, x, x, above);
    return open_svg(plot.width, height, plot.title) + body + "</svg>";
}

}  // namespace nereid::report
