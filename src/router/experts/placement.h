// Where the experts of a mixture-of-experts model lie: the words, the measure, and the bound.
//
// A layer's E experts fill P >= E slots, P / R on each of R ranks; what exceeds E is redundancy,
// and an expert's tokens are divided evenly among its replicas (what vLLM, SGLang and DeepSeek's
// EPLB do). Balancedness of a layer = mean / max of the ranks' loads, the metric of vLLM
// (log_balancedness) and SGLang (eplb_balancedness); a step waits for the largest.
//
// Hierarchical shapes (groups > 1 and nodes > 1): the experts of a group lie on one node, every
// node holds groups / nodes groups (DeepSeek-V3's group-limited routing keeps traffic inside
// nodes).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace nereid::router::experts {

using ExpertId = std::uint16_t;

struct Shape {
    std::uint32_t experts = 0;  // logical, per layer
    std::uint32_t slots = 0;    // physical, per layer
    std::uint32_t ranks = 0;
    std::uint32_t groups = 1;
    std::uint32_t nodes = 1;
    bool operator==(const Shape&) const = default;
    std::uint32_t slots_per_rank() const { return slots / ranks; }
    std::uint32_t ranks_per_node() const { return ranks / nodes; }
    // Groups are kept on nodes only when they can be dealt evenly; else placement is global
    // (DeepSeek's rule).
    bool hierarchical() const { return nodes > 1 && groups % nodes == 0; }
};
// kInvalidArgument, param names the field: 1 <= experts <= 65535, slots >= experts, slots % ranks
// == 0; hierarchical: also experts % groups == 0, ranks % nodes == 0, slots % nodes == 0.
Result<void> validate(const Shape& shape);

// Loads of all layers: tokens routed to each expert, row-major [layers][experts]. Negative values
// and NaN count as 0.
struct Loads {
    std::uint32_t layers = 0;
    std::uint32_t experts = 0;
    std::span<const float> values;
    std::span<const float> layer(std::uint32_t l) const {
        return values.subspan(std::size_t{l} * experts, experts);
    }
};

inline float sane(float load) { return load > 0 ? (load < 1e30F ? load : 1e30F) : 0.0F; }

// slots[l * shape.slots + s] = expert in slot s of layer l (the engines' physical_to_logical_map);
// rank r has slots r * slots_per_rank() and following.
struct Placement {
    Shape shape;
    std::uint32_t layers = 0;
    std::vector<ExpertId> slots;
    std::span<const ExpertId> layer(std::uint32_t l) const {
        return std::span(slots).subspan(std::size_t{l} * shape.slots, shape.slots);
    }
    std::span<ExpertId> layer(std::uint32_t l) {
        return std::span(slots).subspan(std::size_t{l} * shape.slots, shape.slots);
    }
    bool operator==(const Placement&) const = default;
};
// Experts in order, redundant slots filled from expert 0 on: what engines start with. Hierarchical
// shapes: the same within each node.
Placement initial_placement(const Shape& shape, std::uint32_t layers);
// kInvalidArgument says what is wrong: size, an id out of range, an expert without a slot, a group
// on two nodes.
Result<void> check(const Placement& placement);

// Of one layer. 1 when there is no load.
double balancedness(const Shape& shape, std::span<const float> load,
                    std::span<const ExpertId> slots);
// Mean over layers.
double balancedness(const Placement& placement, const Loads& loads);

// T*: the least T such that every expert divides into parts of at most T with `slots` parts in all
// (sum of ceil(load / T) <= slots). No even division has a smaller largest slot, so a layer's
// balancedness is at most mean rank load / max(mean rank load, T*). Cost: O(E log E + P log P).
double slot_bound(std::span<const float> load, std::uint32_t slots);
double balancedness_bound(const Shape& shape, std::span<const float> load);

// The fewest slots (a multiple of ranks, at most max_slots) at which the bound reaches `target` on
// the average of the layers; max_slots rounded down to a multiple of ranks when none does. This
// bounds from above: packing may lose a little more.
std::uint32_t choose_slots(const Loads& loads, std::uint32_t ranks, double target,
                           std::uint32_t max_slots);

// The engines' logical_to_physical_map of one layer: for each expert its slots in ascending order.
std::vector<std::vector<std::uint32_t>> replicas(const Shape& shape,
                                                 std::span<const ExpertId> slots);

}  // namespace nereid::router::experts
