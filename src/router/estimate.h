// What a request would cost on a rank, given what the rank holds of its prompt. Shared by our
// policies, the peers' and the plan, so that all speak of the same tokens.
#pragma once

#include "router/policy.h"

namespace nereid::router {

// Prompt tokens that `blocks` whole blocks spare: one token is always left to compute.
TokenCount cached_tokens(const View& view, const RouteRequest& request, std::uint32_t blocks);

struct PrefillEstimate {
    TokenCount cached = 0;
    TokenCount uncached = 0;
    double ms = 0;        // of the computation, at speed 1
    double fetch_ms = 0;  // of the transfer before it
};
// `local` blocks there, `fetched` more brought in.
PrefillEstimate estimate_prefill(const View& view, Stage stage, const RouteRequest& request,
                                 std::uint32_t local, std::uint32_t fetched);

// KV room that a request wants on a decode or unified rank.
inline TokenCount kv_wanted(const RouteRequest& request) {
    return request.prompt_tokens + request.reserve_output;
}

// May this rank take the request now (open, not excluded, KV room where the stage needs it)?
bool may_take(const View& view, Stage stage, const RouteRequest& request, RankSlot slot);

// The least-scored rank of units [first, last) of the stage that may take the request: the index's
// answer, or, when that one may not, a scan of them.
View::Least least_taker(const View& view, Stage stage, const RouteRequest& request,
                        std::size_t first, std::size_t last, std::uint64_t salt);

// Why nothing was found: kUnavailable when no worker of the stage is ready, else kOverloaded.
Error nobody(const View& view, Stage stage);

}  // namespace nereid::router
