// /v1/batches (OpenAI's) and /v1/messages/batches (Anthropic's): requests that may wait, run by
// batch_run.h in the background. A batch whose process dies goes on in the next (pending.h).
#pragma once

#include <string>

#include "gateway/generate.h"

namespace nereid::gateway {

io::Task<void> serve_batches(Exchange& x, ShardTools tools);
io::Task<void> serve_batch(Exchange& x, std::string id);
io::Task<void> serve_batch_cancel(Exchange& x, std::string id);

io::Task<void> serve_message_batches(Exchange& x, ShardTools tools);
io::Task<void> serve_message_batch(Exchange& x, std::string id);
io::Task<void> serve_message_batch_cancel(Exchange& x, std::string id);
io::Task<void> serve_message_batch_results(Exchange& x, std::string id);

}  // namespace nereid::gateway
