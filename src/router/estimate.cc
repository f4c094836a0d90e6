#include "router/estimate.h"

#include <algorithm>

namespace nereid::router {

TokenCount cached_tokens(const View& view, const RouteRequest& request, std::uint32_t blocks) {
    const std::uint64_t tokens = std::uint64_t{blocks} * view.block_tokens();
    const std::uint64_t most = request.prompt_tokens == 0 ? 0 : request.prompt_tokens - 1;
    return static_cast<TokenCount>(std::min(tokens, most));
}

PrefillEstimate estimate_prefill(const View& view, Stage stage, const RouteRequest& request,
                                 std::uint32_t local, std::uint32_t fetched) {
    PrefillEstimate e;
    e.cached = cached_tokens(view, request, local + fetched);
    e.uncached = request.prompt_tokens - e.cached;
    const CostModel& cost = view.cost(stage);
    e.ms = cost.prefill.ms(e.uncached, e.cached);
    if (fetched != 0) e.fetch_ms = cost.transfer.ms(fetched * view.block_tokens());
    return e;
}

bool may_take(const View& view, Stage stage, const RouteRequest& request, RankSlot slot) {
    if (!view.live(slot) || view.excluded(slot, request.excluded)) return false;
    return (stage != Stage::kDecode && stage != Stage::kUnified) ||
           view.fits(slot, kv_wanted(request));
}

View::Least least_taker(const View& view, Stage stage, const RouteRequest& request,
                        std::size_t first, std::size_t last, std::uint64_t salt) {
    const View::Least least = view.least(stage, first, last, salt);
    if (least.slot == kNoSlot || may_take(view, stage, request, least.slot)) return least;
    View::Least best;
    const auto units = view.units(stage);
    for (std::size_t u = first; u < last; ++u) {
        for (const RankSlot slot : view.ranks(units[u])) {
            const double score = view.score(slot);
            if ((best.slot == kNoSlot || score < best.score) &&
                may_take(view, stage, request, slot)) {
                best = {slot, score};
            }
        }
    }
    return best;
}

Error nobody(const View& view, Stage stage) {
    for (const UnitId unit : view.units(stage)) {
        for (const RankSlot slot : view.ranks(unit)) {
            if (view.state(view.id(slot).worker) == WorkerState::kReady) {
                return {Code::kOverloaded, std::string("every ") + std::string(stage_name(stage)) +
                                               " rank is full, busy or excluded"};
            }
        }
    }
    return {Code::kUnavailable,
            std::string("no ") + std::string(stage_name(stage)) + " worker is ready"};
}

}  // namespace nereid::router
