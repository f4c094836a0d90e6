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
};
struct StepPlan {
    enum class Kind : std::uint8_t { kIdle, kDecode, kPrefill } kind = Kind::kIdle;
    std::uint32_t rows = 0;  // kPrefill: of waiting[0]
    bool operator==(const StepPlan&) const = default;
};
StepPlan plan_step(const PlanState& state, const StepCost& cost);

// Rows of a prefill call. Each call of a prompt has at least 64, for below that ggml's attention
// takes another kernel: other bits, and 40 ms a row at 1,200 tokens where the tiled one takes 2.
// Only a prompt shorter than 64 is one smaller call. About `wanted` (>= 64) otherwise: a rest under
// 128 is taken whole, a rest that would leave under 64 is split so that 64 are left.
std::uint32_t prefill_rows(TokenCount remaining, std::uint32_t wanted);
// Whole blocks of a prompt that may come from a cache: what is left to compute has at least 64 rows
// too, so that cold and warm prompts are computed by the same kernel.
std::uint32_t restorable_blocks(TokenCount prompt);

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
