// EngineModel: what an engine's steps truly cost in the simulator, and how large its KV is.
//
// This is the simulated world, not what the router believes: the router's own models
// (router/cost) are configured or fitted from the steps that the simulated engines report.
//
//   prefill step of a unit = fixed + max over ranks of Σ chunk   (+ experts: see moe_*)
//   decode step of a unit  = fixed + max over ranks of (request · n + kv_token · KV)
//
// With a share of experts in it, that share of a rank's cost is spread over the unit by the
// all-to-all: it costs the unit's mean times the experts' imbalance (largest rank over mean, mean
// of the layers), while the rest waits for the slowest rank.
//
// Every number has its source in engine_model.cc; `free_parameters` lists those that no
// publication gives, for the studies that must name them. Milliseconds, tokens, bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "router/cost/model.h"
#include "sim/capacity/flops.h"

namespace nereid::sim {

inline constexpr TokenCount kChunkGrain = 64;  // chunks that are cut are multiples of it

struct EngineModel {
    std::string name;

    double prefill_fixed_ms = 6;
    double prefill_token_ms = 0.0083;
    double prefill_pair_ms = 5.6e-7;  // per (token, token of context before it)
    // When set, a chunk costs its FLOPs at this rate instead of the two terms above.
    std::shared_ptr<const FlopsV41> flops;
    double flops_per_ms = 0;
    double prefill_moe_share = 0;  // in [0, 1]

    double decode_fixed_ms = 12;
    double decode_request_ms = 18.0 / 88;
    double decode_kv_token_ms = 18.0 / 440'000;
    double decode_moe_share = 0;  // of decode_request_ms
    double tokens_per_step = 1;   // accepted tokens per request and step, on average

    double kv_bytes_per_token = 70'272;
    double state_bytes = 0;  // moved with a request besides its KV

    std::vector<std::string> free_parameters;

    // Positions [from, to) of a prompt of `prompt` tokens, without the fixed part.
    double chunk_ms(TokenCount from, TokenCount to, TokenCount prompt) const;
    // The largest number of tokens <= limit, a multiple of 64 or `limit` itself, whose chunk costs
    // at most `budget_ms`; at least min(limit, 64) so that work always proceeds.
    TokenCount tokens_within(TokenCount from, TokenCount limit, TokenCount prompt,
                             double budget_ms) const;
    double decode_ms(double requests, double kv_tokens) const {
        return decode_request_ms * requests + decode_kv_token_ms * kv_tokens;
    }
    // The linear model that an operator would configure for this engine: the router's start, before
    // any fit.
    router::CostModel router_model(double bytes_per_ms) const;
};

// "study" (facts/router.md §5), "v3-h800", "v41-flash-h800", "llama-cpu". kConfig for another name.
Result<EngineModel> engine_model(std::string_view name);
std::vector<std::string_view> engine_model_names();

}  // namespace nereid::sim
