#include "router/experts/rebalance.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"

namespace nereid::router::experts {

LoadWindow::LoadWindow(std::uint32_t layers, std::uint32_t experts, std::uint32_t buckets,
                       std::uint32_t steps_per_bucket)
    : layers_(layers), experts_(experts), buckets_(buckets), steps_per_bucket_(steps_per_bucket) {
    CHECK(buckets >= 1 && steps_per_bucket >= 1);
    sum_.resize(std::size_t{layers} * experts);
    ring_.resize(sum_.size() * buckets);
}

void LoadWindow::add(std::span<const std::uint32_t> tokens) {
    CHECK(tokens.size() == sum_.size());
    const std::uint64_t bucket = steps_ / steps_per_bucket_ % buckets_;
    const std::span slot =
        std::span(ring_).subspan(static_cast<std::size_t>(bucket) * sum_.size(), sum_.size());
    if (steps_ % steps_per_bucket_ == 0) {
        // The oldest bucket goes. Summed anew rather than subtracted: no rounding builds up.
        std::ranges::fill(slot, 0.0F);
        std::ranges::fill(sum_, 0.0F);
        for (std::uint32_t b = 0; b < buckets_; ++b) {
            for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += ring_[b * sum_.size() + i];
        }
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        slot[i] += static_cast<float>(tokens[i]);
        sum_[i] += static_cast<float>(tokens[i]);
    }
    ++steps_;
}

Loads LoadWindow::loads() const { return {.layers = layers_, .experts = experts_, .values = sum_}; }

namespace {

// One node of one layer under search.
struct Part {
    std::uint32_t layer, node;
    double bound;
    Search::End end = Search::End::kBudget;
};

class Rebalance {
  public:
    Rebalance(const Placement& old, const Loads& loads, const BudgetOptions& options)
        : old_(old),
          loads_(loads),
          options_(options),
          nodes_(old.shape.hierarchical() ? old.shape.nodes : 1),
          node_slots_(old.shape.slots / nodes_),
          search_(old.shape.experts / nodes_, node_slots_, old.shape.ranks / nodes_) {
        CHECK(loads.layers == old.layers && loads.experts == old.shape.experts);
    }

    Rebalanced run() {
        find_parts();
        Rebalanced out = descend(static_cast<std::uint64_t>(
            std::floor(options_.moved_share * static_cast<double>(old_.slots.size()))));
        keep_places(out.placement);
        return out;
    }

