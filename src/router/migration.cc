#include "router/migration.h"

#include <algorithm>

namespace nereid::router {
namespace {

// One unit's loads, as they will be after the moves planned so far.
class UnitPlan {
  public:
    UnitPlan(const View& view, const MigrationBudget& budget, UnitId unit,
             std::span<const std::uint32_t> in_flight)
        : view_(view),
          budget_(budget),
          cost_(view.cost(Stage::kDecode)),
          unit_(unit),
          ranks_(view.ranks(unit)),
          busy_(in_flight.begin(), in_flight.end()),
          load_(ranks_.size()),
          room_taken_(ranks_.size()),
          bytes_left_(budget.bytes_per_unit) {
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            const RankLoad l = view.load(ranks_[i]);
            load_[i] = cost_.decode.load_ms(l.requests, l.kv_tokens);
        }
    }

    // Plans one more move; false when none is worth it.
    bool next(std::vector<Migration>& plan) {
        std::size_t to = ranks_.size();
        std::size_t from = 0;
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            if (load_[i] > load_[from]) from = i;
            if (view_.live(ranks_[i]) && (to == ranks_.size() || load_[i] < load_[to])) to = i;
        }
        if (to == ranks_.size() || to == from) return false;
        view_.decode_charges(ranks_[from], charges_);
        const View::LiveCharge* best = nullptr;
        double best_gain = 0;
        for (const View::LiveCharge& c : charges_) {
            const double ms = cost_.decode.load_ms(1, c.kv_tokens);
            const double gain = std::min(ms, load_[from] - load_[to] - ms);
            if (gain >= budget_.min_gain_ms && gain > best_gain && may_move(c, to)) {
                best = &c;
                best_gain = gain;
            }
        }
        if (best == nullptr) return false;
        const double ms = cost_.decode.load_ms(1, best->kv_tokens);
        const double bytes = best->kv_tokens * cost_.transfer.kv_bytes_per_token;
        load_[from] -= ms;
        load_[to] += ms;
        room_taken_[to] += best->kv_tokens + best->reserve_tokens;
        bytes_left_ -= bytes;
        busy_.push_back(best->index);
        plan.push_back(
            {.unit = unit_,
             .charge_index = best->index,
             .charge_generation = best->generation,
             .from = ranks_[from],
             .to = ranks_[to],
             .kv_tokens = best->kv_tokens,
             .bytes = bytes,
             .transfer_ms = cost_.transfer.latency_ms + bytes / cost_.transfer.bytes_per_ms,
             // What was produced during the copy goes in the pause, and is little.
             .pause_ms = budget_.pause_fixed_ms + cost_.transfer.latency_ms,
             .gain_ms = best_gain});
        return true;
    }

  private:
    bool may_move(const View::LiveCharge& c, std::size_t to) const {
        const double wanted = c.kv_tokens + c.reserve_tokens + room_taken_[to];
        return c.since <= view_.now() &&
               c.kv_tokens * cost_.transfer.kv_bytes_per_token <= bytes_left_ &&
               std::find(busy_.begin(), busy_.end(), c.index) == busy_.end() &&
               view_.fits(ranks_[to], static_cast<TokenCount>(wanted));
    }

    const View& view_;
    const MigrationBudget& budget_;
    const CostModel& cost_;
    UnitId unit_;
    std::span<const RankSlot> ranks_;
    std::vector<std::uint32_t> busy_;  // charges that are being moved
    std::vector<double> load_;
    std::vector<double> room_taken_;
    double bytes_left_;
    std::vector<View::LiveCharge> charges_;
};

}  // namespace

std::vector<Migration> plan_migrations(const View& view, const MigrationBudget& budget,
                                       std::span<const std::uint32_t> in_flight) {
    std::vector<Migration> plan;
    for (const UnitId unit : view.units(Stage::kDecode)) {
        if (view.ranks(unit).size() < 2) continue;
        UnitPlan moves(view, budget, unit, in_flight);
        for (std::uint32_t k = 0; k < budget.per_unit && moves.next(plan); ++k) {
        }
    }
    return plan;
}

}  // namespace nereid::router
