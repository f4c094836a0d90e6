// A small cluster and a router for tests: prefill and decode ranks in one unit each (or unified
// workers), no slow start.
#pragma once

#include <string>
#include <vector>

#include "router/policy.h"

namespace nereid::router {

struct WorldOptions {
    std::uint32_t prefill_ranks = 2;
    std::uint32_t decode_ranks = 2;
    std::uint32_t prefill_units = 1;
    std::uint32_t decode_units = 1;
    std::uint32_t unified_workers = 0;  // instead of the pools
    std::uint32_t encode_workers = 0;
    TokenCount kv_capacity_tokens = 0;
    std::string policy = "nereid";
    RouterOptions router = {};  // when policy is ""
    std::uint64_t seed = 1;
    GatewayId self{1};
};

struct TestWorld {
    explicit TestWorld(const WorldOptions& o)
        : view({.self = o.self, .block_tokens = 64, .slow_start = 0s}),
          policy(o.policy.empty() ? std::move(*make_router(o.router))
                                  : std::move(*make_policy(o.policy))),
          prng(o.seed) {
        const auto pool = [&](Stage stage, std::uint32_t units, std::uint32_t ranks) {
            for (std::uint32_t u = 0; u < units; ++u) {
                const UnitId unit = view.add_unit(stage);
                workers.push_back(
                    *view.add_worker({.name = std::string(stage_name(stage)) + std::to_string(u),
                                      .stage = stage,
                                      .unit = unit,
                                      .ranks = ranks,
                                      .kv_capacity_tokens = o.kv_capacity_tokens,
                                      .block_tokens = 64},
                                     now));
            }
        };
        if (o.unified_workers != 0) {
            pool(Stage::kUnified, o.unified_workers, 1);
        } else {
            pool(Stage::kDecode, o.decode_units, o.decode_ranks);
            pool(Stage::kPrefill, o.prefill_units, o.prefill_ranks);
        }
        if (o.encode_workers != 0) pool(Stage::kEncode, o.encode_workers, 1);
    }
    Result<Plan> choose(const RouteRequest& request) {
        return policy->choose(view, request, now, prng);
    }
    // Chooses, applies, tells the policy.
    Result<PlanHandles> place(const RouteRequest& request) {
        TRY(const Plan plan, choose(request));
        last = plan;
        policy->committed(view, request, plan, now);
        return view.apply(plan, now);
    }

    TimePoint now{1s};
    View view;
    std::unique_ptr<Policy> policy;
    Prng prng;
    std::vector<WorkerId> workers;
    Plan last;
};

}  // namespace nereid::router
