// A plan: where a request's stages run, where its prefix comes from, what that is predicted to
// cost. A plan is a value; nothing is booked until View::apply(plan).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/units.h"
#include "router/charge.h"
#include "router/ids.h"

namespace nereid::router {

enum class PrefixSource : std::uint8_t {
    kLocal,    // in the prefill rank's own cache
    kRank,     // fetched from another rank's cache (`from`)
    kService,  // fetched from the KV service
};
// Blocks [first, first + count) of the prompt come from one place; what no run covers is computed.
struct PrefixRun {
    PrefixSource source = PrefixSource::kLocal;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    RankId from = {};
    bool operator==(const PrefixRun&) const = default;
};

struct Placement {
    RankId rank;
    Charge charge;  // of this stage; charge.slot is the rank's slot
};

// Milliseconds, predicted at selection.
struct Prediction {
    double queue_ms = 0;  // work before it on the prefill rank
    double encode_ms = 0;
    double fetch_ms = 0;  // prefix from elsewhere
    double prefill_ms = 0;
    double ttft_ms = 0;  // the sum, stages in sequence
    double decode_step_ms = 0;
};

struct Plan {
    std::optional<Placement> encode = {};
    std::optional<Placement> prefill = {};  // of a unified pool: the only placement
    std::optional<Placement> decode = {};
    std::array<PrefixRun, 2> runs{};  // contiguous from block 0, run_count of them
    std::uint32_t run_count = 0;
    TokenCount cached_tokens = 0;  // prompt tokens that need no computing, by the runs
    Prediction predicted = {};
};

// What View::apply(plan) returns; each ends on its own (encode when the embedding is there, prefill
// at the first token, decode at the end). Destroying it ends all.
struct PlanHandles {
    ChargeHandle encode;
    ChargeHandle prefill;
    ChargeHandle decode;
};

}  // namespace nereid::router
