#include "report/plot_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "report/page.h"

namespace nereid::report {

namespace {

constexpr const char* kSeriesFallback[] = {"#2463c2", "#d1602a", "#2d8a4e", "#8a4fc0",
                                           "#b8860b", "#c03a62", "#22868f", "#6b7280"};
constexpr std::size_t kSeriesColours = std::size(kSeriesFallback);

// 12000 -> "12k" when the axis reaches 100k; else plain digits with as many decimals as the step
// needs.
std::string tick_label(double value, double step, double largest) {
    if (value == 0) return "0";
    if (largest >= 1e15 || largest < 1e-4) return fmt::format("{:.3g}", value);
    const char* suffix = "";
    double unit = 1;
    if (largest >= 1e9) {
        unit = 1e9;
        suffix = "G";
    } else if (largest >= 1e6) {
        unit = 1e6;
        suffix = "M";
    } else if (largest >= 1e5) {
        unit = 1e3;
        suffix = "k";
    }
    const double shown_step = step / unit;
    const int decimals =
        std::clamp(static_cast<int>(std::ceil(-std::log10(shown_step) - 1e-9)), 0, 9);
    return fmt::format("{:.{}f}{}", value / unit, decimals, suffix);
}

double round_step(double span, int wanted) {
    const double raw = span / std::max(1, wanted);
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    const double digit = raw / power;
    return power * (digit <= 1.0001 ? 1 : digit <= 2.0001 ? 2 : digit <= 5.0001 ? 5 : 10);
}

}  // namespace

std::vector<Tick> linear_ticks(double min, double max, int wanted) {
    std::vector<Tick> ticks;
    if (!(max > min)) return ticks;
    const double step = round_step(max - min, wanted);
    const double largest = std::max(std::abs(min), std::abs(max));
    const double first = std::ceil(min / step - 1e-6);
    for (double k = first; k * step <= max + step * 1e-6 && ticks.size() < 100; ++k) {
        const double value = k * step;
        ticks.push_back(
            {value, tick_label(std::abs(value) < step * 1e-9 ? 0 : value, step, largest)});
    }
    return ticks;
}

std::vector<Tick> log_ticks(double min, double max, int wanted) {
    std::vector<Tick> ticks;
    if (!(min > 0 && max > min)) return ticks;
    const double decades = std::log10(max / min);
    const double every = std::max(1.0, std::ceil(decades / std::max(1, wanted)));
    const bool between = decades < wanted / 2.5;
    for (double k = std::floor(std::log10(min)); k <= std::ceil(std::log10(max)); k += every) {
        for (const double digit : {1.0, 2.0, 5.0}) {
            if (digit != 1 && !between) continue;
            const double value = digit * std::pow(10.0, k);
            if (value < min * (1 - 1e-9) || value > max * (1 + 1e-9)) continue;
            ticks.push_back({value, value >= 1e5 || value < 1e-3 ? fmt::format("{:g}", value)
                                                                 : fmt::format("{:.6g}", value)});
        }
    }
    return ticks;
}

double Scale::at(double value) const {
    const double share =
        log ? std::log(value / min) / std::log(max / min) : (value - min) / (max - min);
    return from + std::clamp(share, -0.5, 1.5) * (to - from);
}
bool Scale::shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
std::vector<Tick> Scale::ticks(int wanted) const {
    return log ? log_ticks(min, max, wanted) : linear_ticks(min, max, wanted);
}

Scale make_scale(const Axis& axis, double low, double high, bool zero) {
    Scale s;
    s.log = axis.log;
    if (!(low <= high)) {  // no value at all
        low = axis.log ? 1 : 0;
        high = axis.log ? 10 : 1;
    }
    if (axis.log) {
        if (low == high) {
            low /= 2;
            high *= 2;
        }
        s.min = axis.min.value_or(low);
        s.max = axis.max.value_or(high);
        if (!(s.min > 0)) s.min = low;
        if (!(s.max > s.min)) s.max = s.min * 10;
        return s;
    }
    if (zero && low > 0) low = 0;
    if (low == high) high = low + (low == 0 ? 1 : std::abs(low));
    const double step = round_step(high - low, 6);
    s.min = axis.min.value_or(std::floor(low / step + 1e-9) * step);
    s.max = axis.max.value_or(std::ceil(high / step - 1e-9) * step);
    if (!(s.max > s.min)) s.max = s.min + 1;
    return s;
}

std::string series_colour(std::size_t index) {
    const std::size_t i = index % kSeriesColours;
    return fmt::format("var(--s{},{})", i, kSeriesFallback[i]);
}
std::string named_colour(std::string_view name) {
    const char* fallback = name == "soft"   ? "#5b6675"
                           : name == "line" ? "#d5dbe3"
                           : name == "mark" ? "#b42318"
                                            : "#1c2430";
    return fmt::format("var(--{},{})", name, fallback);
}

void text(std::string& out, double x, double y, std::string_view s, Anchor anchor,
          std::string_view colour, std::string_view extra) {
    constexpr const char* kAnchors[] = {"start", "middle", "end"};
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" style=\"fill:{}\"{}{}>{}</text>", x, y,
        kAnchors[static_cast<int>(anchor)], named_colour(colour), extra.empty() ? "" : " ", extra,
        escape_html(s));
}

