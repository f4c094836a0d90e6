#include "router/migration.h"

#include <algorithm>
#include <cmath>

namespace nereid::router {
namespace {

bool contains(std::span<const std::uint32_t> list, std::uint32_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::vector<Migration> plan_migrations(const View& view, const MigrationBudget& budget,
                                       std::span<const std::uint32_t> in_flight) {
    std::vector<Migration> plan;
    std::vector<View::LiveCharge> charges;
    const CostModel& cost = view.cost(Stage::kDecode);
    for (const UnitId unit : view.units(Stage::kDecode)) {
        const auto ranks = view.ranks(unit);
        // Loads as they will be after the moves planned so far.
        std::vector<double> load(ranks.size());
        std::vector<double> room_taken(ranks.size());
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            const RankLoad l = view.load(ranks[i]);
            load[i] = cost.decode.load_ms(l.requests, l.kv_tokens);
        }
        double bytes_left = budget.bytes_per_unit;
        for (std::uint32_t k = 0; k < budget.per_unit && ranks.size() > 1; ++k) {
            const auto heaviest =
                static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
            std::size_t lightest = ranks.size();
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                if (view.live(ranks[i]) && (lightest == ranks.size() || load[i] < load[lightest])) {
                    lightest = i;
                }
            }
            if (lightest == ranks.size() || lightest == heaviest) break;
            const double gap = load[heaviest] - load[lightest];
            // The step gets shorter by no more than the distance to the second heaviest rank.
            double second = 0;
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                if (i != heaviest) second = std::max(second, load[i]);
            }
            view.decode_charges(ranks[heaviest], charges);
            const View::LiveCharge* best = nullptr;
            double best_gain = 0;
            double best_distance = 0;
            for (const View::LiveCharge& c : charges) {
                if (contains(in_flight, c.index) || c.since > view.now() ||
                    c.reserve_tokens < budget.min_remaining_tokens) {
                    continue;
                }
                const bool taken = std::any_of(plan.begin(), plan.end(), [&](const Migration& m) {
                    return m.charge_index == c.index;
                });
                const double bytes = c.kv_tokens * cost.transfer.kv_bytes_per_token;
                const double ms = cost.decode.load_ms(1, c.kv_tokens);
                const double after = std::max({load[heaviest] - ms, load[lightest] + ms, second});
                const double gain = load[heaviest] - after;
                const double wanted = c.kv_tokens + c.reserve_tokens + room_taken[lightest];
                if (taken || bytes > bytes_left || gain < budget.min_gain_ms ||
                    !view.fits(ranks[lightest], static_cast<TokenCount>(wanted))) {
                    continue;
                }
                const double distance = std::abs(ms - gap / 2);
                if (best == nullptr || gain > best_gain ||
                    (gain == best_gain && distance < best_distance)) {
                    best = &c;
                    best_gain = gain;
                    best_distance = distance;
                }
            }
            if (best == nullptr) break;
            const double bytes = best->kv_tokens * cost.transfer.kv_bytes_per_token;
            // Pre-copy: what was produced during the copy is sent in the pause.
            const double copy_ms = cost.transfer.latency_ms + bytes / cost.transfer.bytes_per_ms;
            const double pause = budget.pause_fixed_ms + cost.transfer.latency_ms;
            if (pause > budget.max_pause_ms) break;
            const double ms = cost.decode.load_ms(1, best->kv_tokens);
            load[heaviest] -= ms;
            load[lightest] += ms;
            room_taken[lightest] += best->kv_tokens + best->reserve_tokens;
            bytes_left -= bytes;
            plan.push_back({.unit = unit,
                            .charge_index = best->index,
                            .charge_generation = best->generation,
                            .from = ranks[heaviest],
                            .to = ranks[lightest],
                            .kv_tokens = best->kv_tokens,
                            .bytes = bytes,
                            .transfer_ms = copy_ms,
                            .pause_ms = pause,
                            .gain_ms = best_gain});
        }
    }
    return plan;
}

}  // namespace nereid::router
