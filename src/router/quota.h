// The worker's side of late binding: a gate that accepts, forwards or refuses work that gateways
// with an old view have sent (P/D-Serve 2408.08147: an idle prefill accepts, a busy one rejects;
// facts §5.2: the quota must be predicted ms, not tokens).
//
// Each rank has a window of `quota_ms`: the outstanding predicted ms it takes. Over it, the work
// goes to the sibling with the most room (same process or unit: free to forward), and when none has
// room it is refused with a hint; the gateway then marks the rank busy for a short lease and asks
// elsewhere. One request is always taken by an idle rank, however large. Pure; O(ranks) only when
// the rank asked is full.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace nereid::router {

class QuotaGate {
  public:
    struct Options {
        double quota_ms = 4000;
        TokenCount kv_capacity_tokens = 0;  // 0 = not checked
    };
    QuotaGate(std::uint32_t ranks, const Options& options);

    enum class Verdict : std::uint8_t { kAccepted, kForwarded, kRefused };
    struct Decision {
        Verdict verdict = Verdict::kRefused;
        std::uint32_t rank = 0;     // where it is booked, unless refused
        double retry_after_ms = 0;  // refused: when room is expected
    };
    // Books it unless refused. forced: the last gateway to ask (it was refused everywhere) is
    // accepted.
    Decision offer(std::uint32_t rank, double ms, TokenCount kv_tokens, bool forced = false);
    void finish(std::uint32_t rank, double ms, TokenCount kv_tokens);
    double outstanding_ms(std::uint32_t rank) const { return ranks_[rank].ms; }
    std::uint64_t accepted() const { return accepted_; }
    std::uint64_t forwarded() const { return forwarded_; }
    std::uint64_t refused() const { return refused_; }

  private:
    struct Rank {
        double ms = 0;
        std::uint64_t kv_tokens = 0;
        std::uint32_t requests = 0;
    };
    bool has_room(const Rank& rank, double ms, TokenCount kv_tokens) const;
    void book(Rank& rank, double ms, TokenCount kv_tokens);
    Options options_;
    std::vector<Rank> ranks_;
    std::uint64_t accepted_ = 0, forwarded_ = 0, refused_ = 0;
};

}  // namespace nereid::router
