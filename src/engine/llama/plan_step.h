// What the next step computes: one decode of all running streams, or one prefill chunk of one
// request. Pure.
//
// Prefill and decode never share a llama_decode: with a cache per sequence llama.cpp would split
// them into separate passes anyway, and the determinism rule needs it (README). The policy:
//   - nothing to prefill: decode; nothing to decode: prefill, in the largest chunks.
//   - both: a decode step follows at the latest when prefill has taken `decode_gap` since the last
//   one, and the
//     chunk is cut (in whole blocks) so that it fits into what is left of the gap; at least one
//     block per turn, so neither side starves. While more requests wait for their first token than
//     are decoding (a burst of arrivals) the gap is kBurstFactor times longer: decoding few rows
//     while many wait wastes passes over the weights.
//   - among prefills: order of `waiting`, which the caller keeps by priority, then arrival.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "engine/llama/step_cost.h"

namespace nereid::engine::llama {

inline constexpr int kBurstFactor = 4;

struct PrefillWork {
    TokenCount remaining = 0;  // tokens still to compute, >= 1
    TokenCount context = 0;    // tokens already in the cache
    std::uint32_t limit = 0;   // most rows for this request (prompt logprobs keep a row of logits
                               // each); 0 = no own limit
};
struct PlanState {
    std::uint32_t decoding = 0;
    std::vector<PrefillWork> waiting;  // in order
    Duration since_decode{0};          // prefill time spent since the last decode step
    std::uint32_t ubatch = 512;
    Duration decode_gap{0};
    bool determinism = true;
};
struct StepPlan {
    enum class Kind : std::uint8_t { kIdle, kDecode, kPrefill } kind = Kind::kIdle;
    std::uint32_t rows = 0;  // kPrefill: of waiting[0]
    bool operator==(const StepPlan&) const = default;
};
StepPlan plan_step(const PlanState& state, const StepCost& cost);

// Rows of a prefill call under the rule: whole blocks while there is one, then the tail alone.
// `wanted` >= 1. Without determinism simply min(wanted, remaining).
std::uint32_t prefill_rows(TokenCount remaining, std::uint32_t wanted, bool determinism);

// ---------------------------------------------------------------- which streams take part in a
// decode

struct StreamState {
    bool decoding = false;
    bool usable = false;    // a padding row may be put here
    TokenCount length = 0;  // cells that a padding row would read
};
// Streams that get a padding row, ascending, disjoint from the decoding ones.
//
// llama.cpp computes only streams with consecutive numbers in one pass, so a short gap between
// decoding streams is cheaper to fill than to split at. And under the rule a pass needs at least
// two rows once it sees kSplitKv cells (llama.cpp pads their number to a multiple of kKvPadding):
// ggml then splits the cells of a lone row over the threads, which adds them up in another order.
inline constexpr TokenCount kSplitKv = 512;
inline constexpr TokenCount kKvPadding = 256;
struct PaddingPolicy {
    std::uint32_t max_gap = 4;   // longest gap that is filled
    bool pair_lone_rows = true;  // under the determinism rule
};
std::vector<std::uint32_t> padding_rows(std::span<const StreamState> streams,
                                        const PaddingPolicy& policy);

}  // namespace nereid::engine::llama
