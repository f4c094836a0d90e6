// The vision-encoder balancer: outstanding ms by *patches* (R41: a split by image count is random),
// with affinity by image digest: an encoder that encoded an image has its embedding.
//
// Candidates: the two homes of the request's largest image by rendezvous hashing over live ranks of
// the pool (stable under membership changes), the rank last given that digest, and the least
// loaded. An image that was given to a rank before costs nothing there. Memory: a table of the last
// `remembered` digests, 16 bytes each.
#pragma once

#include <vector>

#include "router/policy.h"

namespace nereid::router {

struct EncodeOptions {
    std::uint32_t remembered = 1u << 16u;  // a power of two
};

class EncodePolicy final : public StagePolicy {
  public:
    explicit EncodePolicy(const EncodeOptions& options);
    std::string_view name() const override { return "encoder-affinity"; }
    Result<Pick> pick(const View& view, Stage stage, const RouteRequest& request,
                      const PrefixMatch& match, TimePoint now, Prng& prng) override;
    void committed(const View& view, const RouteRequest& request, const Pick& pick,
                   TimePoint now) override;

    // Patches of the request that the rank has not encoded before, by our own placements.
    double uncached_patches(const RouteRequest& request, RankSlot slot) const;

  private:
    struct Seen {
        std::uint64_t digest = 0;
        RankSlot slot = kNoSlot;
    };
    EncodeOptions options_;
    std::vector<Seen> seen_;  // direct-mapped
};

}  // namespace nereid::router
