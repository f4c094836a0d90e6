#include "router/decode.h"

#include "router/estimate.h"

namespace nereid::router {

Result<Pick> DecodePolicy::pick(const View& view, Stage stage, const RouteRequest& request,
                                const PrefixMatch& match, TimePoint, Prng& prng) {
    const std::uint64_t salt = prng.next();
    View::Least best;
    for (const UnitId unit : view.units(stage)) {
        const auto least = least_taker(view, stage, request, unit, salt);
        if (least.slot != kNoSlot && (best.slot == kNoSlot || least.score < best.score)) {
            best = least;
        }
    }
    if (best.slot == kNoSlot) return nobody(view, stage);
    return Pick{.slot = best.slot, .local_blocks = view.residency().depth(match, best.slot)};
}

}  // namespace nereid::router
