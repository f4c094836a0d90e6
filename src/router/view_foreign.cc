// What engines and other gateways say, folded into the view.
#include <algorithm>
#include <cmath>

#include "router/view.h"
#include "router/view_state.h"

namespace nereid::router {

View::Rank* View::find(RankId rank) {
    const RankSlot s = slot(rank);
    return s == kNoSlot ? nullptr : &ranks_[s];
}

// Prefill that the engine no longer has is taken off our oldest charges, first come first served.
// `ours`: of those that began before the sample; returns what is left of it.
double View::drain_to(Rank& rank, double ours, double reported_tokens, TimePoint sampled_at) {
    std::erase_if(rank.prefilling, [&](const ChargeRef& ref) {
        return !names(ref, rank) || charges_[ref.index].charge.prefill_tokens == 0;
    });
    for (const ChargeRef& ref : rank.prefilling) {
        if (ours <= reported_tokens) break;
        Slot& c = charges_[ref.index];
        if (c.begins_at > sampled_at) continue;
        const double left = c.charge.prefill_tokens;
        const double drained = std::min(left, std::floor(ours - reported_tokens));
        if (drained < 1) break;
        rank.own.add(sums_of(c), -1);
        c.charge.prefill_ms *= (left - drained) / left;
        c.charge.prefill_tokens -= static_cast<TokenCount>(drained);
        rank.own.add(sums_of(c), 1);
        ours -= drained;
    }
    return ours;
}

// What runs but what began after the sample. Samples never go back, so what had begun is not looked
// at again.
View::Sums View::begun_at(Rank& rank, TimePoint sampled_at) {
    Sums ours = rank.own;
    std::erase_if(rank.unbegun, [&](const ChargeRef& ref) {
        if (!names(ref, rank) || charges_[ref.index].begins_at <= sampled_at) return true;
        ours.add(sums_of(charges_[ref.index]), -1);
        return false;
    });
    return ours;
}

void View::report(RankId id, const model::Load& load, TimePoint sampled_at, TimePoint now) {
    advance(now);
    Rank* rank = find(id);
    if (rank == nullptr || sampled_at <= rank->reported_at || sampled_at > now ||
        sampled_at + options_.sample_age < now) {
        ++stats_.reports_ignored;
        return;
    }
    ++stats_.reports;
    const Stage stage = brief_[slot(id)].stage;
    const bool grows = stage == Stage::kDecode || stage == Stage::kUnified;
    if (grows && load.last_step > Duration(0)) {
        rank->growth_per_s = 1.0 / to_seconds(load.last_step);
    }
    // What was ours when it was sampled: begun before, not ended before.
    Sums ours = begun_at(*rank, sampled_at);
    ours.prefill_tokens =
        drain_to(*rank, ours.prefill_tokens, load.waiting_uncached_tokens, sampled_at);
    for (auto e = rank->ended.rbegin(); e != rank->ended.rend() && e->ended_at > sampled_at; ++e) {
        if (e->begins_at <= sampled_at) ours.add(e->sums, 1);
    }
    const double at_s = in_seconds(sampled_at);
    const double ours_kv = ours.kv_tokens + std::max(0.0, ours.requests * at_s - ours.kv_anchor_s) *
                                                rank->growth_per_s;
    Sums foreign;
    foreign.requests =
        std::max(0.0, static_cast<double>(load.running) + load.waiting - ours.requests);
    foreign.kv_tokens = foreign.requests > 0 ? std::max(0.0, load.kv_used_tokens - ours_kv) : 0.0;
    foreign.kv_anchor_s = foreign.requests * at_s;
    foreign.prefill_tokens = std::max(0.0, load.waiting_uncached_tokens - ours.prefill_tokens);
    const PrefillCost& cost = cost_[static_cast<std::size_t>(stage)].prefill;
    foreign.prefill_ms = foreign.prefill_tokens * cost.per_token_ms;
    rank->reported = foreign;
    rank->reported_at = sampled_at;
    rescore(slot(id));
}

void View::stored(RankId id, BlockHash parent, std::span<const BlockHash> blocks, TimePoint now) {
    advance(now);
    const RankSlot s = slot(id);
    if (s == kNoSlot || !workers_[id.worker.value].indexed) {
        ++stats_.events_ignored;
        return;
    }
    residency_.store(s, parent, blocks);
}

void View::removed(RankId id, std::span<const BlockHash> blocks, TimePoint now) {
    advance(now);
    const RankSlot s = slot(id);
    if (s == kNoSlot || !workers_[id.worker.value].indexed) {
        ++stats_.events_ignored;
        return;
    }
    residency_.remove(s, blocks);
}

void View::cleared(RankId id, TimePoint now) {
    advance(now);
    const RankSlot s = slot(id);
    if (s == kNoSlot || !workers_[id.worker.value].indexed) {
        ++stats_.events_ignored;
        return;
    }
    residency_.clear_rank(s);
}

void View::expect(const Plan& plan, std::span<const BlockHash> blocks, TimePoint now) {
    advance(now);
    if (!plan.prefill) return;
    const RankSlot s = slot(plan.prefill->rank);
    if (s == kNoSlot || !workers_[plan.prefill->rank.worker.value].indexed) return;
    residency_.expect(s, blocks, now);
}

void View::mark_busy(RankSlot slot, TimePoint now) {
    advance(now);
    if (slot >= ranks_.size() || !ranks_[slot].used) return;
    Rank& rank = ranks_[slot];
    if (rank.busy_until <= now_) busy_.push_back(slot);
    rank.busy_until = now_ + options_.busy_lease;
    next_busy_end_ = std::min(next_busy_end_, rank.busy_until);
    ++stats_.busy_marks;
    rescore(slot);
}

Digest View::digest(TimePoint now) {
    advance(now);
    Digest digest{.from = options_.self, .sequence = ++digest_sequence_, .entries = {}};
    const double now_s = in_seconds(now_);
    for (const Rank& rank : ranks_) {
        if (!rank.used || rank.live_charges == 0) continue;
        const double grown =
            std::max(0.0, rank.own.requests * now_s - rank.own.kv_anchor_s) * rank.growth_per_s;
        digest.entries.push_back({.worker_key = workers_[rank.id.worker.value].key,
                                  .rank = rank.id.rank,
                                  .prefill_ms = static_cast<float>(rank.own.prefill_ms),
                                  .prefill_tokens = static_cast<float>(rank.own.prefill_tokens),
                                  .encode_ms = static_cast<float>(rank.own.encode_ms),
                                  .requests = static_cast<std::uint32_t>(rank.own.requests + 0.5),
                                  .kv_tokens = rank.own.kv_tokens + grown,
                                  .reserve_tokens = rank.own.reserve_tokens});
    }
    return digest;
}

void View::fold(const Digest& digest, TimePoint sampled_at, TimePoint now) {
    advance(now);
    if (digest.from == options_.self || sampled_at > now || sampled_at + options_.peer_ttl < now) {
        ++stats_.digests_ignored;
        return;
    }
    auto peer = std::find_if(peers_.begin(), peers_.end(),
                             [&](const Peer& p) { return p.id == digest.from; });
    if (peer == peers_.end()) {
        peer = peers_.insert(peers_.end(), Peer{.id = digest.from, .entries = {}});
    } else if (digest.sequence <= peer->sequence) {
        ++stats_.digests_ignored;
        return;
    }
    ++stats_.digests;
    peer->sequence = digest.sequence;
    peer->sampled_at = sampled_at;
    peer->entries = digest.entries;
    refresh_peers();
    rescore_all();
}

// Sums are taken anew, so that nothing accumulates rounding.
void View::refresh_peers() {
    for (Rank& rank : ranks_) rank.peers = {};
    for (const Peer& peer : peers_) {
        const double at_s = in_seconds(peer.sampled_at);
        for (const DigestEntry& e : peer.entries) {
            const auto worker = by_key_.find(e.worker_key);
            if (worker == by_key_.end()) continue;
            const RankSlot s = slot({worker->second, e.rank});
            if (s == kNoSlot) continue;
            ranks_[s].peers.add({.prefill_ms = e.prefill_ms,
                                 .prefill_tokens = e.prefill_tokens,
                                 .encode_ms = e.encode_ms,
                                 .requests = static_cast<double>(e.requests),
                                 .kv_tokens = e.kv_tokens,
                                 .kv_anchor_s = e.requests * at_s,
                                 .reserve_tokens = e.reserve_tokens},
                                1);
        }
    }
    stats_.live_peers = static_cast<std::uint32_t>(peers_.size());
}

}  // namespace nereid::router
