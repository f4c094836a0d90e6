// The decode balancer: the rank with the least b · requests + c · KV tokens that has KV room for
// prompt + q90 of the output (R28: admission against growth to come; R5, R13, R15: tokens, not
// counts).
//
// facts/router.md §5.1, DP144 with heavy tails: round robin .798, least requests .830, this .939,
// and with one migration per step .988 (plan_migrations). Knowing the output length gains nothing
// there. After DeepSeek's decode balancer (equal KV use + request count, open-infra day 6), Llumnix
// (OSDI'24) for migration.
//
// Cost: O(units / 64) through the index; a scan of the pool only when its answer lacks KV room.
#pragma once

#include "router/policy.h"

namespace nereid::router {

class DecodePolicy final : public StagePolicy {
  public:
    std::string_view name() const override { return "two-term"; }
    Result<Pick> pick(const View& view, Stage stage, const RouteRequest& request,
                      const PrefixMatch& match, TimePoint now, Prng& prng) override;
};

}  // namespace nereid::router
