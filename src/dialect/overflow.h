// What OpenAI-compatible servers say when a request does not fit the context: OpenAI, vLLM, SGLang
// and ourselves have words of their own, most with numbers in them. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace nereid::dialect {

struct Overflow {  // tokens; 0 = not said
    std::size_t context = 0;
    std::size_t prompt = 0;
    std::size_t asked = 0;  // the prompt, or the prompt and what was wanted of the answer
};
Overflow read_overflow(std::string_view message);

}  // namespace nereid::dialect
