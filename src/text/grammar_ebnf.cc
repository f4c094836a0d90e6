// Text up to a marker in a notation without regular expressions: the automaton of Knuth, Morris and
// Pratt over the marker's characters, a rule per state, right-linear.
#include <algorithm>
#include <vector>

#include "text/lark.h"

namespace nereid::text {
namespace {

// UTF-8 text by characters.
std::vector<std::string_view> characters(std::string_view text) {
    std::vector<std::string_view> out;
    while (!text.empty()) {
        std::size_t size = 1;
        while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80)
            ++size;
        out.push_back(text.substr(0, size));
        text.remove_prefix(size);
    }
    return out;
}

std::string in_class(std::string_view character) {
    if (character == "\n") return "\\n";
    const bool special = std::string_view("\\]^-").find(character) != std::string_view::npos;
    return (special ? "\\" : "") + std::string(character);
}

}  // namespace

void Lark::write_ebnf_until(std::string_view name, std::string_view marker) {
    if (until_ == marker) return rule(name, "until0");
    CHECK_MSG(until_.empty(), "one marker a grammar");
    until_ = marker;
    rule(name, "until0");
    const auto marks = characters(marker);
    // longest[i]: of the marker's first i characters, the longest proper suffix that begins it.
    std::vector<std::size_t> longest(marks.size() + 1, 0);
    for (std::size_t i = 1, k = 0; i < marks.size(); ++i) {
        while (k > 0 && marks[i] != marks[k]) k = longest[k];
        if (marks[i] == marks[k]) ++k;
        longest[i + 1] = k;
    }
    const auto next = [&](std::size_t state, std::string_view character) {
        while (true) {
            if (character == marks[state]) return state + 1;
            if (state == 0) return state;
            state = longest[state];
        }
    };
    std::vector<std::string_view> alphabet = marks;
    std::ranges::sort(alphabet);
    alphabet.erase(std::ranges::unique(alphabet).begin(), alphabet.end());
    for (std::size_t state = 0; state < marks.size(); ++state) {
        std::string body, others;
        for (const std::string_view character : alphabet) {
            const std::size_t after = next(state, character);
            if (after == 0) continue;
            others += in_class(character);
            body += lark_literal(character);
            if (after < marks.size()) body += fmt::format(" until{}", after);
            body += " | ";
        }
        rule(fmt::format("until{}", state), fmt::format("{}[^{}] until0", body, others));
    }
}

}  // namespace nereid::text
