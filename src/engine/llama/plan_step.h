// What the next step computes: one decode of all running streams, or one prefill chunk of one
// request, or the whole rests of several short ones. Pure.
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
//   Requests on neighbouring streams join the first one's call when that computes all that is left
//   of each (joined_prefill): a pass over the weights costs as much as 20 rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "engine/llama/step_cost.h"
#include "model/block_key.h"

namespace nereid::engine::llama {

inline constexpr int kBurstFactor = 4;

struct PrefillWork {
    TokenCount remaining = 0;  // tokens still to compute, >= 1
    TokenCount context = 0;    // tokens already in the cache
    std::uint32_t limit = 0;   // most rows for this request (prompt logprobs keep a row of logits
                               // each); 0 = no own limit
    std::uint32_t stream = 0;
    bool joinable =
        false;  // may share a call: no own limit, and `ubatch` more cells fit its stream
    std::optional<model::BlockKey> next_block = {};  // the first block that it will compute, should
                                                     // another request be able to reuse that
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
    std::uint32_t rows = 0;  // kPrefill: of each request in the call; beyond what is left of it
                             // they are padding
    std::vector<std::uint32_t> joined = {};  // kPrefill: who joins waiting[0], as indices
    bool operator==(const StepPlan&) const = default;
};
StepPlan plan_step(const PlanState& state, const StepCost& cost);

// Rows of a prefill call. Each call of a prompt has at least 64, for below that ggml's attention
// takes another kernel: other bits, and 40 ms a row at 1,200 tokens where the tiled one takes 2.
// Only a prompt shorter than 64 is one smaller call. About `wanted` (>= 64) otherwise: a rest under
// 128 is taken whole, a rest that would leave under 64 is split so that 64 are left.
std::uint32_t prefill_rows(TokenCount remaining, std::uint32_t wanted);
// Rows that compute a rest of `remaining` tokens behind `context` in one call. A rest under 64 that
// a hit left is padded to 64, since a cold prompt computes these tokens in a call of 64 or more.
// So is a whole prompt of 40 to 63 tokens, as the kernel for few rows is so much slower (measured:
// 40 rows 45 to 130 ms, 63 rows 170 to 230, 64 rows 75 to 110): a function of its length alone.
inline constexpr std::uint32_t kPadFrom = 40;
std::uint32_t padded_rows(TokenCount remaining, TokenCount context);
// Who shares the call of waiting[0], as indices of `waiting` in ascending order of streams,
// waiting[0] among them. llama.cpp computes rows of several streams in one pass when each has the
// same number of rows and the streams are consecutive, and the bits stay those of a call alone
// (determinism_test). So: neighbours with all their rest in this call, padded to the longest by a
// quarter at most, all on the same side of the 64 rows where the kernel changes, none waiting for
// another's block, and `most` rows in all.
std::vector<std::uint32_t> joined_prefill(std::span<const PrefillWork> waiting, std::uint32_t most);
// Whole blocks of a prompt that may come from a cache: at least one token is left to compute, and
// at least 64 where padding to 64 rows would not fit into the stream's `capacity` cells.
std::uint32_t restorable_blocks(TokenCount prompt, TokenCount capacity);

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
