// From the canonical request to engine commands, for token engines: checks against what the engine
// can do, renders and tokenises, and divides the context. Pure.
//
// What the engine lacks is refused in the field's name, never dropped (EngineInfo, DESIGN §5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/engine_port.h"
#include "model/request.h"
#include "text/family.h"
#include "text/tokenizer.h"

namespace nereid::gateway {

struct PlanInput {
    const text::TextModel& text;
    const model::EngineInfo& info;
    TokenCount context_limit = 0;  // of the configuration; 0 = the engine's
    const model::Namespace& kv_namespace;
    std::uint64_t seed = 0;  // used when the caller names none
    text::Family family = text::Family::kGeneric;
};

// One engine request per choice; those of one prompt are neighbours: choice = prompt * n + i.
struct TokenPlan {
    std::vector<model::AddRequest> adds;
    std::vector<TokenCount> prompt_tokens;  // per prompt
    std::vector<std::string> echo;          // completions with echo: the text of each prompt
    std::uint32_t n = 1;
    bool embed = false;
    bool parse = false;           // chat-like: the answer is split into reasoning, text and calls
    bool in_reasoning = false;    // the prompt ends inside reasoning (A86)
    bool in_calls = false;        // the prompt opened the block of calls
    std::string grammar_param;    // whose field the engine's complaints about the grammar are
    bool calls_only = false;      // by the grammar: a required or named call
    bool named_call = false;      // Chat ends a call of a named tool with "stop" (A23)
    bool to_context_end = false;  // the budget is what the context leaves, not the caller's
    std::uint32_t dropped_messages = 0;  // of a chat with drop_oldest_turns
};

// kUnsupported / kInvalidArgument / kContextLength with `param`. Drops the tools of a request with
// tool_choice "none". Cost: rendering and tokenising, about 1 us per 10 bytes of prompt.
//
// drop_oldest_turns: where the prompt and the wanted output (kFreePart of the context where none is
// named) do not fit, the fewest first turns that make them fit are left out. A turn begins at a
// user's message; instructions and the last turn always stay, so a chat can still be too long.
// Costs a rendering per halving of the number of turns.
inline constexpr TokenCount kFreePart = 8;
Result<TokenPlan> plan_tokens(model::Request& request, const PlanInput& input);

// Tokens of a chat-like request's prompt, by the same rules, whether or not they fit the context.
Result<TokenCount> plan_count(model::Request request, const text::TextModel& text,
                              const model::EngineInfo& info);

// Tokens of prompt and answer together: the smallest of the engine's context, its KV room and the
// configured limit.
TokenCount context_of(const model::EngineInfo& info, TokenCount context_limit);

// The tokens of a Completions prompt: text that looks like a special token is one (the caller
// writes the whole prompt, as a template would), and BOS comes first where the model wants it.
std::vector<TokenId> encode_prompt(const text::Tokenizer& tokenizer, std::string_view text,
                                   bool add_bos);

}  // namespace nereid::gateway
