// Heat maps and timelines of plot.h: values or states over ranks and time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/base64.h"
#include "base/check.h"
#include "report/plot.h"
#include "report/plot_frame.h"

namespace nereid::report {

namespace {

// Viridis (van der Walt, Smith 2015; CC0), nine stops: even to the eye, and to colour-blind ones.
constexpr std::array<std::array<int, 3>, 9> kViridis = {{{0x44, 0x01, 0x54},
                                                         {0x47, 0x2d, 0x7b},
                                                         {0x3b, 0x52, 0x8b},
                                                         {0x2c, 0x72, 0x8e},
                                                         {0x21, 0x91, 0x8c},
                                                         {0x28, 0xae, 0x80},
                                                         {0x5e, 0xc9, 0x62},
                                                         {0xad, 0xdc, 0x30},
                                                         {0xfd, 0xe7, 0x25}}};
constexpr int kLevels = 255;  // palette entries 0..254; 255 is "no value"

std::array<int, 3> colour_at(double share) {
    const double at = std::clamp(share, 0.0, 1.0) * (kViridis.size() - 1);
    const auto low = std::min(static_cast<std::size_t>(at), kViridis.size() - 2);
    const double f = at - static_cast<double>(low);
    std::array<int, 3> rgb{};
    for (std::size_t c = 0; c < 3; ++c)
        rgb[c] = static_cast<int>(
            std::lround(kViridis[low][c] + f * (kViridis[low + 1][c] - kViridis[low][c])));
    return rgb;
}

void put_be32(std::string& out, std::uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(v >> shift));
}

// CRC-32 of PNG (ISO 3309), bit by bit: a heat map has some ten thousand bytes.
std::uint32_t png_crc(std::string_view bytes) {
    std::uint32_t crc = ~0U;
    for (const char c : bytes) {
        crc ^= static_cast<unsigned char>(c);
        for (int k = 0; k < 8; ++k) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320U : 0U);
    }
    return ~crc;
}
void png_chunk(std::string& png, std::string_view type, std::string_view data) {
    put_be32(png, static_cast<std::uint32_t>(data.size()));
    const std::string body = std::string(type) + std::string(data);
    png += body;
    put_be32(png, png_crc(body));
}

// A PNG of palette indices (rows of equal length), in stored deflate blocks: no compressor needed.
std::string palette_png(const std::vector<std::string>& rows) {
    std::string raw;
    for (const std::string& row : rows) {
        raw.push_back(0);  // filter: none
        raw += row;
    }
    std::string zlib("\x78\x01", 2);
    constexpr std::size_t kBlock = 65'535;
    for (std::size_t at = 0; at < raw.size(); at += kBlock) {
        const auto n = static_cast<std::uint16_t>(std::min(kBlock, raw.size() - at));
        zlib.push_back(at + n == raw.size() ? 1 : 0);
        for (const std::uint16_t v : {n, static_cast<std::uint16_t>(~n)}) {
            zlib.push_back(static_cast<char>(v & 0xff));
            zlib.push_back(static_cast<char>(v >> 8));
        }
        zlib.append(raw, at, n);
    }
    std::uint32_t a = 1, b = 0;  // Adler-32
    for (const char c : raw) {
        a = (a + static_cast<unsigned char>(c)) % 65'521;
        b = (b + a) % 65'521;
    }
    put_be32(zlib, b << 16 | a);

    std::string header, palette, alpha(256, '\xff');
    put_be32(header, static_cast<std::uint32_t>(rows.front().size()));
    put_be32(header, static_cast<std::uint32_t>(rows.size()));
    header += std::string("\x08\x03\x00\x00\x00", 5);  // 8 bits, palette
    for (int i = 0; i < 256; ++i) {
        for (const int v : colour_at(i / static_cast<double>(kLevels - 1)))
            palette.push_back(static_cast<char>(v));
    }
    alpha[kLevels] = 0;
    std::string png("\x89PNG\r\n\x1a\n", 8);
    png_chunk(png, "IHDR", header);
    png_chunk(png, "PLTE", palette);
    png_chunk(png, "tRNS", alpha);
    png_chunk(png, "IDAT", zlib);
    png_chunk(png, "IEND", {});
    return png;
}

