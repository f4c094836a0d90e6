// Placements for given loads: the published greedy, or refined by local search.
//
// Deterministic: the same shape, loads and method give the same slots in every build. No allocation
// after construction but for a result of all layers. One thread per object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "router/experts/greedy.h"
#include "router/experts/placement.h"
#include "router/experts/search.h"

namespace nereid::router::experts {

enum class Method : std::uint8_t {
    kGreedy,   // DeepSeek's EPLB, slot for slot
    kRefined,  // from there on by Search
};

class Solver {
  public:
    // Refinement ends when the largest rank load is within `tolerance` of its lower bound.
    explicit Solver(const Shape& shape,
                    double tolerance = 5e-4);  // precondition: validate(shape).ok()
    void solve(std::span<const float> load, Method method, std::span<ExpertId> slots);
    Placement solve(const Loads& loads, Method method);  // precondition: loads.experts == experts

  private:
    void refine_groups(std::span<const float> load);
    void refine_node(std::uint32_t node, std::span<const float> load, std::span<ExpertId> slots);

    Shape shape_;
    double tolerance_;
    std::uint32_t nodes_;
    Greedy greedy_;
    Search search_;        // of one node
    Search group_search_;  // of groups over nodes
    std::vector<ExpertId> by_node_;
    std::vector<std::uint16_t> local_;  // global expert -> its number within its node
    std::vector<double> loads_;
    std::vector<Search::Item> items_;
};

}  // namespace nereid::router::experts
