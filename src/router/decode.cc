#include "router/decode.h"

#include "router/estimate.h"

namespace nereid::router {

Result<Pick> DecodePolicy::pick(const View& view, Stage stage, const RouteRequest& request,
                                const PrefixMatch& match, TimePoint, Prng& prng) {
    const auto best = least_taker(view, stage, request, 0, view.units(stage).size(), prng.next());
    if (best.slot == kNoSlot) return nobody(view, stage);
    return Pick{.slot = best.slot, .local_blocks = view.residency().depth(match, best.slot)};
}

}  // namespace nereid::router
