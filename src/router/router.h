// The router: one stage policy per stage, put together into plans. See policy.h.
//
// Order: decode first (its room is reserved before prefill starts, R27), then prefill, then the
// encoder. A view with prefill and decode pools gets a plan of both; any other a unified plan.
// Pinned stages keep their rank.
#pragma once

#include <memory>

#include "router/policy.h"

namespace nereid::router {

class Router final : public Policy {
  public:
    struct Stages {
        std::unique_ptr<StagePolicy> encode;
        std::unique_ptr<StagePolicy> prefill;
        std::unique_ptr<StagePolicy> decode;
        std::unique_ptr<StagePolicy> unified;
    };
    Router(std::string name, Stages stages, const RouterOptions& options)
        : name_(std::move(name)), stages_(std::move(stages)), options_(options) {}
    std::string_view name() const override { return name_; }
    Result<Plan> choose(const View& view, const RouteRequest& request, TimePoint now,
                        Prng& prng) override;
    void committed(const View& view, const RouteRequest& request, const Plan& plan,
                   TimePoint now) override;

  private:
    Result<Pick> pick(StagePolicy& policy, const View& view, Stage stage,
                      const RouteRequest& request, const PrefixMatch& match,
                      const std::optional<RankId>& pinned, TimePoint now, Prng& prng);
    Result<double> place_encode(const View& view, const RouteRequest& request, TimePoint now,
                                Prng& prng, Plan& plan);

    std::string name_;
    Stages stages_;
    RouterOptions options_;
};

}  // namespace nereid::router
