// The names and policies of the fields that each endpoint knows, for the documentation and its
// test.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace nereid::dialect::chat {

enum class Policy : std::uint8_t {
    kImplement,  // OpenAI's field, acted on
    kExtra,      // a field of the engines (vLLM, SGLang, llama.cpp, DeepSeek), acted on
    kAccept,     // means nothing here; listed in Request::ignored_fields
    kRefuse,     // kUnsupported: ignoring it would change the answer
};

struct FieldPolicy {
    std::string_view name;
    Policy policy;
};

std::vector<FieldPolicy> chat_fields();
std::vector<FieldPolicy> completion_fields();
std::vector<FieldPolicy> embedding_fields();

}  // namespace nereid::dialect::chat
