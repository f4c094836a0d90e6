// What a view keeps per charge, rank, worker, unit and peer: private to view.cc and
// view_foreign.cc.
#pragma once

#include <deque>
#include <vector>

#include "router/view.h"

namespace nereid::router {

inline double in_seconds(TimePoint t) { return to_seconds(t.since_origin); }

// A charge of ours; `charge` holds what is left of it.
struct View::Slot {
    Charge charge;
    std::uint32_t generation = 0;
    bool active = false;
    std::uint32_t newer = kNoSlot;  // in its rank's list; of a free slot: the next free one
    std::uint32_t older = kNoSlot;
    TimePoint placed_at;  // on this rank
    TimePoint begins_at;  // placed_at + starts_in
    double anchor_s = 0;  // when charge.kv_tokens was right
    TokenCount produced = 0;
    TokenCount prefill_tokens = 0;  // at the start
    double prefill_ms = 0;
};

struct View::ChargeRef {
    std::uint32_t index = 0;
    std::uint32_t generation = 0;
};

struct View::Rank {
    bool used = false;  // false: free, or waiting for its last charge to end
    RankId id;
    UnitId unit;
    std::uint32_t position = 0;  // in its unit
    double growth_per_s = 0;     // tokens a request gains per second, of the last report
    TimePoint busy_until{Duration::min()};
    Sums own;
    // Charges by index and generation; those that have ended or moved are dropped when seen. So
    // that a report costs what has changed since the last one, and not all that runs.
    std::vector<ChargeRef> unbegun;     // by the last report: they may begin after its sample
    std::vector<ChargeRef> prefilling;  // with prefill left at the last report, oldest first
    Sums peers;                         // sum of the live digests
    Sums reported;                      // last report minus what was ours then
    TimePoint reported_at{Duration::min()};
    bool silent = false;  // its last report is too old
    std::uint64_t placed = 0;
    std::uint32_t live_charges = 0;
    std::uint32_t newest = kNoSlot;
    std::uint32_t oldest = kNoSlot;
    // Charges that ended less than sample_age ago: a report may be older than their end.
    struct Ended {
        TimePoint begins_at;
        TimePoint ended_at;
        Sums sums;
    };
    std::deque<Ended> ended;  // in order of their end
    Sums total;               // at the last rescore; kv_tokens includes growth
};

struct View::Worker {
    WorkerSpec spec;
    std::uint64_t key = 0;
    WorkerState state = WorkerState::kRemoved;
    TimePoint ready_since{};
    bool indexed = false;
    std::vector<RankSlot> slots;
};

struct View::Unit {
    Stage stage = Stage::kUnified;
    std::uint32_t position = 0;  // in its pool
    bool of_one_worker = false;  // made for it, and goes with it
    std::vector<RankSlot> slots;
    MinIndex scores;
};

struct View::Peer {
    GatewayId id;
    std::uint64_t sequence = 0;
    TimePoint sampled_at{};
    std::vector<DigestEntry> entries;
};

}  // namespace nereid::router
