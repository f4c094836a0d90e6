// Output parsers: a model's text to content, reasoning and tool calls, per family.
//
// Every parser gives the same events for every chunking of its input, up to where deltas are cut
// (property-tested at every byte and fuzzed). Arguments are the model's own bytes, never parsed and
// written again (A3): a fragment goes out as soon as it cannot be anything but argument. Text that
// may still become a marker is held back and released once it cannot (A38, A87). Whatever a model
// writes, nothing is lost: what looks like a call and is none comes out as content.
//
// Pure, not thread-safe, one object per choice. Memory: what is held back, which a broken call can
// make as long as the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/request.h"
#include "text/family.h"
#include "text/output.h"
#include "text/tokenizer.h"

namespace nereid::text {

struct ParserOptions {
    std::uint32_t choice = 0;
    // The request's tools; empty = calls are not looked for and their notation stays content.
    // Read while parsing: must outlive the parser.
    const std::vector<model::Tool>* tools = nullptr;
    // Ids of calls are this and the call's index ("call_x7_0"); unique per response (A21).
    std::string call_id_prefix = "call_";
    bool in_reasoning = false;  // the prompt ends inside reasoning (opens_reasoning)
    bool in_calls = false;      // the prompt opened the block of calls (DeepSeek V4, forced calls)
    bool one_call = false;  // parallel_tool_calls = false: calls after the first are dropped (A98)
};

// Never null.
std::unique_ptr<OutputParser> make_parser(Family family, const ParserOptions& options);

// Whether generation starts inside reasoning: the rendered prompt ends with the family's opening
// marker (A86).
bool opens_reasoning(Family family, std::string_view prompt_text);

// Whether generation starts inside the block of calls: DeepSeek V4's prompt opens it for a forced
// call. ParserOptions::in_calls and ConstraintContext::in_calls.
bool opens_calls(Family family, std::string_view prompt_text);

// The control token whose text this is, or -1.
TokenId control_token(const Tokenizer& tokenizer, std::string_view text);

// Control tokens that have no text for a reader but that the family's parser must see
// (<|python_tag|>, [TOOL_CALLS], <|channel|>): ChoiceOutput::Options::shown_tokens.
std::vector<TokenId> marker_tokens(Family family, const Tokenizer& tokenizer);

}  // namespace nereid::text
