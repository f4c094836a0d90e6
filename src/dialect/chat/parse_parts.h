// The composite fields of a chat request: messages, tools, output format. Internal to
// dialect.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/request.h"

namespace nereid::dialect::chat {

// `ignored` collects names of message fields that mean nothing to us ("messages[].audio_id").
Result<std::vector<model::Message>> parse_messages(const Json& value, std::size_t max_messages,
                                                   std::vector<std::string>& ignored);

// What the Responses dialect reads in the same words, flat instead of nested.
Result<std::string> read_name(const Json& object, const std::string& path);
Result<model::Tool> parse_function(const Json& function, const std::string& path);
Result<model::Tool> parse_custom(const Json& custom, const std::string& path);
Result<model::ToolChoice::Kind> choice_mode(const Json& value, const std::string& path);
// A JSON schema as an object, or as a string that holds one.
Result<model::OutputFormat> schema_format(const Json& value, const std::string& path);

Result<std::vector<model::Tool>> parse_tools(const Json& value);
Result<std::vector<model::Tool>> parse_functions(const Json& value);  // the deprecated form
Result<model::ToolChoice> parse_tool_choice(const Json& value);
Result<model::ToolChoice> parse_function_call(const Json& value);  // the deprecated form
// kInvalidArgument when the choice names what is not there.
Result<void> check_tool_choice(const model::ToolChoice& choice,
                               const std::vector<model::Tool>& tools);

Result<model::OutputFormat> parse_response_format(const Json& value);
// The engines' extras for the same thing: guided_*, structured_outputs, grammar, json_schema,
// regex, ebnf. `name` is the top-level field's. An absent constraint gives kText.
Result<model::OutputFormat> parse_guided(std::string_view name, const Json& value);

}  // namespace nereid::dialect::chat
