// The migration planner: moves decode KV from a unit's heaviest rank to its lightest, a bounded
// number per call, and says what each move costs.
//
// A barrier step costs the maximum of its ranks, so one move from the maximum is worth more than
// any number elsewhere. The request moved is the one whose load is nearest to half the gap: the
// pair's maximum must fall by min_gain_ms (Llumnix: 0 < diff_after < diff_before), its KV fit the
// byte budget and the target's room. How much longer it will run is not asked: tails are heavy, and
// what has run long runs on.
//
// Pure: the view is not changed; the caller moves KV, then View::move(handle, to). O(ranks of the
// unit + requests on its heaviest rank).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "router/view.h"

namespace nereid::router {

struct Migration {
    UnitId unit;
    std::uint32_t charge_index = 0;  // the request, by its decode charge
    std::uint32_t charge_generation = 0;
    RankSlot from = kNoSlot;
    RankSlot to = kNoSlot;
    double kv_tokens = 0;
    double bytes = 0;        // over the wire: kv_tokens · kv_bytes_per_token
    double transfer_ms = 0;  // copying in the background (pre-copy, Llumnix)
    double pause_ms = 0;     // the request's own stop: the last piece
    double gain_ms = 0;      // per step, of the pair's maximum
};

struct MigrationBudget {
    std::uint32_t per_unit = 1;   // per call
    double bytes_per_unit = 4e9;  // per call
    double min_gain_ms = 0.02;    // per step
    double pause_fixed_ms = 5;    // stop, last piece, start
};

// Charges in `in_flight` are being moved already and are not picked.
std::vector<Migration> plan_migrations(const View& view, const MigrationBudget& budget,
                                       std::span<const std::uint32_t> in_flight = {});

}  // namespace nereid::router
