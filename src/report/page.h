// A self-contained HTML page: headings, text, tables, plots, data. No script is needed to read it,
// nothing is loaded from elsewhere (a Content-Security-Policy in the page says so), light and dark
// by the reader's setting. Texts are escaped; only plots (report/plot.h) go in as markup.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace nereid::report {

struct Table {
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;  // cells beyond the header's count are a CHECK
    std::string caption = {};
};

class Page {
  public:
    explicit Page(std::string title, std::string subtitle = {});
    Page& section(std::string_view heading);  // appears in the contents list
    Page& subsection(std::string_view heading);
    Page& paragraph(std::string_view text);
    // Large figures at the top of a section: {"decode efficiency", "0.97"}.
    Page& figures(const std::vector<std::pair<std::string, std::string>>& items);
    Page& table(const Table& table);  // numeric-looking cells are right-aligned
    // Two columns, for the parameters that a result depends on.
    Page& parameters(const std::vector<std::pair<std::string, std::string>>& items);
    Page& plot(std::string_view svg, std::string_view caption = {});
    // Folded, copyable text: the command that made the page, a scenario file, the result as JSON.
    Page& folded(std::string_view summary, std::string_view text);
    std::string finish() const;

  private:
    std::string title_, subtitle_, body_;
    std::vector<std::string> sections_;
};

std::string escape_html(std::string_view text);
// Readable numbers for tables: 4 significant digits, thousands separated by thin spaces, "1 234
// 567", "0.9731"; "-" for NaN.
std::string human(double value);

}  // namespace nereid::report
