// For the fuzzers of output parsers: one text through a parser in pieces, what came out of it, and
// what holds for every parser whatever it is given: valid UTF-8, calls numbered in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/parser.h"

namespace nereid::text {

struct ParsedOutput {
    std::string content;
    std::string reasoning;
    std::vector<std::string> calls;  // name, NUL, arguments
    bool called = false;
    bool operator==(const ParsedOutput&) const = default;
};

inline void take(const std::vector<model::Event>& events, ParsedOutput& result) {
    for (const model::Event& event : events) {
        if (const auto* text = std::get_if<model::TextDelta>(&event)) {
            CHECK(is_valid_utf8(text->text));
            result.content += text->text;
        } else if (const auto* thought = std::get_if<model::ReasoningDelta>(&event)) {
            CHECK(is_valid_utf8(thought->text));
            result.reasoning += thought->text;
        } else if (const auto* call = std::get_if<model::ToolCallDelta>(&event)) {
            CHECK(is_valid_utf8(call->arguments));
            if (call->index == result.calls.size()) {
                CHECK(!call->name.empty());
                result.calls.push_back(call->name + '\0');
            }
            CHECK(call->index + 1 == result.calls.size());
            result.calls.back() += call->arguments;
        } else {
            CHECK(false);
        }
    }
}

// `sizes`: of the pieces, again and again; each ends on a character. Empty: in one piece.
inline ParsedOutput run_parser(Family family, const ParserOptions& options, std::string_view text,
                               std::string_view sizes) {
    const auto parser = make_parser(family, options);
    ParsedOutput result;
    for (std::size_t i = 0; !text.empty(); ++i) {
        std::size_t size = sizes.empty()
                               ? text.size()
                               : 1 + static_cast<unsigned char>(sizes[i % sizes.size()]) % 9;
        size = std::min(size, text.size());
        while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80)
            ++size;
        std::vector<model::Event> events;
        parser->push(text.substr(0, size), events);
        take(events, result);
        text.remove_prefix(size);
    }
    std::vector<model::Event> events;
    result.called = parser->finish(events);
    take(events, result);
    return result;
}

// An input: a byte of options, one that says how many bytes of chunk sizes follow, these, text.
struct ParserFuzzInput {
    ParserOptions options;
    std::string sizes;
    std::string text;
};

inline ParserFuzzInput read_parser_input(std::string_view bytes) {
    static const std::vector<model::Tool> tools = [] {
        std::vector<model::Tool> all(2);
        all[0].name = "f";
        all[1].name = "patch";
        all[1].custom = true;
        return all;
    }();
    ParserFuzzInput input;
    if ((bytes[0] & 1) == 0) input.options.tools = &tools;
    input.options.in_reasoning = (bytes[0] & 2) != 0;
    input.options.one_call = (bytes[0] & 4) != 0;
    const std::size_t count =
        std::min<std::size_t>(static_cast<unsigned char>(bytes[1]) % 16, bytes.size() - 2);
    input.sizes = count == 0 ? std::string(1, '\0') : std::string(bytes.substr(2, count));
    input.text = replace_invalid_utf8(bytes.substr(2 + count));
    return input;
}

}  // namespace nereid::text
