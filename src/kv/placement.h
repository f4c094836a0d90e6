// Where a block's index entry lives: the seam along which one node becomes many (DESIGN §6).
//
// Blocks 16g .. 16g+15 of a chain form a group, named by the key of block 16g, and a group lives on
// the node that rendezvous hashing (Thaler, Ravishankar 1998) gives to that name: a long prompt
// touches few nodes, and a node that joins or leaves moves only its own share. A single node is the
// list of one. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "model/block_key.h"

namespace nereid::kv {

inline constexpr std::uint32_t kGroupBlocks = 16;

struct NodeId {
    std::uint64_t value = 0;
    auto operator<=>(const NodeId&) const = default;
};

// Index into `nodes` of the group's home. Precondition: nodes is not empty.
std::size_t group_home(const model::BlockKey& first_of_group, std::span<const NodeId> nodes);

// The pieces of a chain by home: consecutive blocks that live on one node.
struct ChainPart {
    std::uint32_t first_block = 0;
    std::uint32_t blocks = 0;
    std::size_t node = 0;  // index into `nodes`
    bool operator==(const ChainPart&) const = default;
};
std::vector<ChainPart> place_chain(std::span<const model::BlockKey> chain,
                                   std::span<const NodeId> nodes);

}  // namespace nereid::kv