// Reduces to at most `rows` x `columns` cells by maximum.
std::vector<std::vector<double>> reduce(const std::vector<std::vector<double>>& cells,
                                        std::size_t rows, std::size_t columns) {
    std::size_t width = 0;
    for (const auto& row : cells) width = std::max(width, row.size());
    const std::size_t h = std::min(rows, cells.size());
    const std::size_t w = std::min(columns, width);
    std::vector<std::vector<double>> out(
        h, std::vector<double>(w, std::numeric_limits<double>::quiet_NaN()));
    for (std::size_t r = 0; r < cells.size(); ++r) {
        for (std::size_t c = 0; c < cells[r].size(); ++c) {
            const double v = cells[r][c];
            double& cell = out[r * h / cells.size()][c * w / width];
            if (std::isfinite(v) && !(v <= cell)) cell = v;
        }
    }
    return out;
}

void row_labels(std::string& out, std::size_t rows, const std::vector<std::string>& names,
                const Frame& f) {
    const double height = (f.bottom - f.top) / static_cast<double>(std::max<std::size_t>(1, rows));
    std::size_t every = 1;
    for (const std::size_t step : {1U, 2U, 5U, 10U, 20U, 50U, 100U, 200U, 500U, 1000U, 5000U}) {
        every = step;
        if (height * static_cast<double>(step) >= 14) break;
    }
    for (std::size_t r = 0; r < rows; r += every) {
        text(out, f.left - 6, f.top + (static_cast<double>(r) + 0.5) * height + 4,
             r < names.size() ? names[r] : fmt::format("{}", r), Anchor::kEnd, "soft",
             "font-size=\"11\"");
    }
}

void x_axis(std::string& out, Scale& x, const Axis& axis, const Frame& f) {
    x.from = f.left;
    x.to = f.right;
    for (const Tick& t : x.ticks(std::max(2, static_cast<int>((f.right - f.left) / 90)))) {
        line(out, x.at(t.value), f.bottom, x.at(t.value), f.bottom + 4, "soft");
        text(out, x.at(t.value), f.bottom + 18, t.label, Anchor::kMiddle, "soft");
    }
    text(out, (f.left + f.right) / 2, f.bottom + 36, axis.label, Anchor::kMiddle, "soft");
}

double widest(const std::vector<std::string>& names, double least) {
    for (const std::string& n : names) least = std::max(least, text_width(n));
    return least;
}

}  // namespace

std::string draw(const HeatMap& plot) {
    std::string out = open_svg(plot.size.width, plot.size.height, plot.title);
    std::size_t columns = 0;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const auto& row : plot.cells) {
        columns = std::max(columns, row.size());
        for (const double v : row) {
            if (!std::isfinite(v)) continue;
            low = std::min(low, v);
            high = std::max(high, v);
        }
    }
    const Frame f{.left = 26 + widest(plot.row_names, 28),
                  .top = 34,
                  .right = plot.size.width - 84.0,
                  .bottom = plot.size.height - 42.0};
    Scale value = make_scale({.label = {}, .min = plot.min, .max = plot.max}, low, high, low >= 0);
    Scale x = make_scale({.label = {},
                          .min = plot.x.min.value_or(0),
                          .max = plot.x.max.value_or(static_cast<double>(columns))},
                         0, 1, false);
    if (columns != 0) {
        std::vector<std::string> rows;
        for (const auto& row : reduce(plot.cells, 160, 400)) {
            std::string indices;
            for (const double v : row) {
                const double share = (v - value.min) / (value.max - value.min);
                indices.push_back(static_cast<char>(
                    std::isfinite(v)
                        ? static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * (kLevels - 1)))
                        : kLevels));
            }
            rows.push_back(std::move(indices));
        }
        out += fmt::format(
            "<image x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
            "preserveAspectRatio=\"none\" "
            "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
            f.left, f.top, f.right - f.left, f.bottom - f.top, base64_encode(palette_png(rows)));
    }
    row_labels(out, plot.cells.size(), plot.row_names, f);
    x_axis(out, x, plot.x, f);
    const double middle = (f.top + f.bottom) / 2;
    text(out, 12, middle, plot.row_label, Anchor::kMiddle, "soft",
         fmt::format("transform=\"rotate(-90 12 {:.1f})\"", middle));
    // The colour scale at the right.
    constexpr int kSteps = 48;
    const double bar = f.right + 14;
    for (int i = 0; i < kSteps; ++i) {
        const auto [r, g, b] = colour_at((i + 0.5) / kSteps);
        const double h = (f.bottom - f.top) / kSteps;
        out += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"12\" height=\"{:.2f}\" "
            "fill=\"#{:02x}{:02x}{:02x}\"/>",
            bar, f.bottom - (i + 1) * h, h + 0.4, r, g, b);
    }
    value.from = f.bottom;
    value.to = f.top;
    for (const Tick& t : value.ticks(5))
        text(out, bar + 17, value.at(t.value) + 4, t.label, Anchor::kStart, "soft");
    text(out, plot.size.width - 6.0, f.top - 10, plot.value_label, Anchor::kEnd, "soft");
    out += "</svg>";
    return out;
}

