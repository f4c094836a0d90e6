// From a request to the grammar that its answer must follow: response_format, tool_choice and
// strict tools, in the model's notation. Pure: only the source is made here; the engine compiles
// it, off its step thread, and refuses what cannot be enforced with kUnsupported or
// kInvalidArgument whose message names the keyword (A62, A65). Cost: a copy of the schemas.
//
//   response_format json_object, json_schema    JSON schema
//   regex; lark; gbnf and ebnf                   the same (gbnf.h translates the last two)
//   tool_choice required, named                  calls in the family's notation, arguments by the
//                                                tool's schema or grammar (can_force_calls)
//   tool_choice auto, a strict tool or a         text; a call, once begun, is one of the tools' and
//     custom one with a grammar                  follows what that tool demands
//   otherwise                                    none: auto never fails for a schema (A67)
//
// With a response_format and tools, a text follows the format and calls are free to come instead.
// Schemas of tools that are not strict are enforced as far as they can be where a call is forced:
// keywords beyond that are dropped (A63); with tool_choice auto they are not looked at. Those of
// strict tools and of response_format are enforced whole or refused.
// An object whose schema lists properties and is silent on others gets no others: a narrower
// answer, always one of the schema's. Reasoning before the answer is free.
// A custom tool's grammar (Lark, a regex) is enforced inside the JSON string that the notation puts
// its input in (ffi/guidance, quote.rs). Gemma's arguments are written as JSON, which its parser
// reads like the family's own form.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/engine_port.h"
#include "model/request.h"
#include "text/family.h"
#include "text/tokenizer.h"

namespace nereid::text {

struct Constraint {
    model::GrammarKind kind = model::GrammarKind::kNone;
    std::string source = {};
    // Errors of the engine about the grammar belong to this field of the request:
    // "response_format", "tools", "tool_choice".
    std::string param = {};
    bool calls_only = false;  // every finished answer is a call (required, named)
    // The grammar begins after exactly these tokens: the end of the reasoning that the prompt
    // opened, for engines without Lark. Empty: at once.
    std::vector<TokenId> trigger = {};
};

struct ConstraintContext {
    Family family = Family::kGeneric;
    const Tokenizer* tokenizer = nullptr;  // null: none (text engines)
    bool in_reasoning = false;             // the prompt ends inside reasoning
    std::string_view chat_template = {};   // its source: some families have two notations
    std::uint8_t grammars = 0;             // EngineInfo::grammars
    bool in_calls = false;                 // the prompt opened the block of calls (opens_calls)
};

// The grammar of a custom tool's input; nothing for plain text and functions.
struct CustomGrammar {
    std::string syntax;  // "lark", "regex"
    std::string definition;
};
std::optional<CustomGrammar> custom_grammar(const model::Tool& tool);

// Whether tool_choice required and named can be held to: by Lark; by EBNF where the prompt itself
// opens the block of calls (DeepSeek V4, V4.1), so that no text or reasoning stands before it.
bool can_force_calls(Family family, std::uint8_t grammars);

// kInvalidArgument: the request names a tool that it does not have, or gives a schema that is none
// (A59: with param). kUnsupported: the engine enforces no such kind.
Result<Constraint> constrain(const model::Request& request, const ConstraintContext& context);

}  // namespace nereid::text
