#include "router/quota.h"

#include <algorithm>

#include "base/check.h"

namespace nereid::router {

QuotaGate::QuotaGate(std::uint32_t ranks, const Options& options)
    : options_(options), ranks_(ranks) {
    CHECK(ranks > 0);
}

bool QuotaGate::has_room(const Rank& rank, double ms, TokenCount kv_tokens) const {
    if (rank.requests == 0) return true;
    return rank.ms + ms <= options_.quota_ms &&
           (options_.kv_capacity_tokens == 0 ||
            rank.kv_tokens + kv_tokens <= options_.kv_capacity_tokens);
}

void QuotaGate::book(Rank& rank, double ms, TokenCount kv_tokens) {
    rank.ms += ms;
    rank.kv_tokens += kv_tokens;
    ++rank.requests;
}

QuotaGate::Decision QuotaGate::offer(std::uint32_t asked, double ms, TokenCount kv_tokens,
                                     bool forced) {
    CHECK(asked < ranks_.size());
    if (has_room(ranks_[asked], ms, kv_tokens)) {
        book(ranks_[asked], ms, kv_tokens);
        ++accepted_;
        return {.verdict = Verdict::kAccepted, .rank = asked};
    }
    std::uint32_t least = 0;
    for (std::uint32_t i = 1; i < ranks_.size(); ++i) {
        if (ranks_[i].ms < ranks_[least].ms) least = i;
    }
    if (forced || has_room(ranks_[least], ms, kv_tokens)) {
        book(ranks_[least], ms, kv_tokens);
        ++(least == asked ? accepted_ : forwarded_);
        return {.verdict = least == asked ? Verdict::kAccepted : Verdict::kForwarded,
                .rank = least};
    }
    ++refused_;
    return {.verdict = Verdict::kRefused,
            .rank = asked,
            .retry_after_ms = std::max(1.0, ranks_[least].ms + ms - options_.quota_ms)};
}

void QuotaGate::finish(std::uint32_t rank, double ms, TokenCount kv_tokens) {
    Rank& r = ranks_[rank];
    CHECK(r.requests > 0);
    --r.requests;
    r.kv_tokens -= std::min<std::uint64_t>(r.kv_tokens, kv_tokens);
    r.ms = r.requests == 0 ? 0 : std::max(0.0, r.ms - ms);
}

}  // namespace nereid::router
