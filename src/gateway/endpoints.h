// The endpoints that do not generate. README.md has the shapes.
#pragma once

#include "gateway/exchange.h"
#include "gateway/models.h"

namespace nereid::gateway {

io::Task<void> serve_models(Exchange& x, const ShardModels& models);
io::Task<void> serve_model(Exchange& x, const ShardModels& models, std::string_view id);
// {model?, prompt | messages, add_special_tokens?, add_generation_prompt?, return_token_strs?} ->
// {count, max_model_len, tokens, token_strs}; as vLLM's. Counts what the generating endpoints would
// count.
io::Task<void> serve_tokenize(Exchange& x, ShardModels& models);
// {model?, tokens} -> {prompt}
io::Task<void> serve_detokenize(Exchange& x, ShardModels& models);
// 200 as long as the process turns its loops.
io::Task<void> serve_health(Exchange& x);
// 200 when a model can answer and the gateway does not drain; else 503 and why, per model.
io::Task<void> serve_ready(Exchange& x, const ShardModels& models);
io::Task<void> serve_metrics(Exchange& x, const ShardModels& models);
io::Task<void> serve_root(Exchange& x);
io::Task<void> serve_unknown_route(Exchange& x);
io::Task<void> serve_wrong_method(Exchange& x, std::string_view allow);

}  // namespace nereid::gateway
