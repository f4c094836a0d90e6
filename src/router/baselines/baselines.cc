#include "router/baselines/baselines.h"

#include <algorithm>
#include <array>
#include <vector>

#include "router/estimate.h"

namespace nereid::router {
namespace {

// Ranks that may get the request, in the order of units and ranks.
class Candidates {
  public:
    std::span<const RankSlot> of(const View& view, Stage stage, const RouteRequest& request) {
        slots_.clear();
        for (const UnitId unit : view.units(stage)) {
            for (const RankSlot slot : view.ranks(unit)) {
                if (view.live(slot) && !view.excluded(slot, request.excluded)) {
                    slots_.push_back(slot);
                }
            }
        }
        return slots_;
    }

  private:
    std::vector<RankSlot> slots_;
};

// The candidate with the least cost; ties go to the first from a random start.
template <class Cost>
RankSlot least_of(std::span<const RankSlot> slots, Prng& prng, Cost cost) {
    const std::uint64_t start = prng.below(slots.size());
    RankSlot best = kNoSlot;
    double best_cost = 0;
    for (std::size_t k = 0; k < slots.size(); ++k) {
        const RankSlot slot = slots[(k + start) % slots.size()];
        const double c = cost(slot);
        if (best == kNoSlot || c < best_cost) {
            best = slot;
            best_cost = c;
        }
    }
    return best;
}

double tokens(const View& view, RankSlot slot) {
    const RankLoad load = view.load(slot);
    return load.prefill_tokens + load.kv_tokens;
}

// What they have in common: candidates, and a pick with what the rank holds.
class Baseline : public StagePolicy {
  public:
    explicit Baseline(std::string_view name) : name_(name) {}
    std::string_view name() const override { return name_; }
    Result<Pick> pick(const View& view, Stage stage, const RouteRequest& request,
                      const PrefixMatch& match, TimePoint, Prng& prng) override {
        const auto slots = candidates_.of(view, stage, request);
        if (slots.empty()) return nobody(view, stage);
        const RankSlot slot = choose(view, stage, request, match, slots, prng);
        return Pick{.slot = slot, .local_blocks = view.residency().depth(match, slot)};
    }

  private:
    virtual RankSlot choose(const View& view, Stage stage, const RouteRequest& request,
                            const PrefixMatch& match, std::span<const RankSlot> slots,
                            Prng& prng) = 0;
    std::string_view name_;
    Candidates candidates_;
};

class RoundRobin final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View&, Stage, const RouteRequest&, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng&) override {
        return slots[next_++ % slots.size()];
    }
    std::uint64_t next_ = 0;
};

class Random final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View&, Stage, const RouteRequest&, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng& prng) override {
        return slots[prng.below(slots.size())];
    }
};

class LeastRequests final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View& view, Stage, const RouteRequest&, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng& prng) override {
        return least_of(slots, prng, [&](RankSlot s) { return view.load(s).requests; });
    }
};

class LeastTokens final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View& view, Stage, const RouteRequest&, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng& prng) override {
        return least_of(slots, prng, [&](RankSlot s) { return tokens(view, s); });
    }
};

class PowerOfTwo final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View& view, Stage, const RouteRequest&, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng& prng) override {
        const RankSlot a = slots[prng.below(slots.size())];
        const RankSlot b = slots[prng.below(slots.size())];
        return tokens(view, b) < tokens(view, a) ? b : a;
    }
};

class CacheAware final : public Baseline {
  public:
    using Baseline::Baseline;
    void committed(const View&, const RouteRequest& request, const Pick& pick, TimePoint) override {
        tree_.add_rank(pick.slot);
        tree_.store(pick.slot, 0, request.blocks);
    }

  private:
    static constexpr double kAbsolute = 64, kRelative = 1.5, kThreshold = 0.3;
    RankSlot choose(const View& view, Stage, const RouteRequest& request, const PrefixMatch&,
                    std::span<const RankSlot> slots, Prng& prng) override {
        double least = view.load(slots[0]).requests;
        double most = least;
        for (const RankSlot s : slots) {
            least = std::min(least, view.load(s).requests);
            most = std::max(most, view.load(s).requests);
        }
        const bool imbalanced = most - least > kAbsolute && most > kRelative * least;
        if (!imbalanced && !request.blocks.empty()) {
            const PrefixMatch match = tree_.match(request.blocks);
            if (match.longest() > kThreshold * static_cast<double>(request.blocks.size())) {
                std::array<Residency::Holder, 8> holders{};
                const std::size_t n = tree_.holders(match, holders, prng.next());
                for (std::size_t i = 0; i < n; ++i) {
                    if (std::find(slots.begin(), slots.end(), holders[i].slot) != slots.end()) {
                        return holders[i].slot;
                    }
                }
            }
        }
        return least_of(slots, prng, [&](RankSlot s) { return view.load(s).requests; });
    }
    Residency tree_{Residency::Options{}};
};

