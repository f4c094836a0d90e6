// What an engine says of its own costs, as the first values of a pool's model; the online fit
// (cost/fit.h) starts from them.
//
// The source is cost.json of DeepInfer's agent (python/nereid_deepinfer/cost.py,
// docs/ops/deepinfer.md): prefill in FLOPs by the engine's own estimator, decode in ms by its
// measurement at start. Pure.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "router/cost/model.h"

namespace nereid::router {

// `base` with what `source` has in `model.prefill` and `model.decode`; null or absent: as in
// `base`. tflops: what the pool reaches in prefill, 10^12 FLOP/s; 0: unknown, then a token costs
// what it costs in `base` and the estimator decides how much context adds. kInvalidArgument names
// the member that is no positive number.
Result<CostModel> cost_of_engine(const Json& source, double tflops, const CostModel& base);

}  // namespace nereid::router
