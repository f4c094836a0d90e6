// The Responses API with its state: create (streamed, whole, in the background), read, replay,
// cancel, delete, list the input, count it, compact it; and conversations.
//
// A stored response is one record: the response object, this turn's input items, and the name of
// the turn before. A turn's history is read by walking these names; a conversation's by its items.
// What is stored belongs to the key that made it; others get 404.
#pragma once

#include <string_view>

#include "gateway/generate.h"
#include "gateway/routes.h"

namespace nereid::gateway {

io::Task<void> serve_responses(Exchange& x, ShardTools tools);
io::Task<void> serve_response(Exchange& x, ShardTools tools, std::string id);
io::Task<void> serve_response_cancel(Exchange& x, ShardTools tools, std::string id);
io::Task<void> serve_input_items(Exchange& x, std::string id);
io::Task<void> serve_input_tokens(Exchange& x, ShardTools tools);
io::Task<void> serve_compact(Exchange& x, ShardTools tools);

}  // namespace nereid::gateway
