// What the router needs to know of a request. All spans are borrowed for the call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/units.h"
#include "router/ids.h"

namespace nereid::router {

struct ImageWork {
    std::uint64_t digest =
        0;  // first 8 bytes of the image's digest: affinity of the encoder's cache
    std::uint32_t patches = 0;
};

struct RouteRequest {
    TokenCount prompt_tokens = 0;
    // Chain hashes of the whole blocks of the prompt, in order; block i covers tokens
    // [i, i + 1) · View::block_tokens(). Empty when prompts are not tokenised here (text engines).
    std::span<const BlockHash> blocks = {};
    TokenCount expected_output = 256;  // mean, for predicted load
    TokenCount reserve_output = 1024;  // q90: KV room wanted beyond the prompt (R28)
    std::span<const ImageWork> images = {};
    std::uint64_t session = 0;  // conversation, 0 = none: for sticky policies
    double ttft_slo_ms = 0;     // 0 = none; DualMap and admission look at it
    // Workers not to be chosen: those that failed this request before (retry elsewhere).
    std::span<const WorkerId> excluded = {};
    // Set when a stage has its place already (a continued stream, a forwarded request).
    std::optional<RankId> pinned_prefill = {};
    std::optional<RankId> pinned_decode = {};
};

}  // namespace nereid::router
