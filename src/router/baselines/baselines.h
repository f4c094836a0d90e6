// The policies of other routers behind our interface: for comparison in the simulator, and for
// users who want them. Formulas: facts/router.md §1, read in the sources named there.
//
// They see the same View (own charges at once, others' as samples), which is kinder than what
// several of them do themselves. None checks KV room. Each scans the pool: O(ranks) a choice.
//
//   round-robin     the next rank
//   random          any rank
//   least-requests  fewest requests in flight (LMetric's and many routers' baseline)
//   least-tokens    fewest KV + outstanding prefill tokens (SGLang total_tokens)
//   power-of-two    of two random ranks the one with fewer tokens (sgl-model-gateway 0.3.2)
//   cache-aware     approximate prefix tree of what was routed; when in-flight counts differ by
//   more than
//                   64 and 1.5 x the least loaded, else a match over 0.3 of the prompt wins, else
//                   the least loaded (sgl-model-gateway 0.3.2 with its defaults)
//   dynamo          max(0, (active_prefill_tokens + isl) / block - overlap) + decode_blocks; in a
//   decode
//                   pool max(0, decode_blocks - overlap) (Dynamo kv-router 1.6.1, temperature 0)
//   llmd-sticky     ranks that hold >= 0.8 of the prompt are alone considered, unless the best of
//   them
//                   would wait 2 s longer than the least loaded, and in 1 % of cases; then least
//                   in-flight tokens (llm-d EPP of August 2026; threshold and penalty are ours, its
//                   defaults are not in our facts)
//   lmetric         new prefill tokens x (batch + 1) (2603.15202)
//   dualmap         two hashes of the prefix name two ranks: the one with more of it while its
//   predicted
//                   TTFT meets the SLO, else the less loaded (2602.06502; SLO 2 s when the request
//                   has none)
#pragma once

#include <memory>
#include <span>

#include "router/policy.h"

namespace nereid::router {

std::span<const std::string_view> baseline_names();
std::unique_ptr<StagePolicy> make_baseline(std::string_view name);  // nullptr: no such name

}  // namespace nereid::router
