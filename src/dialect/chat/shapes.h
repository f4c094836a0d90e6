// The JSON pieces that the stream, the whole answer and the errors share. Internal to dialect/chat.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialect/chat/chat.h"
#include "model/event.h"

namespace nereid::dialect::chat {

void write_usage(JsonWriter& w, const model::Usage& usage);

// The entries of `logprobs.content` (A46), one object per token: a byte token is sanitised text
// plus its bytes (A45).
void write_chat_logprobs(JsonWriter& w, const std::vector<model::TokenLogprob>& entries);

// A choice's `logprobs`: {content, refusal}.
void write_choice_logprobs(JsonWriter& w, const std::vector<model::TokenLogprob>& content,
                           const std::vector<model::TokenLogprob>& refusal);

// The completions shape {tokens, token_logprobs, top_logprobs, text_offset}. `offset` is the first
// token's, in characters of the choice's text; returns the next one's. A NaN logprob is null (the
// first token of an echoed prompt, A49).
std::size_t write_completion_logprobs(JsonWriter& w,
                                      const std::vector<model::TokenLogprob>& entries,
                                      std::size_t offset);

// As OpenAI prints a token: its text, or "bytes:\xe4\xbd" for a fragment of a character.
std::string printable_token(std::string_view bytes);

}  // namespace nereid::dialect::chat
