// A policy: choose(view, request, now, prng) -> plan. Ours and the peers' stand behind this one
// interface, by name, for production, the simulator and comparison alike.
//
// Deterministic: the same view, the same calls in the same order and the same Prng give the same
// plans. A policy may keep state of its own (a round-robin counter, an approximate tree, bucket
// borders); it belongs to one loop. choose() books nothing: the caller applies the plan to the view
// and then tells the policy with committed(), so that a refused plan leaves no trace.
//
// A Router is made of one stage policy per stage, so that a pool's policy is named in
// configuration: router.prefill = "buckets", router.decode = "two-term", ...
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "router/plan.h"
#include "router/request.h"
#include "router/residency.h"
#include "router/view.h"

namespace nereid::router {

// What one stage's choice came to.
struct Pick {
    RankSlot slot = kNoSlot;
    std::uint32_t local_blocks = 0;  // prefix blocks in that rank's cache, by the view
    std::uint32_t fetch_blocks = 0;  // further blocks fetched from `fetch_from`
    RankSlot fetch_from = kNoSlot;
};

class StagePolicy {
  public:
    virtual ~StagePolicy() = default;
    virtual std::string_view name() const = 0;
    // kOverloaded: ranks exist, none may take it now (reserve, marks). kUnavailable: no live rank
    // plays the stage. `match` is of request.blocks; may be empty.
    virtual Result<Pick> pick(const View& view, Stage stage, const RouteRequest& request,
                              const PrefixMatch& match, TimePoint now, Prng& prng) = 0;
    virtual void committed(const View&, const RouteRequest&, const Pick&, TimePoint) {}
};

class Policy {
  public:
    virtual ~Policy() = default;
    virtual std::string_view name() const = 0;
    virtual Result<Plan> choose(const View& view, const RouteRequest& request, TimePoint now,
                                Prng& prng) = 0;
    // The plan was applied. Call it once per applied plan.
    virtual void committed(const View& view, const RouteRequest& request, const Plan& plan,
                           TimePoint now) = 0;
};

struct RouterOptions {
    std::string encode = "encoder-affinity";
    std::string prefill = "buckets";
    std::string decode = "two-term";
    std::string unified = "unified-cost";
    // A prompt with fewer uncached tokens than this, and no more than this part of it uncached,
    // prefills on its decode rank (conditional disaggregation, Dynamo 1.6). 0 = never.
    TokenCount local_prefill_tokens = 0;
    double local_prefill_ratio = 0.25;
};

// kConfig: a name that policy_names() does not hold, or one that cannot play the stage.
Result<std::unique_ptr<StagePolicy>> make_stage_policy(std::string_view name, Stage stage);
Result<std::unique_ptr<Policy>> make_router(const RouterOptions& options);
// `name` for every stage: "nereid" = the defaults above, or a peer's: "round-robin", ...
Result<std::unique_ptr<Policy>> make_policy(std::string_view name);
std::span<const std::string_view> policy_names();
// Of stage policies: ours ("buckets", "buckets+fetch", "least-cost", "two-term", "unified-cost",
// "encoder-affinity") and the peers' (baselines/).
std::span<const std::string_view> stage_policy_names();

}  // namespace nereid::router
