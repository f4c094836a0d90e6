#include "router/router.h"

#include <algorithm>

#include "router/baselines/baselines.h"
#include "router/decode.h"
#include "router/encode.h"
#include "router/estimate.h"
#include "router/prefill.h"

namespace nereid::router {
namespace {

bool has_ranks(const View& view, Stage stage) {
    const auto units = view.units(stage);
    return std::any_of(units.begin(), units.end(),
                       [&](UnitId u) { return !view.ranks(u).empty(); });
}

void set_runs(const View& view, const Pick& pick, Plan& plan) {
    if (pick.local_blocks != 0) {
        plan.runs[plan.run_count++] = {.source = PrefixSource::kLocal,
                                       .first = 0,
                                       .count = pick.local_blocks,
                                       .from = view.id(pick.slot)};
    }
    if (pick.fetch_blocks != 0) {
        plan.runs[plan.run_count++] = {.source = PrefixSource::kRank,
                                       .first = pick.local_blocks,
                                       .count = pick.fetch_blocks,
                                       .from = view.id(pick.fetch_from)};
    }
}

// The prefill placement (of a unified plan with its decode part), and its predictions.
void place_prefill(const View& view, const RouteRequest& request, const Pick& pick, Stage stage,
                   Plan& plan) {
    const PrefillEstimate own =
        estimate_prefill(view, stage, request, pick.local_blocks, pick.fetch_blocks);
    const double speed = view.speed(pick.slot);
    set_runs(view, pick, plan);
    plan.cached_tokens = own.cached;
    Prediction& p = plan.predicted;
    p.queue_ms = view.load(pick.slot).prefill_ms / speed;
    p.fetch_ms = own.fetch_ms;
    p.prefill_ms = own.ms / speed;
    p.ttft_ms = p.encode_ms + std::max(p.queue_ms, p.fetch_ms) + p.prefill_ms;
    plan.prefill = Placement{.rank = view.id(pick.slot),
                             .charge = {.slot = pick.slot,
                                        .stage = stage,
                                        .prefill_ms = own.ms,
                                        .prefill_tokens = own.uncached,
                                        .kv_tokens = request.prompt_tokens,
                                        .starts_in_ms = p.encode_ms}};
}

}  // namespace

Result<Pick> Router::pick(StagePolicy& policy, const View& view, Stage stage,
                          const RouteRequest& request, const PrefixMatch& match,
                          const std::optional<RankId>& pinned, TimePoint now, Prng& prng) {
    if (!pinned) return policy.pick(view, stage, request, match, now, prng);
    const RankSlot slot = view.slot(*pinned);
    if (slot == kNoSlot) return err(Code::kUnavailable, "the pinned rank is gone");
    return Pick{.slot = slot, .local_blocks = view.residency().depth(match, slot)};
}

// The time until the embeddings are there; 0 without an encoder pool (engines encode themselves).
Result<double> Router::place_encode(const View& view, const RouteRequest& request, TimePoint now,
                                    Prng& prng, Plan& plan) {
    if (request.images.empty() || !has_ranks(view, Stage::kEncode)) return 0.0;
    TRY(const Pick pick, stages_.encode->pick(view, Stage::kEncode, request, {}, now, prng));
    double patches = 0;
    if (const auto* affine = dynamic_cast<const EncodePolicy*>(stages_.encode.get())) {
        patches = affine->uncached_patches(request, pick.slot);
    } else {
        for (const ImageWork& image : request.images) patches += image.patches;
    }
    const double ms = view.cost(Stage::kEncode).encode.ms(patches);
    plan.encode =
        Placement{.rank = view.id(pick.slot),
                  .charge = {.slot = pick.slot, .stage = Stage::kEncode, .encode_ms = ms}};
    return (view.load(pick.slot).encode_ms + ms) / view.speed(pick.slot);
}

Result<Plan> Router::choose(const View& view, const RouteRequest& request, TimePoint now,
                            Prng& prng) {
    Plan plan;
    const PrefixMatch match = view.match(request.blocks);
    const bool split = has_ranks(view, Stage::kPrefill) && has_ranks(view, Stage::kDecode);
    const Stage last = split ? Stage::kDecode : Stage::kUnified;
    StagePolicy& last_policy = split ? *stages_.decode : *stages_.unified;
    TRY(const Pick decode,
        pick(last_policy, view, last, request, match, request.pinned_decode, now, prng));
    TRY(plan.predicted.encode_ms, place_encode(view, request, now, prng, plan));
    const RankLoad load = view.load(decode.slot);
    plan.predicted.decode_step_ms =
        view.cost(last).decode.step_ms(load.requests + 1, load.kv_tokens + request.prompt_tokens) /
        view.speed(decode.slot);
    if (!split) {
        place_prefill(view, request, decode, Stage::kUnified, plan);
        plan.prefill->charge.reserve_tokens = request.reserve_output;
        return plan;
    }
    const PrefillEstimate local =
        estimate_prefill(view, Stage::kDecode, request, decode.local_blocks, 0);
    if (!request.pinned_prefill && local.uncached < options_.local_prefill_tokens &&
        local.uncached <= options_.local_prefill_ratio * request.prompt_tokens) {
        place_prefill(view, request, decode, Stage::kDecode, plan);
        // Its KV and its request are the decode placement's.
        plan.prefill->charge.kv_tokens = 0;
        plan.prefill->charge.requests = 0;
    } else {
        TRY(const Pick prefill, pick(*stages_.prefill, view, Stage::kPrefill, request, match,
                                     request.pinned_prefill, now, prng));
        place_prefill(view, request, prefill, Stage::kPrefill, plan);
    }
    plan.decode = Placement{.rank = view.id(decode.slot),
                            .charge = {.slot = decode.slot,
                                       .stage = Stage::kDecode,
                                       .kv_tokens = request.prompt_tokens,
                                       .reserve_tokens = request.reserve_output,
                                       .starts_in_ms = plan.predicted.ttft_ms}};
    return plan;
}

void Router::committed(const View& view, const RouteRequest& request, const Plan& plan,
                       TimePoint now) {
    if (plan.encode) {
        stages_.encode->committed(view, request, {.slot = plan.encode->charge.slot}, now);
    }
    if (plan.prefill) {
        Pick pick{.slot = plan.prefill->charge.slot};
        for (std::uint32_t i = 0; i < plan.run_count; ++i) {
            const PrefixRun& run = plan.runs[i];
            (run.source == PrefixSource::kLocal ? pick.local_blocks : pick.fetch_blocks) +=
                run.count;
        }
        const Stage stage = plan.prefill->charge.stage;
        if (stage == Stage::kUnified) stages_.unified->committed(view, request, pick, now);
        if (stage == Stage::kPrefill) stages_.prefill->committed(view, request, pick, now);
    }
    if (plan.decode) {
        stages_.decode->committed(view, request, {.slot = plan.decode->charge.slot}, now);
    }
}

// ---------------------------------------------------------------- by name

namespace {

constexpr std::array<std::string_view, 6> kOurs{"buckets",  "buckets+fetch", "least-cost",
                                                "two-term", "unified-cost",  "encoder-affinity"};

template <std::size_t N>
std::vector<std::string_view> with_baselines(const std::array<std::string_view, N>& ours) {
    std::vector<std::string_view> names(ours.begin(), ours.end());
    names.insert(names.end(), baseline_names().begin(), baseline_names().end());
    return names;
}

Error unknown(std::string_view name, std::span<const std::string_view> known) {
    std::string message = "unknown policy \"" + std::string(name) + "\"; known:";
    for (const std::string_view k : known) message += " " + std::string(k);
    return {Code::kConfig, std::move(message)};
}

}  // namespace

std::span<const std::string_view> stage_policy_names() {
    static const std::vector<std::string_view> names = with_baselines(kOurs);
    return names;
}

std::span<const std::string_view> policy_names() {
    static const std::vector<std::string_view> names =
        with_baselines(std::array<std::string_view, 1>{"nereid"});
    return names;
}

Result<std::unique_ptr<StagePolicy>> make_stage_policy(std::string_view name, Stage stage) {
    if (auto baseline = make_baseline(name)) return baseline;
    const bool prefills = stage == Stage::kPrefill || stage == Stage::kUnified;
    const auto prefill = [](std::size_t which, std::uint32_t buckets, bool fetch) {
        PrefillOptions options;
        options.buckets.max_buckets = buckets;
        options.fetch = fetch;
        return std::unique_ptr<StagePolicy>(std::make_unique<PrefillPolicy>(options, kOurs[which]));
    };
    constexpr std::uint32_t kBuckets = BucketOptions{}.max_buckets;
    if (name == kOurs[0] && prefills) return prefill(0, kBuckets, false);
    if (name == kOurs[1] && prefills) return prefill(1, kBuckets, true);
    if (name == kOurs[2] && prefills) return prefill(2, 1, false);
    if (name == kOurs[3] && (stage == Stage::kDecode || stage == Stage::kUnified)) {
        return std::unique_ptr<StagePolicy>(std::make_unique<DecodePolicy>());
    }
    if (name == kOurs[4] && stage == Stage::kUnified) return prefill(4, 1, false);
    if (name == kOurs[5] && stage == Stage::kEncode) {
        return std::unique_ptr<StagePolicy>(std::make_unique<EncodePolicy>(EncodeOptions{}));
    }
    const auto known = stage_policy_names();
    if (std::find(known.begin(), known.end(), name) != known.end()) {
        return err(Code::kConfig, "policy \"" + std::string(name) + "\" cannot play the stage " +
                                      std::string(stage_name(stage)));
    }
    return unknown(name, known);
}

Result<std::unique_ptr<Policy>> make_router(const RouterOptions& options) {
    Router::Stages stages;
    TRY(stages.encode, make_stage_policy(options.encode, Stage::kEncode));
    TRY(stages.prefill, make_stage_policy(options.prefill, Stage::kPrefill));
    TRY(stages.decode, make_stage_policy(options.decode, Stage::kDecode));
    TRY(stages.unified, make_stage_policy(options.unified, Stage::kUnified));
    return std::unique_ptr<Policy>(std::make_unique<Router>(options.prefill + "/" + options.decode,
                                                            std::move(stages), options));
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name) {
    if (name == "nereid") return make_router({});
    const auto baselines = baseline_names();
    if (std::find(baselines.begin(), baselines.end(), name) == baselines.end()) {
        return unknown(name, policy_names());
    }
    const std::string n(name);
    return make_router({.encode = n, .prefill = n, .decode = n, .unified = n});
}

}  // namespace nereid::router
