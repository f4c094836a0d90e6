// The prefill balancer: least predicted time to first token within the prompt's length bucket,
// everything in milliseconds.
//
//   score(rank) = outstanding_ms(rank) / speed + own · (1 + work_weight [+ off_bucket])
//   own         = min over sources of fetch_ms(d) + prefill_ms(prompt - d, d), / speed
//
// where d is what the rank holds itself (fetch 0) or the longest prefix that any rank holds
// (Mooncake Conductor's TTFT rule [FAST'25], DeepSeek's core-attention + tokens load). Candidates:
// the least-loaded rank of the bucket's units; up to `holders` ranks that hold the longest
// prefixes, wherever they are; and the second home of the prompt's hot prefix (DualMap, ICLR'26:
// two hashes of the prefix), which wins a near tie so that a prefix outgrowing one rank gets two
// homes and not n. No rank over its quota is taken while another candidate is under it: `quota_ms`
// of outstanding work per rank; the engine's own gate (quota.h) refuses or forwards beyond it (late
// binding, P/D-Serve 2408.08147).
//
// One bucket and no fetch make it "least-cost"; on a unified pool ("unified-cost") the score is
// outstanding prefill plus decode work, and KV room is checked as for decode.
//
// Cost: O(units of the bucket / 64 + holders), no allocation; figures in README.
#pragma once

#include "router/buckets.h"
#include "router/policy.h"

namespace nereid::router {

struct PrefillOptions {
    BucketOptions buckets;
    std::uint32_t holders = 16;
    double work_weight =
        0.5;  // of the own cost beyond the own wait: what later requests wait for it
    double off_bucket = 0.10;  // part of the own cost added outside the bucket
    double spill_ms = 500;     // a bucket's best this much worse than the best anywhere loses it
    double second_home_slack = 0.10;  // of own cost: how near a tie the second home wins
    double quota_ms = 4000;
    bool fetch = false;  // plans may fetch a prefix from another rank (engines that can)
};

class PrefillPolicy final : public StagePolicy {
  public:
    // `name` must outlive the policy.
    explicit PrefillPolicy(const PrefillOptions& options, std::string_view name = "buckets")
        : options_(options), name_(name), buckets_(options.buckets) {}
    std::string_view name() const override { return name_; }
    Result<Pick> pick(const View& view, Stage stage, const RouteRequest& request,
                      const PrefixMatch& match, TimePoint now, Prng& prng) override;
    void committed(const View& view, const RouteRequest& request, const Pick& pick,
                   TimePoint now) override;
    const Buckets& buckets() const { return buckets_; }

  private:
    struct Search;
    PrefillOptions options_;
    std::string_view name_;
    Buckets buckets_;
};

}  // namespace nereid::router