  private:
    void find_parts() {
        for (std::uint32_t l = 0; l < old_.layers; ++l) {
            for (std::uint32_t n = 0; n < nodes_; ++n) {
                begin(old_, l, n);
                const double bound = std::max(search_.mean(), slot_bound(node_loads_, node_slots_));
                parts_.push_back({.layer = l, .node = n, .bound = bound});
            }
        }
    }
    Rebalanced descend(std::uint64_t budget) {
        constexpr double kLadder[] = {0.5,   0.3,   0.2,   0.15,  0.12,  0.1,  0.08,
                                      0.065, 0.05,  0.04,  0.03,  0.025, 0.02, 0.015,
                                      0.01,  0.007, 0.005, 0.003, 0};
        // Moves are judged by the load that they take away above this: the loss that is aimed at.
        constexpr double kAim = 0.01;
        Rebalanced out{.placement = old_, .before = balancedness(old_, loads_)};
        for (const double above : kLadder) {
            const double target = 1 + std::max(above, options_.close_enough);
            const double aim = std::min(target, 1 + std::max(kAim, options_.close_enough));
            for (Part& p : parts_) {
                if (p.end == Search::End::kStuck) continue;
                begin(out.placement, p.layer, p.node);
                const std::uint32_t used = search_.changed();
                const auto most =
                    static_cast<std::uint32_t>(std::min<std::uint64_t>(budget, node_slots_));
                p.end = search_.run(p.bound * target, used + most, p.bound * aim);
                store(out.placement, p);
                // Fewer than before when a slot went home.
                budget = budget + used - search_.changed();
                out.moved = out.moved + search_.changed() - used;
            }
            if (above <= options_.close_enough) break;
        }
        out.after = balancedness(out.placement, loads_);
        return out;
    }
    std::span<const ExpertId> node_of(const Placement& p, std::uint32_t layer,
                                      std::uint32_t node) const {
        return p.layer(layer).subspan(std::size_t{node} * node_slots_, node_slots_);
    }
    // Experts of the node numbered in ascending order; the origin of all counting is the old map.
    void begin(const Placement& now, std::uint32_t layer, std::uint32_t node) {
        const auto was = node_of(old_, layer, node);
        experts_.assign(was.begin(), was.end());
        std::ranges::sort(experts_);
        experts_.erase(std::unique(experts_.begin(), experts_.end()), experts_.end());
        CHECK(experts_.size() == old_.shape.experts / nodes_);
        local_.resize(old_.shape.experts);
        loads64_.clear();
        node_loads_.clear();
        for (std::size_t i = 0; i < experts_.size(); ++i) {
            local_[experts_[i]] = static_cast<Search::Item>(i);
            node_loads_.push_back(sane(loads_.layer(layer)[experts_[i]]));
            loads64_.push_back(node_loads_.back());
        }
        const auto is = node_of(now, layer, node);
        items_.clear();
        origin_.clear();
        for (const ExpertId e : is) items_.push_back(local_[e]);
        for (const ExpertId e : was) origin_.push_back(local_[e]);
        search_.begin(loads64_, items_, origin_);
    }
    void store(Placement& p, const Part& part) const {
        const auto slots =
            p.layer(part.layer).subspan(std::size_t{part.node} * node_slots_, node_slots_);
        for (std::size_t s = 0; s < slots.size(); ++s) slots[s] = experts_[search_.slots()[s]];
    }
    // Within each rank: what stayed goes back to its old slot, what is new fills the gaps in order.
    void keep_places(Placement& next) const {
        const std::uint32_t room = old_.shape.slots_per_rank();
        std::vector<ExpertId> fresh;
        for (std::size_t first = 0; first < next.slots.size(); first += room) {
            const std::span<const ExpertId> was = std::span(old_.slots).subspan(first, room);
            const std::span<ExpertId> is = std::span(next.slots).subspan(first, room);
            fresh.assign(is.begin(), is.end());
            std::vector<bool> kept(room);
            for (std::uint32_t i = 0; i < room; ++i) {
                const auto found = std::ranges::find(fresh, was[i]);
                if (found == fresh.end()) continue;
                fresh.erase(found);
                kept[i] = true;
            }
            auto take = fresh.begin();
            for (std::uint32_t i = 0; i < room; ++i) is[i] = kept[i] ? was[i] : *take++;
        }
    }

