// Plain-text cases of tests/golden/chat: events in a tiny form, and what the dialect makes of them.
// Tests only. The format is described in tests/golden/chat/README.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialect/chat/chat.h"
#include "model/event.h"

namespace nereid::dialect::chat {

// A file cut at its "=== NAME" lines; what comes before the first is named "". A section's text
// ends with its last newline, except that one empty line before the next "===" belongs to nobody.
struct Section {
    std::string name;
    std::string text;
};
std::vector<Section> read_sections(const std::string& path);
std::vector<std::string> files_in(const std::string& folder, std::string_view suffix);  // sorted

// Lines `meta {...}` and `EVENT {...}`; empty lines and `#` comments are skipped. CHECKs on
// malformed lines.
struct Script {
    ResponseMeta meta;
    std::vector<model::Event> events;
};
Script read_script(const std::string& text);

// One event as such a line.
std::string to_line(const model::Event& event);

// Joins neighbouring deltas of one choice (or one call), drops Start, token ids and token counts:
// what two routes over the wire must agree in.
std::vector<model::Event> normal_form(const std::vector<model::Event>& events);
std::string to_text(const std::vector<model::Event>& events);

}  // namespace nereid::dialect::chat