class Dynamo final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View& view, Stage stage, const RouteRequest& request,
                    const PrefixMatch& match, std::span<const RankSlot> slots,
                    Prng& prng) override {
        const double block = view.block_tokens();
        return least_of(slots, prng, [&](RankSlot s) {
            const RankLoad load = view.load(s);
            const double overlap = view.residency().depth(match, s);
            const double decode_blocks = load.kv_tokens / block;
            if (stage == Stage::kDecode) return std::max(0.0, decode_blocks - overlap);
            return std::max(0.0, (load.prefill_tokens + request.prompt_tokens) / block - overlap) +
                   decode_blocks;
        });
    }
};

class LlmdSticky final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    static constexpr double kThreshold = 0.8, kExplore = 0.01, kMaxPenaltyMs = 2000;
    RankSlot choose(const View& view, Stage stage, const RouteRequest& request,
                    const PrefixMatch& match, std::span<const RankSlot> slots,
                    Prng& prng) override {
        const auto load = [&](RankSlot s) { return tokens(view, s); };
        const RankSlot least = least_of(slots, prng, load);
        const double wanted = kThreshold * static_cast<double>(request.blocks.size());
        if (stage == Stage::kDecode || request.blocks.empty() || match.longest() < wanted ||
            prng.chance(kExplore)) {
            return least;
        }
        sticky_.clear();
        for (const RankSlot s : slots) {
            if (view.residency().depth(match, s) >= wanted) sticky_.push_back(s);
        }
        if (sticky_.empty()) return least;
        const RankSlot best = least_of(sticky_, prng, load);
        const double penalty = view.load(best).prefill_ms - view.load(least).prefill_ms;
        return penalty > kMaxPenaltyMs ? least : best;
    }
    std::vector<RankSlot> sticky_;
};

class LMetric final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    RankSlot choose(const View& view, Stage stage, const RouteRequest& request,
                    const PrefixMatch& match, std::span<const RankSlot> slots,
                    Prng& prng) override {
        return least_of(slots, prng, [&](RankSlot s) {
            const RankLoad load = view.load(s);
            if (stage == Stage::kDecode) return load.requests;  // no prefill there
            const std::uint32_t depth = view.residency().depth(match, s);
            const double uncached = request.prompt_tokens - cached_tokens(view, request, depth);
            return (load.prefill_tokens + uncached) * (load.requests + 1);
        });
    }
};

class DualMap final : public Baseline {
  public:
    using Baseline::Baseline;

  private:
    static constexpr double kDefaultSloMs = 2000;
    static constexpr std::size_t kPrefixBlocks = 4;
    static std::uint64_t scramble(std::uint64_t z) {
        z = (z ^ (z >> 30u)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27u)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31u);
    }
    RankSlot choose(const View& view, Stage stage, const RouteRequest& request,
                    const PrefixMatch& match, std::span<const RankSlot> slots,
                    Prng& prng) override {
        if (stage == Stage::kDecode || request.blocks.empty()) {
            return least_of(slots, prng, [&](RankSlot s) { return tokens(view, s); });
        }
        const std::uint64_t prefix =
            request.blocks[std::min(kPrefixBlocks, request.blocks.size()) - 1];
        RankSlot a = slots[scramble(prefix) % slots.size()];
        RankSlot b = slots[scramble(prefix + 0x9e3779b97f4a7c15u) % slots.size()];
        if (view.residency().depth(match, b) > view.residency().depth(match, a)) std::swap(a, b);
        const PrefillEstimate own =
            estimate_prefill(view, stage, request, view.residency().depth(match, a), 0);
        const double slo = request.ttft_slo_ms > 0 ? request.ttft_slo_ms : kDefaultSloMs;
        if (view.load(a).prefill_ms + own.ms <= slo) return a;
        return view.load(b).prefill_ms < view.load(a).prefill_ms ? b : a;
    }
};

constexpr std::array<std::string_view, 10> kNames{
    "round-robin", "random", "least-requests", "least-tokens", "power-of-two",
    "cache-aware", "dynamo", "llmd-sticky",    "lmetric",      "dualmap"};

}  // namespace

std::span<const std::string_view> baseline_names() { return kNames; }

std::unique_ptr<StagePolicy> make_baseline(std::string_view name) {
    // The policy keeps the name of the table, which lives for ever.
    const auto at = std::find(kNames.begin(), kNames.end(), name);
    if (at == kNames.end()) return nullptr;
    switch (at - kNames.begin()) {
        case 0:
            return std::make_unique<RoundRobin>(*at);
        case 1:
            return std::make_unique<Random>(*at);
        case 2:
            return std::make_unique<LeastRequests>(*at);
        case 3:
            return std::make_unique<LeastTokens>(*at);
        case 4:
            return std::make_unique<PowerOfTwo>(*at);
        case 5:
            return std::make_unique<CacheAware>(*at);
        case 6:
            return std::make_unique<Dynamo>(*at);
        case 7:
            return std::make_unique<LlmdSticky>(*at);
        case 8:
            return std::make_unique<LMetric>(*at);
        default:
            return std::make_unique<DualMap>(*at);
    }
}

}  // namespace nereid::router
