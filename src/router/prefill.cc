#include "router/prefill.h"

#include <algorithm>
#include <array>

#include "router/estimate.h"

namespace nereid::router {
namespace {

constexpr std::size_t kMaxHolders = 64;
constexpr std::size_t kHomeBlock = 3;  // the first four blocks name a prompt's family

std::uint64_t scramble(std::uint64_t z) {
    z = (z ^ (z >> 30u)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27u)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31u);
}

}  // namespace

// The best candidate so far.
struct PrefillPolicy::Search {
    const View& view;
    Stage stage;
    const RouteRequest& request;
    const PrefixMatch& match;
    const PrefillOptions& options;

    Pick best{};
    double best_ms = 0;
    bool best_over = true;

    // bonus: part of its own cost that the candidate is let off.
    void consider(RankSlot slot, bool off_bucket, double bonus) {
        consider(slot, view.residency().depth(match, slot), off_bucket, bonus);
    }
    void consider(RankSlot slot, std::uint32_t depth, bool off_bucket, double bonus) {
        if (!may_take(view, stage, request, slot)) return;
        Pick pick{.slot = slot, .local_blocks = depth};
        const double queue = view.score(slot);
        const double speed = view.speed(slot);
        PrefillEstimate own = estimate_prefill(view, stage, request, pick.local_blocks, 0);
        double ms = own.ms / speed;
        if (options.fetch && match.longest() > pick.local_blocks) {
            const std::uint32_t more = match.longest() - pick.local_blocks;
            const auto fetched = estimate_prefill(view, stage, request, pick.local_blocks, more);
            // Fetching goes on while the request waits.
            const double with = std::max(0.0, fetched.fetch_ms - queue) + fetched.ms / speed;
            std::array<Residency::Holder, 1> from{};
            if (with < ms && view.residency().holders(match, from, slot) == 1) {
                ms = with;
                pick.fetch_blocks = more;
                pick.fetch_from = from[0].slot;
            }
        }
        const double total =
            queue + ms * (1 + options.work_weight - bonus + (off_bucket ? options.off_bucket : 0));
        const bool over = view.prefill_ms(slot) > options.quota_ms;
        if (best.slot == kNoSlot || (over != best_over ? best_over : total < best_ms)) {
            best = pick;
            best_ms = total;
            best_over = over;
        }
    }
};

Result<Pick> PrefillPolicy::pick(const View& view, Stage stage, const RouteRequest& request,
                                 const PrefixMatch& match, TimePoint, Prng& prng) {
    const auto units = view.units(stage);
    if (units.empty()) return nobody(view, stage);
    buckets_.set_units(static_cast<std::uint32_t>(units.size()));
    const auto range = buckets_.units_of(buckets_.bucket_of(request.prompt_tokens));
    const std::uint64_t salt = prng.next();
    Search search{view, stage, request, match, options_};

    const auto least = least_taker(view, stage, request, range.first, range.last, salt);
    if (least.slot != kNoSlot) search.consider(least.slot, false, 0);
    const auto in_bucket = [&](RankSlot slot) {
        const std::size_t at = view.position(slot);
        return at >= range.first && at < range.last;
    };
    std::array<Residency::Holder, kMaxHolders> holders{};
    const std::size_t n = view.residency().holders(
        match, {holders.data(), std::min<std::size_t>(options_.holders, kMaxHolders)}, salt);
    for (std::size_t i = 0; i < n; ++i) view.prefetch(holders[i].slot);
    for (std::size_t i = 0; i < n; ++i) {
        const auto [slot, depth] = holders[i];
        if (view.stage(slot) != stage) continue;
        search.consider(slot, depth, !in_bucket(slot), 0);
    }
    if (!request.blocks.empty()) {
        const std::uint64_t family =
            request.blocks[std::min(kHomeBlock, request.blocks.size() - 1)];
        for (std::uint64_t home = 1; home <= 2; ++home) {
            const std::uint64_t h = scramble(family + home * 0x9e3779b97f4a7c15u);
            const auto ranks =
                view.ranks(units[range.first + (h >> 32u) % (range.last - range.first)]);
            if (!ranks.empty()) {
                search.consider(ranks[h % ranks.size()], false, options_.second_home_slack);
            }
        }
    }
    // Spill: the bucket is too busy, or nobody in it may take the request.
    const bool full = search.best.slot == kNoSlot || search.best_over ||
                      view.score(search.best.slot) > options_.spill_ms;
    if (full) {
        const std::array<std::pair<std::size_t, std::size_t>, 2> outside{
            {{0, range.first}, {range.last, units.size()}}};
        for (const auto& [first, last] : outside) {
            const auto other = least_taker(view, stage, request, first, last, salt);
            if (other.slot != kNoSlot) search.consider(other.slot, true, 0);
        }
    }
    if (search.best.slot == kNoSlot) return nobody(view, stage);
    return search.best;
}

void PrefillPolicy::committed(const View& view, const RouteRequest& request, const Pick& pick,
                              TimePoint now) {
    const PrefillEstimate own = estimate_prefill(view, view.stage(pick.slot), request,
                                                 pick.local_blocks, pick.fetch_blocks);
    buckets_.add(request.prompt_tokens, own.ms, now);
    buckets_.refit(now);
}

}  // namespace nereid::router
