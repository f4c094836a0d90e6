// Family: the notation in which a model writes reasoning and tool calls.
//
// Its signs are found in the chat template, since that is where a model's makers wrote the notation
// down, and are proven by rendering a call and reading it back (gguf/chat_template). Where no parser
// of ours reads what a template shows, or there is no template: kGeneric, and we tell the model
// Hermes' form in the system message ourselves. Pure; a search through the template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/request.h"

namespace nereid::text {

enum class Family : std::uint8_t {
    kGeneric,  // <tool_call>{"name":..., "arguments":{...}}</tool_call>, told in the system message
    kHermes,   // the same form, known to the template (Hermes 2/3, Qwen 2.5, Qwen 3)
    kQwenXml,  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    kLlama,    // {"name":..., "parameters":{...}}, maybe after <|python_tag|> (Llama 3.1 and later)
    kMistral,  // [TOOL_CALLS][{"name":..., "arguments":{...}}], or [TOOL_CALLS]NAME[ARGS]{...}
    kGemma,    // ```tool_code / ```json fences (Gemma 3), <start_function_call> (FunctionGemma)
    kHarmony,  // <|channel|>commentary to=functions.NAME <|message|>{...}<|call|> (gpt-oss)
    kDeepSeek3,  // <｜tool▁calls▁begin｜> ... (DeepSeek V3, R1, V3.1)
    kDeepSeek4,  // <｜DSML｜tool_calls> ... (DeepSeek V4, V4.1; rendered by deepseek-recipe)
};
std::string_view name_of(Family family);
Family detect_family(std::string_view chat_template);  // by its signs

// The name under which a tool is shown to the model and called by it: tools of a namespace are
// `namespace__name`, others keep theirs. Names are what the model sees only; events carry name and
// namespace apart (case A102).
std::string shown_name(std::string_view name_space, std::string_view name);
// What the model is told of a tool: a custom one's grammar, if it has one, beside its description.
std::string shown_description(const model::Tool& tool);

}  // namespace nereid::text
