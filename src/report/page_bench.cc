// Pages for bench scripts in Python: one JSON document on stdin, the HTML page on stdout.
//
//   {"title":..., "subtitle":..., "sections":[{"heading":..., "text":[...],
//   "table":{"header":[...],"rows":[[...]]},
//     "lines":{"title":..,"x":..,"y":..,"series":[{"name":..,"points":[[x,y],...]}],"marks":[{"at":..,"vertical":bool,"label":..}]},
//     "bars":{"title":..,"value":..,"categories":[...],"series":[{"name":..,"values":[...]}]}}]}
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/json.h"
#include "report/page.h"
#include "report/plot.h"

namespace {

using namespace nereid;
using namespace nereid::report;

std::string text(const Json& j, std::string_view key) {
    const Json* v = j.find(key);
    return v != nullptr && v->is_string() ? v->as_string() : std::string{};
}
const Json::Array& list(const Json& j, std::string_view key) {
    static const Json::Array kNone;
    const Json* v = j.find(key);
    return v != nullptr && v->is_array() ? v->as_array() : kNone;
}
std::vector<std::string> strings(const Json::Array& items) {
    std::vector<std::string> out;
    for (const Json& s : items)
        out.push_back(s.is_string() ? s.as_string() : s.is_number() ? human(s.as_double()) : "");
    return out;
}

LinePlot lines(const Json& j) {
    LinePlot plot{.title = text(j, "title"),
                  .x = {.label = text(j, "x")},
                  .y = {.label = text(j, "y")},
                  .series = {}};
    for (const Json& s : list(j, "series")) {
        XySeries series{.name = text(s, "name"), .points = {}};
        for (const Json& p : list(s, "points"))
            series.points.emplace_back(p.as_array().at(0).as_double(),
                                       p.as_array().at(1).as_double());
        plot.series.push_back(std::move(series));
    }
    for (const Json& m : list(j, "marks")) {
        const Json* vertical = m.find("vertical");
        plot.marks.push_back({m.find("at")->as_double(), vertical != nullptr && vertical->as_bool(),
                              text(m, "label")});
    }
    return plot;
}

BarPlot bars(const Json& j) {
    BarPlot plot{.title = text(j, "title"),
                 .value = {.label = text(j, "value")},
                 .categories = strings(list(j, "categories")),
                 .series = {}};
    for (const Json& s : list(j, "series")) {
        BarPlot::Series series{.name = text(s, "name"), .bars = {}};
        for (const Json& v : list(s, "values")) series.bars.push_back({v.as_double()});
        plot.series.push_back(std::move(series));
    }
    return plot;
}

}  // namespace

int main() {
    const std::string input((std::istreambuf_iterator<char>(std::cin)),
                            std::istreambuf_iterator<char>());
    const auto document = Json::parse(input);
    if (!document.ok()) {
        std::fprintf(stderr, "%s\n", document.error().message.c_str());
        return 2;
    }
    Page page(text(*document, "title"), text(*document, "subtitle"));
    for (const Json& s : list(*document, "sections")) {
        page.section(text(s, "heading"));
        for (const std::string& p : strings(list(s, "text"))) page.paragraph(p);
        if (const Json* t = s.find("table")) {
            Table table{.header = strings(list(*t, "header")), .rows = {}};
            for (const Json& row : list(*t, "rows")) table.rows.push_back(strings(row.as_array()));
            page.table(table);
        }
        if (const Json* l = s.find("lines")) page.plot(draw(lines(*l)));
        if (const Json* b = s.find("bars")) page.plot(draw(bars(*b)));
    }
    std::fputs(page.finish().c_str(), stdout);
    return 0;
}
