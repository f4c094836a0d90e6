#include "report/page.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"

namespace nereid::report {

std::string escape_html(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                // Other control characters are no characters of HTML or XML.
                if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
        }
    }
    return out;
}

std::string human(double value) {
    if (std::isnan(value)) return "-";
    if (std::isinf(value)) return value > 0 ? "∞" : "-∞";
    const double size = std::abs(value);
    if (size != 0 && (size >= 1e15 || size < 1e-4)) return fmt::format("{:.3e}", value);
    if (size < 999.95) return fmt::format("{:.4g}", value);
    const double rounded = std::round(size);
    std::string digits = fmt::format("{:.0f}", rounded);
    std::string grouped = value < 0 ? "-" : "";
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i != 0 && (digits.size() - i) % 3 == 0) grouped += "\u2009";
        grouped += digits[i];
    }
    return grouped;
}

namespace {

// "1 234.5", "97 %", "12 ms": shown right-aligned.
bool looks_numeric(std::string_view cell) {
    if (cell.empty()) return false;
    const char c = cell.front() == '-' && cell.size() > 1 ? cell[1] : cell.front();
    return (c >= '0' && c <= '9') || cell == "-";
}

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d5dbe3;--paper:#fff;--panel:#f5f7fa;
--s0:#2463c2;--s1:#d1602a;--s2:#2d8a4e;--s3:#8a4fc0;--s4:#b8860b;--s5:#c03a62;--s6:#22868f;--s7:#6b7280;--mark:#b42318}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#39424f;--paper:#14181f;--panel:#1c222b;
--s0:#6ea5f5;--s1:#f08d5b;--s2:#63c184;--s3:#bd90ea;--s4:#e0b84a;--s5:#ee7d9d;--s6:#5fc3cb;--s7:#a3acb8;--mark:#f97066}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI","DejaVu Sans",sans-serif}
main{max-width:880px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}
h2{font-size:20px;margin:38px 0 10px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:16px;margin:24px 0 6px}
p{margin:8px 0;max-width:74ch}
.sub{color:var(--soft);margin:0 0 14px}
nav ul{margin:8px 0;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px}
a{color:var(--s0)}
table{border-collapse:collapse;margin:12px 0;font-size:14px}
.wide{overflow-x:auto}
caption{caption-side:bottom;text-align:left;color:var(--soft);padding-top:4px}
th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft)}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:16px 0}
figure svg{max-width:100%;height:auto;display:block}
figcaption{color:var(--soft);font-size:14px;max-width:74ch}
.figures{display:flex;flex-wrap:wrap;gap:10px;margin:12px 0}
.figures div{background:var(--panel);border-radius:6px;padding:10px 16px;min-width:130px}
.figures b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:13px}
pre{background:var(--panel);padding:12px;border-radius:6px;overflow-x:auto;font:13px/1.45 ui-monospace,"DejaVu Sans Mono",monospace}
summary{cursor:pointer;color:var(--soft)}
)css";

}  // namespace

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

Page& Page::section(std::string_view heading) {
    sections_.emplace_back(heading);
    body_ += fmt::format("<h2 id=\"s{}\">{}</h2>\n", sections_.size(), escape_html(heading));
    return *this;
}
Page& Page::subsection(std::string_view heading) {
    body_ += fmt::format("<h3>{}</h3>\n", escape_html(heading));
    return *this;
}
Page& Page::paragraph(std::string_view text) {
    body_ += fmt::format("<p>{}</p>\n", escape_html(text));
    return *this;
}
Page& Page::figures(const std::vector<std::pair<std::string, std::string>>& items) {
    body_ += "<div class=\"figures\">";
    for (const auto& [name, value] : items)
        body_ += fmt::format("<div><b>{}</b><span>{}</span></div>", escape_html(value),
                             escape_html(name));
    body_ += "</div>\n";
    return *this;
}

Page& Page::table(const Table& table) {
    body_ += "<div class=\"wide\"><table>";
    if (!table.caption.empty())
        body_ += fmt::format("<caption>{}</caption>", escape_html(table.caption));
    if (!table.header.empty()) {
        body_ += "<thead><tr>";
        for (const std::string& cell : table.header)
            body_ += fmt::format("<th scope=\"col\">{}</th>", escape_html(cell));
        body_ += "</tr></thead>";
    }
    body_ += "<tbody>\n";
    for (const auto& row : table.rows) {
        CHECK_MSG(table.header.empty() || row.size() <= table.header.size(),
                  "a row longer than its header");
        body_ += "<tr>";
        for (const std::string& cell : row) {
            body_ += fmt::format("<td{}>{}</td>", looks_numeric(cell) ? " class=\"n\"" : "",
                                 escape_html(cell));
        }
        body_ += "</tr>\n";
    }
    body_ += "</tbody></table></div>\n";
    return *this;
}

Page& Page::parameters(const std::vector<std::pair<std::string, std::string>>& items) {
    body_ += "<table><tbody>\n";
    for (const auto& [name, value] : items) {
        body_ += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape_html(name),
                             escape_html(value));
    }
    body_ += "</tbody></table>\n";
    return *this;
}

Page& Page::plot(std::string_view svg, std::string_view caption) {
    body_ += fmt::format(
        "<figure>{}{}</figure>\n", svg,
        caption.empty() ? "" : fmt::format("<figcaption>{}</figcaption>", escape_html(caption)));
    return *this;
}

Page& Page::folded(std::string_view summary, std::string_view text) {
    body_ += fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n",
                         escape_html(summary), escape_html(text));
    return *this;
}

std::string Page::finish() const {
    std::string out = fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; img-src data:\">\n"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
        "<title>{0}</title><style>{1}</style></head>\n<body><main>\n<h1>{0}</h1>\n",
        escape_html(title_), kStyle);
    if (!subtitle_.empty()) out += fmt::format("<p class=\"sub\">{}</p>\n", escape_html(subtitle_));
    if (sections_.size() > 2) {
        out += "<nav><ul>";
        for (std::size_t i = 0; i < sections_.size(); ++i)
            out +=
                fmt::format("<li><a href=\"#s{}\">{}</a></li>", i + 1, escape_html(sections_[i]));
        out += "</ul></nav>\n";
    }
    out += body_;
    out += "</main></body></html>\n";
    return out;
}

}  // namespace nereid::report
