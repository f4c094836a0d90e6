// Planning: how many units of each role a workload needs to meet its objective, and what that
// costs.
//
// Starts at the offline oracle's bound (nothing can do with less), simulates, and adds a unit to
// the pool whose objective is missed (TTFT: prefill; ITL or KV room: decode) until the share of
// requests within the objective reaches the target; then takes away what proves unneeded. Unit
// sizes, engine, caches and router are the scenario's. Deterministic; costs one simulation per
// step, some 5 to 30.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/capacity/oracle.h"
#include "sim/capacity/result.h"
#include "sim/scenario.h"

namespace nereid::sim {

struct PlanningOptions {
    double price_per_gpu_hour = 2;
    double attainment = 0.95;  // of requests within the objective
    std::uint32_t most_runs = 40;
};

struct PlanningPoint {
    std::uint32_t prefill_units = 0, decode_units = 0;
    std::uint32_t gpus = 0;
    double cost_per_hour = 0;
    double cost_per_million_tokens = 0;  // of output, at the goodput
    bool enough = false;
    RunResult result;
};

struct Planning {
    Oracle oracle;  // of one unit per pool
    double offered_per_second = 0;
    std::uint32_t bound_prefill = 0, bound_decode = 0;  // units, by the oracle
    std::vector<PlanningPoint> tried;                   // in order
    std::optional<std::size_t> best;                    // index of the cheapest that is enough
};

// kConfig: a scenario without a prefill and a decode pool, a closed loop, or an objective that the
// search cannot reach within most_runs (the message says what is missed).
Result<Planning> plan_capacity(const Scenario& scenario, const workload::Trace* trace,
                               const PlanningOptions& options,
                               const std::function<void(const PlanningPoint&)>& tried = {});

Json to_json(const Planning& planning, const PlanningOptions& options);
std::string planning_text(const Planning& planning, const PlanningOptions& options);
std::string planning_page(const Scenario& scenario, const Planning& planning,
                          const PlanningOptions& options, const std::string& command,
                          const std::string& toml);

}  // namespace nereid::sim
