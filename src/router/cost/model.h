// What work costs, in predicted milliseconds: the one unit in which load, prefix benefit, transfer
// and quota are compared (DESIGN §8; facts/router.md §5.3; DeepSeek open-infra day 6 balances the
// same terms, core attention + tokens for prefill and KV + requests for decode).
//
// Plain values and arithmetic: no state, no allocation, a few ns a call. Parameters are per pool
// and come from configuration, a profile, or the online fit (cost/fit.h).
#pragma once

#include "base/units.h"

namespace nereid::router {

// ms = fixed + per_token · uncached + per_token_context · uncached · context
// where context is what an uncached token attends to on average: cached + uncached / 2. Quadratic
// in a cold prompt's length, linear in a short append to a long cached one.
struct PrefillCost {
    double fixed_ms = 2.0;
    double per_token_ms = 0.05;
    double per_token_context_ms = 2e-7;

    double ms(TokenCount uncached, TokenCount cached) const {
        const double u = uncached;
        return u == 0 ? 0.0
                      : fixed_ms + per_token_ms * u + per_token_context_ms * u * (cached + u / 2);
    }
    // Part [from, to) of the prompt: what a chunk costs, without the fixed part.
    double chunk_ms(TokenCount from, TokenCount to) const {
        const double u = static_cast<double>(to) - from;
        return per_token_ms * u + per_token_context_ms * u * (from + u / 2);
    }
};

// One decode step of a rank with n requests and kv tokens: ms = fixed + per_request · n + per_kv ·
// kv.
struct DecodeCost {
    double fixed_ms = 10.0;
    double per_request_ms = 0.05;
    double per_kv_token_ms = 2e-5;

    double load_ms(double requests, double kv_tokens) const {
        return per_request_ms * requests + per_kv_token_ms * kv_tokens;
    }
    double step_ms(double requests, double kv_tokens) const {
        return fixed_ms + load_ms(requests, kv_tokens);
    }
};

// ms = fixed + per_patch · patches + per_patch_pair · patches² (attention inside one image). By
// patches, not images (R41).
struct EncodeCost {
    double fixed_ms = 1.0;
    double per_patch_ms = 0.01;
    double per_patch_pair_ms = 0.0;

    double ms(double patches) const {
        return patches <= 0
                   ? 0.0
                   : fixed_ms + per_patch_ms * patches + per_patch_pair_ms * patches * patches;
    }
};

// Moving KV: ms = latency + bytes / rate.
struct TransferCost {
    double latency_ms = 0.5;
    double bytes_per_ms = 10e6;  // 10 GB/s
    double kv_bytes_per_token = 2e3;

    double ms(TokenCount tokens) const {
        return tokens == 0 ? 0.0 : latency_ms + tokens * kv_bytes_per_token / bytes_per_ms;
    }
};

struct CostModel {
    PrefillCost prefill;
    DecodeCost decode;
    EncodeCost encode;
    TransferCost transfer;
};

}  // namespace nereid::router
