// Bytes -> (family, options, text, chunking): every parser gives the same for every chunking, valid
// UTF-8, calls numbered in order, and without tools not a byte of the text is lost.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/parser.h"

namespace {

using nereid::text::Family;

struct Result {
    std::string content;
    std::string reasoning;
    std::vector<std::string> calls;  // name, NUL, arguments
    bool called = false;
    bool operator==(const Result&) const = default;
};

void take(const std::vector<nereid::model::Event>& events, Result& result) {
    namespace model = nereid::model;
    for (const model::Event& event : events) {
        if (const auto* text = std::get_if<model::TextDelta>(&event)) {
            CHECK(nereid::is_valid_utf8(text->text));
            result.content += text->text;
        } else if (const auto* thought = std::get_if<model::ReasoningDelta>(&event)) {
            CHECK(nereid::is_valid_utf8(thought->text));
            result.reasoning += thought->text;
        } else if (const auto* call = std::get_if<model::ToolCallDelta>(&event)) {
            CHECK(nereid::is_valid_utf8(call->arguments));
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

Result run(Family family, const nereid::text::ParserOptions& options, std::string_view text,
           std::string_view sizes) {
    const auto parser = nereid::text::make_parser(family, options);
    Result result;
    for (std::size_t i = 0; !text.empty(); ++i) {
        std::size_t size = sizes.empty()
                               ? text.size()
                               : 1 + static_cast<unsigned char>(sizes[i % sizes.size()]) % 9;
        size = std::min(size, text.size());
        while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80)
            ++size;
        std::vector<nereid::model::Event> events;
        parser->push(text.substr(0, size), events);
        take(events, result);
        text.remove_prefix(size);
    }
    std::vector<nereid::model::Event> events;
    result.called = parser->finish(events);
    take(events, result);
    return result;
}

}  // namespace

// First byte: family; second: options; third: how many bytes of chunk sizes follow; the rest is
// text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 3) return 0;
    static const std::vector<nereid::model::Tool> tools = [] {
        std::vector<nereid::model::Tool> all(2);
        all[0].name = "f";
        all[1].name = "patch";
        all[1].custom = true;
        return all;
    }();
    const auto family = static_cast<Family>(data[0] % 8);  // the ninth is another library's
    nereid::text::ParserOptions options;
    if ((data[1] & 1) == 0) options.tools = &tools;
    options.in_reasoning = (data[1] & 2) != 0;
    options.one_call = (data[1] & 4) != 0;
    const std::size_t count = std::min<std::size_t>(data[2] % 16, size - 3);
    const std::string sizes(reinterpret_cast<const char*>(data) + 3, count);
    const std::string text = nereid::replace_invalid_utf8(
        {reinterpret_cast<const char*>(data) + 3 + count, size - 3 - count});
    const Result whole = run(family, options, text, "");
    CHECK(run(family, options, text, sizes.empty() ? std::string(1, '\0') : sizes) == whole);
    CHECK(whole.called == !whole.calls.empty());
    if (options.tools == nullptr) {
        CHECK(whole.calls.empty());
        if (whole.reasoning.empty() && !options.in_reasoning && family != Family::kHarmony &&
            text.find("<think>") == std::string::npos && text.find("[THINK]") == std::string::npos)
            CHECK(whole.content == text);
    }
    return 0;
}
