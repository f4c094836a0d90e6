// The canonical answer: a sequence of Events per request, whatever engine produced it.
//
// Order per choice: Start once per request, then any of TextDelta / ReasoningDelta / ToolCallDelta,
// then one ChoiceEnd per choice; then exactly one of Done or Failed for the request. Nothing
// follows Done or Failed. Text is always valid UTF-8 and is append-only (cases A34, A39).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nereid::model {

enum class FinishReason : std::uint8_t { kStop, kLength, kToolCalls, kContentFilter };

struct Usage {
    TokenCount prompt_tokens = 0;
    TokenCount cached_tokens = 0;      // part of prompt_tokens that was restored, not computed
    TokenCount completion_tokens = 0;  // all choices
    TokenCount reasoning_tokens = 0;   // part of completion_tokens
};

struct TopLogprob {
    TokenId id;
    float logprob;
    std::string bytes;  // the token's own bytes, maybe not valid UTF-8 (case A45)
};
struct TokenLogprob {
    TokenId id = 0;
    float logprob = 0;
    std::string bytes;
    std::vector<TopLogprob> top;
};

struct Start {};  // admitted; the stream's headers may go out
struct TextDelta {
    std::uint32_t choice = 0;
    std::string text;
    std::vector<TokenLogprob> logprobs =
        {};                    // tokens completed by this delta; text may lag behind them
    std::uint32_t tokens = 0;  // how many tokens this delta carries
    bool refusal = false;      // what an upstream server marks as the model's refusal to answer
};
struct ReasoningDelta {
    std::uint32_t choice = 0;
    std::string text;
    std::uint32_t tokens = 0;
};
struct ToolCallDelta {
    std::uint32_t choice = 0;
    std::uint32_t index = 0;  // of the call within the choice, 0-based, sequential (case A17)
    std::string id = {};      // id and name in the first delta of a call only (case A19)
    std::string name = {};
    std::string arguments = {};  // a fragment
    std::string name_space = {};
    bool custom = false;
};
struct ChoiceEnd {
    std::uint32_t choice = 0;
    FinishReason reason = FinishReason::kStop;
    std::string stop_sequence = {};  // the stop string that cut it, if one did
    bool context_full = false;       // kLength: no budget of the caller's, the context has ended
};
struct EmbeddingOut {
    std::uint32_t index = 0;
    std::vector<float> values;
};
struct Done {
    Usage usage;
};
struct Failed {
    Error error;
};

using Event = std::variant<Start, TextDelta, ReasoningDelta, ToolCallDelta, ChoiceEnd, EmbeddingOut,
                           Done, Failed>;

}  // namespace nereid::model
