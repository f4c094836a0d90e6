// The published greedy: DeepSeek's EPLB (deepseek-ai/EPLB, eplb.py at d52c72d, MIT), re-implemented
// with heaps. Its output equals the reference's slot for slot, ties included, when loads
// are counts (the sums of a group are exact in float below 2^24; above that the last bit of a
// group's sum may differ).
//
//   replicate: each redundant slot goes to the expert with the largest load per replica (the first
//   of equals) pack:      replicas, heaviest first, each to the least loaded rank that is not full
//   hierarchical: groups are packed to nodes in the same way first, then each node is done alone
//
// All arithmetic is float, as the reference's. Cost per layer: O(E log E + P log R), no allocation
// after construction. One thread per object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "router/experts/placement.h"

namespace nereid::router::experts {

class Greedy {
  public:
    explicit Greedy(const Shape& shape);  // precondition: validate(shape).ok()
    void solve(std::span<const float> load, std::span<ExpertId> slots);
    // The same with the nodes' experts given: experts / nodes of them for each node in turn.
    void solve(std::span<const float> load, std::span<const ExpertId> by_node,
               std::span<ExpertId> slots);

    // Of the last solve: the experts of node n (all of them when placement is global).
    std::span<const ExpertId> node_experts(std::uint32_t node) const {
        return std::span(order_).subspan(std::size_t{node} * node_experts_, node_experts_);
    }

  private:
    void solve_flat(std::span<const ExpertId> experts, std::span<const float> load,
                    std::span<ExpertId> slots, std::uint32_t ranks);
    void group_order(std::span<const float> load);

    Shape shape_;
    std::uint32_t nodes_, node_experts_;
    std::vector<ExpertId> order_;        // experts by node
    std::vector<float> values_;          // loads of the experts at hand
    std::vector<std::uint32_t> counts_;  // replicas of them
    std::vector<std::uint64_t> sorted_, heap_, replicas_, merged_;
    std::vector<std::uint32_t> owner_;  // of a redundant slot: local expert
    std::vector<std::uint32_t> filled_;
    std::vector<float> group_loads_;
    std::vector<std::uint32_t> group_pack_, group_place_;
};

}  // namespace nereid::router::experts
