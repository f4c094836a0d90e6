#include "text/family.h"

#include <fmt/format.h>

#include "text/grammar.h"

namespace nereid::text {

std::string_view name_of(Family family) {
    switch (family) {
        case Family::kGeneric:
            return "generic";
        case Family::kHermes:
            return "hermes";
        case Family::kQwenXml:
            return "qwen-xml";
        case Family::kLlama:
            return "llama";
        case Family::kMistral:
            return "mistral";
        case Family::kGemma:
            return "gemma";
        case Family::kHarmony:
            return "harmony";
        case Family::kDeepSeek3:
            return "deepseek-v3";
        case Family::kDeepSeek4:
            return "deepseek-v4";
    }
    return "generic";
}

// Ordered from the most particular sign to the least: several templates mention <tool_call>.
Family detect_family(std::string_view t) {
    const auto has = [t](std::string_view sign) { return t.find(sign) != std::string_view::npos; };
    // V4's templates write the mark without its bracket; V3.2 has another block of calls.
    if (has("\xEF\xBD\x9C"
            "DSML\xEF\xBD\x9C") &&
        !has("function_calls"))
        return Family::kDeepSeek4;
    if (has("tool\xE2\x96\x81"
            "calls\xE2\x96\x81"
            "begin"))
        return Family::kDeepSeek3;
    if (has("<|channel|>")) return Family::kHarmony;
    if (has("<start_function_call>") || has("<|tool_call>")) return Family::kGemma;
    if (has("[TOOL_CALLS]")) return Family::kMistral;
    if (has("<function=") && has("<parameter=")) return Family::kQwenXml;
    if (has("<tool_call>")) return Family::kHermes;
    if (has("<|python_tag|>") || (has("<|start_header_id|>") && has("parameters")))
        return Family::kLlama;
    return Family::kGeneric;
}

std::string shown_name(std::string_view name_space, std::string_view name) {
    if (name_space.empty()) return std::string(name);
    return std::string(name_space) + "__" + std::string(name);
}

std::string shown_description(const model::Tool& tool) {
    // The Responses dialect, which hands custom tools on as functions, has told it already.
    const auto grammar = tool.custom ? custom_grammar(tool) : std::nullopt;
    if (!grammar) return tool.description;
    return fmt::format("{}\n\nThe input must match this {} grammar:\n{}", tool.description,
                       grammar->syntax, grammar->definition);
}

}  // namespace nereid::text
