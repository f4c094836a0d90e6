#include "router/encode.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "router/estimate.h"

namespace nereid::router {
namespace {

std::uint64_t weight(std::uint64_t digest, std::uint64_t worker, std::uint64_t rank) {
    std::uint64_t z = digest + worker * 0x9e3779b97f4a7c15u + rank * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30u)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27u)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31u);
}

}  // namespace

EncodePolicy::EncodePolicy(const EncodeOptions& options)
    : options_(options), seen_(options.remembered) {
    CHECK(std::has_single_bit(options.remembered));
}

double EncodePolicy::uncached_patches(const RouteRequest& request, RankSlot slot) const {
    double patches = 0;
    for (const ImageWork& image : request.images) {
        const Seen& seen = seen_[image.digest & (options_.remembered - 1)];
        if (seen.digest != image.digest || seen.slot != slot) patches += image.patches;
    }
    return patches;
}

Result<Pick> EncodePolicy::pick(const View& view, Stage stage, const RouteRequest& request,
                                const PrefixMatch&, TimePoint, Prng& prng) {
    if (request.images.empty()) return err(Code::kInvalidArgument, "no image to encode");
    const auto largest = std::max_element(
        request.images.begin(), request.images.end(),
        [](const ImageWork& a, const ImageWork& b) { return a.patches < b.patches; });
    RankSlot best = kNoSlot;
    double best_ms = 0;
    const auto consider = [&](RankSlot slot) {
        if (slot == kNoSlot || slot >= view.slots() || !may_take(view, stage, request, slot) ||
            view.stage(slot) != stage) {
            return;
        }
        const double own = view.cost(stage).encode.ms(uncached_patches(request, slot));
        const double ms = view.score(slot) + own / view.speed(slot);
        if (best == kNoSlot || ms < best_ms) {
            best = slot;
            best_ms = ms;
        }
    };
    // Those that have seen it, its two homes, the least loaded: in this order, so that affinity
    // wins ties.
    for (const ImageWork& image : request.images) {
        const Seen& seen = seen_[image.digest & (options_.remembered - 1)];
        if (seen.digest == image.digest) consider(seen.slot);
    }
    std::array<std::uint64_t, 2> home_weight{};
    std::array<RankSlot, 2> home{kNoSlot, kNoSlot};
    for (const UnitId unit : view.units(stage)) {
        for (const RankSlot slot : view.ranks(unit)) {
            if (!view.live(slot)) continue;
            const RankId id = view.id(slot);
            const std::uint64_t w = weight(largest->digest, id.worker.value, id.rank);
            if (w > home_weight[0]) {
                home_weight[1] = home_weight[0];
                home[1] = home[0];
                home_weight[0] = w;
                home[0] = slot;
            } else if (w > home_weight[1]) {
                home_weight[1] = w;
                home[1] = slot;
            }
        }
    }
    const auto least = least_taker(view, stage, request, 0, view.units(stage).size(), prng.next());
    for (const RankSlot slot : home) consider(slot);
    consider(least.slot);
    if (best == kNoSlot) return nobody(view, stage);
    return Pick{.slot = best};
}

void EncodePolicy::committed(const View&, const RouteRequest& request, const Pick& pick,
                             TimePoint) {
    for (const ImageWork& image : request.images) {
        seen_[image.digest & (options_.remembered - 1)] = {image.digest, pick.slot};
    }
}

}  // namespace nereid::router
