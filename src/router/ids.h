// Names of what the router chooses among.
//
//   worker  one engine process with one address; has 1..n ranks (data-parallel replicas inside it)
//   rank    one KV cache and one batch: what a request is placed on, and what a charge is booked on
//   unit    a group of ranks that step together (a barrier per step, as DP attention with expert
//           parallelism has): one or several workers. An engine without a barrier is its own unit.
//   stage   what a rank does for a request; a pool is all ranks that play one stage
//
// A WorkerId and a UnitId are never reused by a View. A RankSlot is a dense index into a View's
// arrays; the View reuses it after its rank is gone and the last charge on it has ended.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace nereid::router {

using WorkerId = Id<struct WorkerIdTag>;
using UnitId = Id<struct UnitIdTag>;
using GatewayId = Id<struct GatewayIdTag>;  // of one gateway process (instance), never 0

using RankSlot = std::uint32_t;
inline constexpr RankSlot kNoSlot = 0xffff'ffff;

// A rank as the outside knows it: the engine's address and its data-parallel rank (R14: the router
// names it explicitly, `routed_dp_rank` / `disagg_prefill_dp_rank`).
struct RankId {
    WorkerId worker;
    std::uint32_t rank = 0;
    auto operator<=>(const RankId&) const = default;
};

enum class Stage : std::uint8_t { kEncode, kPrefill, kDecode, kUnified };
inline constexpr std::size_t kStages = 4;
std::string_view stage_name(Stage stage);  // "encode", "prefill", "decode", "unified"

// First 8 bytes of model::BlockKey, little-endian: how the router names a prefix block. A chain key
// names a block and all that is before it, so a match is positional (R12).
using BlockHash = std::uint64_t;

}  // namespace nereid::router
