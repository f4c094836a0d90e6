// Running a request: find the model, admit, run on its engine, and end early when the client goes
// away. The endpoints of the Chat dialect (chat, completions, embeddings) are here whole; those of
// Messages and Responses parse for themselves and end in run_request.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/prng.h"
#include "gateway/exchange.h"
#include "gateway/form.h"
#include "gateway/jobs.h"
#include "gateway/models.h"
#include "gateway/pdf_reader.h"
#include "model/request.h"

namespace nereid::gateway {

// What one shard brings to its requests.
struct ShardTools {
    ShardModels& models;
    Prng& prng;  // ids and default seeds
    Jobs& jobs;
    io::Network& network;  // for what requests name by URL
    PdfReader& pdf;
    // Answers a request of its own route, as if it had come over a connection (batches).
    const std::function<io::Task<void>(Exchange&, const RouteMatch&)>& dispatch;
};

// Completes when the response is complete or the client gone.
io::Task<void> generate(Exchange& x, ShardTools tools);

// Runs a parsed request into a response of `form`. Every failure has been answered when it
// completes.
io::Task<void> run_request(Exchange& x, ShardTools tools, model::Request request, Form& form);

// Runs `work`, and cuts it short when the client of `x` goes away.
io::Task<void> run_until_gone(Exchange& x, io::Task<void> work);

// The body of a request as JSON. kInvalidArgument, counted as a parse error.
Result<Json> parse_body(Exchange& x);
// Answers a request that could not be read.
io::Task<void> refuse(Exchange& x, Error error);

// Tokens of the prompt as the engine would bill them: as plan_tokens, but for the context, which a
// count may exceed. A text engine's server is asked; kUnsupported where it has no way to tell.
io::Task<Result<TokenCount>> count_prompt(Exchange& x, ShardTools tools, ShardModel& model,
                                          model::Request request);

// 24 hex digits; "<prefix>-" and these.
std::string hex_id(Prng& prng);
std::string make_id(std::string_view prefix, Prng& prng);

}  // namespace nereid::gateway