namespace {

// Spans of one row as drawn: exact when few; else the kind that holds most of each pixel column.
std::vector<Timeline::Span> visible(const Timeline::Row& row, const Scale& x, std::size_t kinds) {
    const auto columns = static_cast<std::size_t>(std::max(1.0, x.to - x.from));
    if (row.spans.size() <= columns / 2) return row.spans;
    const double width = (x.max - x.min) / static_cast<double>(columns);
    std::vector<double> held(columns * kinds);
    for (const Timeline::Span& s : row.spans) {
        const double from = std::max(s.from, x.min);
        const double to = std::min(s.to, x.max);
        for (auto c = static_cast<std::size_t>(std::max(0.0, (from - x.min) / width)); c < columns;
             ++c) {
            const double begin = x.min + static_cast<double>(c) * width;
            if (begin >= to) break;
            held[c * kinds + s.kind] +=
                std::max(0.0, std::min(to, begin + width) - std::max(from, begin));
        }
    }
    std::vector<Timeline::Span> out;
    for (std::size_t c = 0; c < columns; ++c) {
        const auto first = held.begin() + static_cast<std::ptrdiff_t>(c * kinds);
        const auto best = std::max_element(first, first + static_cast<std::ptrdiff_t>(kinds));
        const double idle =
            width - std::accumulate(first, first + static_cast<std::ptrdiff_t>(kinds), 0.0);
        if (*best <= 0 || idle > *best) continue;
        const auto kind = static_cast<std::uint32_t>(best - first);
        const double begin = x.min + static_cast<double>(c) * width;
        if (!out.empty() && out.back().kind == kind && out.back().to >= begin - width * 1e-6) {
            out.back().to = begin + width;
        } else {
            out.push_back({begin, begin + width, kind});
        }
    }
    return out;
}

}  // namespace

std::string draw(const Timeline& plot) {
    const auto rows = static_cast<double>(plot.rows.size());
    const double row_height = std::clamp(480.0 / std::max(1.0, rows), 3.0, 20.0);
    std::string body;
    const double top = legend(body, plot.kinds, plot.width) + 6;
    const int height = static_cast<int>(top + rows * row_height + 46);
    std::vector<std::string> names;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const auto& row : plot.rows) {
        names.push_back(row.name);
        for (const auto& s : row.spans) {
            CHECK_MSG(s.kind < plot.kinds.size(), "a span of an unknown kind");
            low = std::min(low, s.from);
            high = std::max(high, s.to);
        }
    }
    const Frame f{.left = 14 + widest(names, 20),
                  .top = top,
                  .right = plot.width - 16.0,
                  .bottom = height - 42.0};
    Axis axis = plot.x;
    if (low < high) {
        axis.min = axis.min.value_or(low);
        axis.max = axis.max.value_or(high);
    }
    Scale x = make_scale(axis, low, high, false);
    x_axis(body, x, plot.x, f);
    row_labels(body, plot.rows.size(), names, f);
    for (std::size_t r = 0; r < plot.rows.size(); ++r) {
        const double y = f.top + static_cast<double>(r) * row_height;
        for (const auto& s : visible(plot.rows[r], x, plot.kinds.size())) {
            if (s.to <= x.min || s.from >= x.max) continue;
            const double from = x.at(std::max(s.from, x.min));
            const double to = x.at(std::min(s.to, x.max));
            body += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                "style=\"fill:{}\"/>",
                from, y, std::max(0.3, to - from), row_height - (row_height > 6 ? 2 : 0.4),
                series_colour(s.kind));
        }
    }
    line(body, f.left, f.bottom, f.right, f.bottom, "soft");
    return open_svg(plot.width, height, plot.title) + body + "</svg>";
}

}  // namespace nereid::report
