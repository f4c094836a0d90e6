// From a request to the grammar that its answer must follow: response_format, tool_choice and
// strict tools, in the model's notation. Pure: only the source is made here; the engine compiles
// it, off its step thread, and refuses what cannot be enforced with kUnsupported or
// kInvalidArgument whose message names the keyword (A62, A65). Cost: a copy of the schemas.
//
//   response_format json_object, json_schema    JSON schema
//   regex; lark; gbnf and ebnf                   the same (gbnf.h translates the last two)
//   tool_choice required, named                  calls in the family's notation, arguments by the
//                                                tool's schema
//   tool_choice auto, a strict tool              text; a call, once begun, follows its tool's
//   schema
//                                                (the Hermes form and ours; other families: none)
//   otherwise                                    none: auto never fails for a schema (A67)
//
// With a response_format and tools, a text follows the format and calls are free to come instead.
// Schemas of tools that are not strict are enforced as far as they can be: keywords beyond that are
// dropped (A63). Those of strict tools and of response_format are enforced whole or refused.
// An object whose schema lists properties and is silent on others gets no others: a narrower
// answer, always one of the schema's. Reasoning before the answer is free.
// A custom tool's grammar is enforced when it is a regex; a Lark one would have to be matched
// inside a JSON string: the model is told it, not held to it.
#pragma once

#include <string>
#include <string_view>

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
};

struct ConstraintContext {
    Family family = Family::kGeneric;
    const Tokenizer* tokenizer = nullptr;  // null: none (text engines)
    bool in_reasoning = false;             // the prompt ends inside reasoning
    std::string_view chat_template = {};   // its source: some families have two notations
    std::uint8_t grammars = 0;             // EngineInfo::grammars
    bool in_calls = false;                 // the prompt opened the block of calls (opens_calls)
};

// kInvalidArgument: the request names a tool that it does not have, or gives a schema that is none
// (A59: with param). kUnsupported: the engine enforces no such kind, or calls of this family cannot
// be forced (Gemma's arguments are no JSON).
Result<Constraint> constrain(const model::Request& request, const ConstraintContext& context);

}  // namespace nereid::text