    const Placement& old_;
    const Loads& loads_;
    const BudgetOptions& options_;
    std::uint32_t nodes_, node_slots_;
    Search search_;
    std::vector<Part> parts_;
    std::vector<ExpertId> experts_;
    std::vector<Search::Item> local_, items_, origin_;
    std::vector<double> loads64_;
    std::vector<float> node_loads_;
};

}  // namespace

Rebalanced rebalance(const Placement& old, const Loads& loads, const BudgetOptions& options) {
    CHECK(options.moved_share >= 0 && options.close_enough >= 0);
    return Rebalance(old, loads, options).run();
}

namespace {

LayerStage stage_layer(const Placement& old, const Placement& next, std::uint32_t layer) {
    const Shape& shape = old.shape;
    const std::uint32_t room = shape.slots_per_rank();
    const std::uint32_t per_node = shape.ranks_per_node();
    const auto was = old.layer(layer);
    const auto is = next.layer(layer);
    LayerStage out{.layer = layer, .slots = std::vector(is.begin(), is.end()), .transfers = {}};
    std::vector<std::uint32_t> sent(shape.ranks), received(shape.ranks);
    const auto homes = replicas(shape, was);
    for (std::uint32_t s = 0; s < shape.slots; ++s) {
        if (is[s] == was[s]) continue;
        const std::uint32_t rank = s / room;
        const auto& from = homes[is[s]];
        CHECK_MSG(!from.empty(), "an expert without a slot");
        // Own rank (a copy on the device), own node, least sent, lowest slot.
        const auto key = [&](std::uint32_t source) {
            const std::uint32_t r = source / room;
            return std::tuple<int, std::uint32_t, std::uint32_t>(r == rank ? 0
                                                                 : r / per_node == rank / per_node
                                                                     ? 1
                                                                     : 2,
                                                                 sent[r], source);
        };
        const std::uint32_t best = *std::ranges::min_element(from, {}, key);
        out.transfers.push_back({.slot = s, .expert = is[s], .from_slot = best});
        if (best / room == rank) continue;
        out.largest_out = std::max(out.largest_out, ++sent[best / room]);
        out.largest_in = std::max(out.largest_in, ++received[rank]);
    }
    return out;
}

}  // namespace

std::vector<LayerStage> stage(const Placement& old, const Placement& next, const Loads& loads) {
    CHECK(old.shape == next.shape && old.layers == next.layers);
    std::vector<LayerStage> stages;
    for (std::uint32_t l = 0; l < old.layers; ++l) {
        if (std::ranges::equal(old.layer(l), next.layer(l))) continue;
        LayerStage s = stage_layer(old, next, l);
        s.before = balancedness(old.shape, loads.layer(l), old.layer(l));
        s.after = balancedness(old.shape, loads.layer(l), next.layer(l));
        stages.push_back(std::move(s));
    }
    // What a step saves in this layer: its time is inverse to balancedness.
    std::ranges::sort(stages, {}, [](const LayerStage& s) {
        return std::pair(1 / s.after - 1 / s.before, s.layer);
    });
    return stages;
}

Rebalancer::Rebalancer(Placement placement, RebalancerOptions options, std::uint32_t window_buckets,
                       std::uint32_t steps_per_bucket)
    : placement_(std::move(placement)),
      options_(options),
      window_(placement_.layers, placement_.shape.experts, window_buckets, steps_per_bucket),
      next_decision_(std::uint64_t{window_buckets} * steps_per_bucket) {
    CHECK(check(placement_).ok());
}

std::optional<std::vector<LayerStage>> Rebalancer::decide() {
    if (!pending_.empty() || window_.steps() < next_decision_) return std::nullopt;
    next_decision_ = window_.steps() + options_.min_steps;
    ++counters_.decisions;
    const Loads loads = window_.loads();
    counters_.balancedness = balancedness(placement_, loads);
    double bound = 0;
    for (std::uint32_t l = 0; l < loads.layers; ++l)
        bound += balancedness_bound(placement_.shape, loads.layer(l));
    counters_.bound = loads.layers == 0 ? 1 : bound / loads.layers;
    if (counters_.balancedness >= options_.act_below * counters_.bound) {
        ++counters_.held_balanced;
        return std::nullopt;
    }
    const Rebalanced next = rebalance(placement_, loads, options_.budget);
    auto stages = stage(placement_, next.placement, loads);
    double gain = 0;  // of the layers' mean time, relative
    double time = 0;
    for (std::uint32_t l = 0; l < loads.layers; ++l)
        time += 1 / balancedness(placement_.shape, loads.layer(l), placement_.layer(l));
    for (const LayerStage& s : stages) gain += 1 / s.before - 1 / s.after;
    if (stages.empty() || gain < options_.min_gain * time) {
        ++counters_.held_small_gain;
        return std::nullopt;
    }
    ++counters_.plans;
    for (const LayerStage& s : stages) pending_.push_back(s.layer);
    return stages;
}

void Rebalancer::applied(const LayerStage& layer) {
    const auto found = std::ranges::find(pending_, layer.layer);
    CHECK_MSG(found != pending_.end(), "no such layer in the plan under way");
    pending_.erase(found);
    std::ranges::copy(layer.slots, placement_.layer(layer.layer).begin());
    ++counters_.layers;
    counters_.slots_moved += layer.transfers.size();
    if (pending_.empty()) next_decision_ = window_.steps() + options_.min_steps;
}

void Rebalancer::abandon() {
    if (pending_.empty()) return;
    pending_.clear();
    ++counters_.abandoned;
    next_decision_ = window_.steps() + options_.min_steps;
}

}  // namespace nereid::router::experts