double text_width(std::string_view s) {
    std::size_t characters = 0;
    for (const char c : s) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return 7.0 * static_cast<double>(characters);
}

void line(std::string& out, double x0, double y0, double x1, double y1, std::string_view colour,
          std::string_view extra) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" style=\"stroke:{}\"{}{}/>",
        x0, y0, x1, y1, named_colour(colour), extra.empty() ? "" : " ", extra);
}

std::string open_svg(int width, int height, std::string_view title) {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" "
        "role=\"img\" aria-label=\"{2}\" font-family=\"system-ui,'DejaVu Sans',sans-serif\" "
        "font-size=\"12\">",
        width, height, escape_html(title));
    text(out, 4, 16, title, Anchor::kStart, "ink", "font-size=\"14\" font-weight=\"600\"");
    return out;
}

double legend(std::string& out, const std::vector<std::string>& names, int width,
              const std::vector<bool>& dashed) {
    double y = 34;
    if (names.size() < 2) return y - 8;
    double x = 4;
    for (std::size_t i = 0; i < names.size(); ++i) {
        const double need = 26 + text_width(names[i]) + 14;
        if (x > 4 && x + need > width) {
            x = 4;
            y += 18;
        }
        if (i < dashed.size()) {
            out += fmt::format(
                "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
                "stroke-width=\"3\"{} style=\"stroke:{}\"/>",
                x, y - 4, x + 20, y - 4, dashed[i] ? " stroke-dasharray=\"5 3\"" : "",
                series_colour(i));
        } else {
            out += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"10\" rx=\"2\" "
                "style=\"fill:{}\"/>",
                x + 3, y - 9, series_colour(i));
        }
        text(out, x + 25, y, names[i], Anchor::kStart);
        x += need;
    }
    return y + 10;
}

Frame draw_axes(std::string& out, Scale& x, Scale& y, const Axis& x_axis, const Axis& y_axis,
                PlotSize size, double top) {
    const auto y_ticks = y.ticks(6);
    double widest = 8;
    for (const Tick& t : y_ticks) widest = std::max(widest, text_width(t.label));
    Frame f{.left = 26 + widest,
            .top = top + 8,
            .right = size.width - 16.0,
            .bottom = size.height - 42.0};
    x.from = f.left;
    x.to = f.right;
    y.from = f.bottom;
    y.to = f.top;
    for (const Tick& t : y_ticks) {
        line(out, f.left, y.at(t.value), f.right, y.at(t.value), "line");
        text(out, f.left - 6, y.at(t.value) + 4, t.label, Anchor::kEnd, "soft");
    }
    for (const Tick& t : x.ticks(std::max(2, static_cast<int>((f.right - f.left) / 90)))) {
        line(out, x.at(t.value), f.bottom, x.at(t.value), f.bottom + 4, "soft");
        text(out, x.at(t.value), f.bottom + 18, t.label, Anchor::kMiddle, "soft");
    }
    line(out, f.left, f.bottom, f.right, f.bottom, "soft");
    text(out, (f.left + f.right) / 2, f.bottom + 36, x_axis.label, Anchor::kMiddle, "soft");
    const double middle = (f.top + f.bottom) / 2;
    text(out, 12, middle, y_axis.label, Anchor::kMiddle, "soft",
         fmt::format("transform=\"rotate(-90 12 {:.1f})\"", middle));
    return f;
}

}  // namespace nereid::report
