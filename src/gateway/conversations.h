// /v1/conversations and their items.
#pragma once

#include <string>

#include "gateway/generate.h"

namespace nereid::gateway {

io::Task<void> serve_conversations(Exchange& x, ShardTools tools);
io::Task<void> serve_conversation(Exchange& x, std::string id);
io::Task<void> serve_conversation_items(Exchange& x, ShardTools tools, std::string id);
io::Task<void> serve_conversation_item(Exchange& x, std::string id, std::string item);

}  // namespace nereid::gateway
