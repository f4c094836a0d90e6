#include "router/experts/solver.h"

#include <algorithm>

#include "base/check.h"

namespace nereid::router::experts {

namespace {

std::uint32_t node_count(const Shape& s) { return s.hierarchical() ? s.nodes : 1; }

}  // namespace

Solver::Solver(const Shape& shape, double tolerance)
    : shape_(shape),
      tolerance_(tolerance),
      nodes_(node_count(shape)),
      greedy_(shape),
      search_(shape.experts / nodes_, shape.slots / nodes_, shape.ranks / nodes_),
      group_search_(nodes_ > 1 ? shape.groups : 1, nodes_ > 1 ? shape.groups : 1, nodes_),
      by_node_(shape.experts),
      local_(shape.experts),
      loads_(std::max(shape.experts, shape.groups)),
      items_(std::max(shape.slots, shape.groups)) {}

// Groups change nodes until the heaviest node cannot be made lighter by an exchange.
void Solver::refine_groups(std::span<const float> load) {
    const std::uint32_t size = shape_.experts / shape_.groups;
    const std::uint32_t per_node = shape_.groups / nodes_;
    const std::span items = std::span(items_).first(shape_.groups);
    for (std::uint32_t n = 0; n < nodes_; ++n) {
        for (std::uint32_t i = 0; i < per_node; ++i) {
            const ExpertId first = greedy_.node_experts(n)[std::size_t{i} * size];
            items[n * per_node + i] = static_cast<Search::Item>(first / size);
        }
    }
    for (std::uint32_t g = 0; g < shape_.groups; ++g) {
        loads_[g] = 0;
        for (const float w : load.subspan(std::size_t{g} * size, size)) loads_[g] += sane(w);
    }
    group_search_.begin(std::span(loads_).first(shape_.groups), items, items);
    group_search_.run(group_search_.mean());
    for (std::uint32_t i = 0; i < shape_.groups; ++i) {
        for (std::uint32_t k = 0; k < size; ++k)
            by_node_[i * size + k] = static_cast<ExpertId>(group_search_.slots()[i] * size + k);
    }
}

void Solver::refine_node(std::uint32_t node, std::span<const float> load,
                         std::span<ExpertId> slots) {
    const auto experts = greedy_.node_experts(node);
    const std::span loads = std::span(loads_).first(experts.size());
    for (std::size_t i = 0; i < experts.size(); ++i) {
        loads[i] = sane(load[experts[i]]);
        local_[experts[i]] = static_cast<std::uint16_t>(i);
    }
    const std::span items = std::span(items_).first(slots.size());
    for (std::size_t s = 0; s < slots.size(); ++s) items[s] = local_[slots[s]];
    search_.begin(loads, items, items);
    // The greedy's heaviest slot is the lightest possible one (T*, slot_bound).
    const double bound = std::max(search_.mean(), search_.largest_part());
    search_.run(bound * (1 + tolerance_));
    for (std::size_t s = 0; s < slots.size(); ++s) slots[s] = experts[search_.slots()[s]];
}

void Solver::solve(std::span<const float> load, Method method, std::span<ExpertId> slots) {
    greedy_.solve(load, slots);
    if (method == Method::kGreedy) return;
    if (nodes_ > 1) {
        refine_groups(load);
        greedy_.solve(load, by_node_, slots);
    }
    const std::uint32_t node_slots = shape_.slots / nodes_;
    for (std::uint32_t n = 0; n < nodes_; ++n)
        refine_node(n, load, slots.subspan(std::size_t{n} * node_slots, node_slots));
}

Placement Solver::solve(const Loads& loads, Method method) {
    CHECK(loads.experts == shape_.experts);
    Placement p{.shape = shape_, .layers = loads.layers, .slots = {}};
    p.slots.resize(std::size_t{loads.layers} * shape_.slots);
    for (std::uint32_t l = 0; l < loads.layers; ++l) solve(loads.layer(l), method, p.layer(l));
    return p;
}

}  // namespace nereid::router::experts
