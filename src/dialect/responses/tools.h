// The tools of a Responses request, and a custom tool's input out of a function's arguments.
// Internal to dialect/responses.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "dialect/responses/responses.h"

namespace nereid::dialect::responses {

// Fills create.request.tools and create.tools. No name twice in `tools`.
Result<void> parse_tools(const Json& value, const std::string& path, Create& create);
// The same of an item that brings tools (`additional_tools`, `tool_search_output`), which come
// again with each turn: the last of a name counts, but for names in `keep`. Any other item:
// nothing.
Result<void> add_item_tools(const Json& item, const std::string& path, Create& create,
                            const ToolNames* keep = nullptr);
// After parse_tools.
Result<void> parse_tool_choice(const Json& value, Create& create);

// {"input": "..."} as it streams -> the string's text. Any chunking gives the same text. What does
// not have that shape is given whole at the end, so that nothing is lost.
class InputExtractor {
  public:
    // Appends what became readable.
    void feed(std::string_view arguments, std::string& out);
    // The rest, if the shape was not met.
    void finish(std::string& out);

  private:
    enum class State : std::uint8_t { kPrefix, kText, kDone, kRaw };
    void text(char c, std::string& out);
    void escaped(char c, std::string& out);
    void unicode(std::uint32_t unit, std::string& out);

    State state_ = State::kPrefix;
    std::string seen_;        // in kPrefix and kRaw: all of it
    std::string escape_;      // "\\", "\\u", "\\uD8", ... while one is incomplete
    std::uint32_t high_ = 0;  // a high surrogate that waits for its second half
};

}  // namespace nereid::dialect::responses
