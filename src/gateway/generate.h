// The generating endpoints (chat, completions, embeddings): parse, admit, run on the engine that
// the model names, and end early when the client goes away.
#pragma once

#include "base/prng.h"
#include "gateway/exchange.h"
#include "gateway/models.h"

namespace nereid::gateway {

// What one shard brings to its requests.
struct ShardTools {
    ShardModels& models;
    Prng& prng;  // ids and default seeds
};
// Completes when the response is complete or the client gone.
io::Task<void> generate(Exchange& x, ShardTools tools);

// "<prefix>-" and 24 hex digits.
std::string make_id(std::string_view prefix, Prng& prng);

}  // namespace nereid::gateway
