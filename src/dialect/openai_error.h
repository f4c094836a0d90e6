// The error object of OpenAI's APIs (Chat Completions, Responses, files, batches).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace nereid::dialect {

struct OpenAiErrorKind {
    std::string_view type;
    std::string_view code;
};
// OpenAI's words where it has some for the case (docs/formats/dialect-chat.md), else our code's own
// name.
OpenAiErrorKind openai_error_kind(const Error& error);

// {"error":{"message","type","param","code"}}; an empty param is null.
std::string openai_error_json(std::string_view message, std::string_view type,
                              std::string_view code, std::string_view param = {});
std::string openai_error_body(const Error& error);

}  // namespace nereid::dialect
