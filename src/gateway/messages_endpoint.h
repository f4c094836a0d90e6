// POST /v1/messages and /v1/messages/count_tokens.
#pragma once

#include "gateway/generate.h"

namespace nereid::gateway {

io::Task<void> serve_messages(Exchange& x, ShardTools tools);
io::Task<void> serve_count_tokens(Exchange& x, ShardTools tools);

}  // namespace nereid::gateway
