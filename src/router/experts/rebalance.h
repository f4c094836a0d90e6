// Rebalancing while loads drift: when, how far, and in which order.
//
//   LoadWindow   what the decision is about: the loads of the last steps
//   rebalance()  a better placement near the old one: at most a share of the slots changes
//   Rebalancer   hysteresis around it, and one staged plan at a time
//
// Pure and deterministic. Counted as moved is what costs transfer: a slot whose rank did not hold
// that expert before. Within a rank the kept experts stay in their slots.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "router/experts/placement.h"
#include "router/experts/search.h"

namespace nereid::router::experts {

// Sums of the loads of the last `buckets` buckets of `steps_per_bucket` steps each (vLLM: 1,000
// steps). Memory: (buckets + 1) x layers x experts floats.
class LoadWindow {
  public:
    LoadWindow(std::uint32_t layers, std::uint32_t experts, std::uint32_t buckets,
               std::uint32_t steps_per_bucket);
    // Tokens per expert of one step, all layers. Precondition: layers x experts values.
    void add(std::span<const std::uint32_t> tokens);
    Loads loads() const;  // valid until the next add()
    std::uint64_t steps() const { return steps_; }
    bool full() const { return steps_ >= std::uint64_t{buckets_} * steps_per_bucket_; }

  private:
    std::uint32_t layers_, experts_, buckets_, steps_per_bucket_;
    std::uint64_t steps_ = 0;
    std::vector<float> ring_, sum_;
};

struct BudgetOptions {
    double moved_share = 0.10;  // of all slots of all layers
    // A layer is left alone when its largest rank load is within this of its bound, and improved no
    // further than to there.
    double close_enough = 0.003;
};

struct Rebalanced {
    Placement placement;
    std::uint64_t moved = 0;       // slots
    double before = 0, after = 0;  // balancedness with the loads given
};

// The budget goes first to the layers furthest from their bounds: all layers descend a ladder of
// targets together. Shapes and groups' nodes stay as they are. Precondition: check(old).ok(),
// matching loads. Cost: some milliseconds per ten layers; off the request path.
Rebalanced rebalance(const Placement& old, const Loads& loads, const BudgetOptions& options);

// One expert's weights to bring to one slot.
struct Transfer {
    std::uint32_t slot = 0;  // destination
    ExpertId expert = 0;
    std::uint32_t from_slot = 0;  // in the old placement: same node when there is one, then the
                                  // rank that has sent least so far
};
struct LayerStage {
    std::uint32_t layer = 0;
    double before = 0, after = 0;     // balancedness
    std::vector<ExpertId> slots;      // the layer's new map
    std::vector<Transfer> transfers;  // by slot; sources are slots of the old map, so all may be
                                      // read into staging first and the layer switched at once
    std::uint32_t largest_in = 0, largest_out = 0;  // transfers of the busiest rank
};
// Layers that change, largest gain first.
std::vector<LayerStage> stage(const Placement& old, const Placement& next, const Loads& loads);

struct RebalancerOptions {
    BudgetOptions budget = {};
    std::uint64_t min_steps =
        3000;  // between the ends of plans and the next decision (vLLM: 3,000)
    // Act only when the mean balancedness is below this share of its bound ...
    double act_below = 0.97;
    // ... and the plan gains at least this much of a step's expert time.
    double min_gain = 0.005;
};

class Rebalancer {
  public:
    Rebalancer(Placement placement, RebalancerOptions options, std::uint32_t window_buckets = 10,
               std::uint32_t steps_per_bucket = 100);
    void add(std::span<const std::uint32_t> tokens) { window_.add(tokens); }
    // The plan to carry out now, layer after layer, or nothing. While one is under way: nothing.
    std::optional<std::vector<LayerStage>> decide();
    // A layer's weights are in place and the engine has switched to its new map. Once per layer of
    // the plan, in any order (CHECK).
    void applied(const LayerStage& layer);
    // The rest of the plan will not come (a rank was lost, a transfer failed): the layers that were
    // applied stay, the others keep their old map.
    void abandon();
    const Placement& placement() const { return placement_; }
    struct Counters {
        std::uint64_t decisions = 0, plans = 0, layers = 0, slots_moved = 0, abandoned = 0;
        std::uint64_t held_balanced = 0, held_small_gain = 0;
        double balancedness = 1, bound = 1;  // at the last decision
    };
    const Counters& counters() const { return counters_; }

  private:
    Placement placement_;
    RebalancerOptions options_;
    LoadWindow window_;
    std::uint64_t next_decision_;
    std::vector<std::uint32_t> pending_;  // layers of the plan under way
    Counters counters_;
};

}  // namespace nereid::router::experts
