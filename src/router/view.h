// The view: what one gateway (or the simulator's gateway) believes of every rank, and the books of
// what it has placed there itself.
//
//   load(rank) = own charges, exact
//              + foreign: what others placed, from the freshest sample of it (an engine's report
//                minus what was ours when it was taken, or the sum of the other gateways' digests)
//              + echo: while that sample ages, the others are assumed to do what we do: our own
//                placements since the sample, times the number of live peers. They see the same
//                valleys and run the same policy; without the echo four gateways with a view one
//                second old fill the same valley four times.
//
// (R7: a cached value plus local charges since that sample. facts/router.md §5.1: stale without
// local accounting is .385, with it .943.)
//
// apply / release and the fold-ins below are the only mutators; all run on the one loop that owns
// the view. Everything is indexed so that choosing is cheap: per unit a MinIndex over the ranks'
// scores. `now` never goes backwards. No clock, no I/O, no randomness. Deterministic.
//
// Errors: functions that name a worker or rank that the view does not have return false or do
// nothing (events and reports arrive late); CHECKs are for slots made up by the caller.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "model/engine_port.h"
#include "router/charge.h"
#include "router/cost/model.h"
#include "router/ids.h"
#include "router/min_index.h"
#include "router/plan.h"
#include "router/residency.h"

namespace nereid::router {

enum class WorkerState : std::uint8_t {
    kReady,     // gets work (a newcomer less at first: slow start)
    kBlocked,   // breaker open: no work until unblocked
    kDraining,  // finishes what it has
    kRemoved,   // gone; charges on it may still end
};

struct WorkerSpec {
    std::string name;         // the same at every gateway: digests name workers by its hash
    std::uint64_t epoch = 0;  // of this life of the engine: a restart is another worker
    Stage stage = Stage::kUnified;
    std::optional<UnitId> unit = {};  // none: a unit of its own
    std::uint32_t ranks = 1;
    TokenCount kv_capacity_tokens = 0;  // per rank; 0 = unknown: no reserve check
    TokenCount block_tokens = 0;        // of its prefix events; 0 = it sends none
    double speed = 1.0;                 // relative: 0.5 takes twice the predicted time
};

struct ViewOptions {
    GatewayId self{1};
    CostModel cost = {};
    TokenCount block_tokens =
        128;  // of chains in requests; a worker with another size has no index (R19)
    Duration slow_start = 10s;       // 0 = none
    double slow_start_floor = 0.1;   // share of a newcomer's speed at its start
    Duration busy_lease = 500ms;     // of mark_busy; CHECK <= 1 s (R36)
    Duration peer_ttl = 5s;          // a silent gateway's digest is dropped
    Duration report_ttl = 10s;       // an older report is no longer a sample
    Duration sample_age = 3s;        // reports and digests that took longer to arrive are ignored
    Duration rescore_every = 100ms;  // tick's sweep over all ranks
    double unified_steps = 64;       // a unified rank's decode load counts as so many steps of work
    bool echo = true;
    Residency::Options residency = {};
};

// Everything the view believes of one rank at the last tick.
struct RankLoad {
    double prefill_ms = 0;      // outstanding
    double prefill_tokens = 0;  // uncached, outstanding
    double encode_ms = 0;
    double requests = 0;  // in decode, or on their way there
    double kv_tokens = 0;
    double reserve_tokens = 0;
    std::uint64_t placed = 0;  // by us, ever
};

// One gateway's own charges, per rank, as absolute numbers: a lost or repeated digest mends itself.
struct DigestEntry {
    std::uint64_t worker_key = 0;  // worker_key(name, epoch)
    std::uint32_t rank = 0;
    float prefill_ms = 0;
    float prefill_tokens = 0;
    float encode_ms = 0;
    std::uint32_t requests = 0;
    double kv_tokens = 0;
    double reserve_tokens = 0;
};
struct Digest {
    GatewayId from;
    std::uint64_t sequence = 0;             // an older one than the last is ignored
    std::vector<DigestEntry> entries = {};  // ranks with any charge, in order of slots
};
std::uint64_t worker_key(std::string_view name, std::uint64_t epoch);

struct ViewStats {
    std::uint64_t applied = 0, released = 0, moved = 0;
    std::uint64_t live_charges = 0;
    std::uint64_t reports = 0, reports_ignored = 0;  // unknown rank, or older than the last
    std::uint64_t reports_expired = 0;               // ranks whose load source has gone silent (R8)
    std::uint64_t digests = 0, digests_ignored = 0, peers_expired = 0;
    std::uint64_t events_ignored = 0;      // of unknown ranks
    std::uint64_t profile_mismatches = 0;  // workers whose block size is not the view's
    std::uint64_t busy_marks = 0;
    std::uint32_t live_peers = 0;
};

class View final : public ChargeBook {
  public:
    explicit View(const ViewOptions& options);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;

    // ---- membership
    UnitId add_unit(Stage stage);
    // kConflict: a live worker of that name and epoch exists, or the unit plays another stage.
    Result<WorkerId> add_worker(const WorkerSpec& spec, TimePoint now);
    bool set_state(WorkerId worker, WorkerState state, TimePoint now);  // not kRemoved
    bool remove_worker(WorkerId worker,
                       TimePoint now);  // its index and marks go, others' stay (R23)
    // An idle worker plays another stage from now on, in a unit of its own (role flip). false: it
    // has charges, or is unknown.
    bool set_stage(WorkerId worker, Stage stage, TimePoint now);
    void set_cost(Stage stage, const CostModel& cost, TimePoint now);

    // ---- accounting
    ChargeHandle apply(const Charge& charge, TimePoint now);
    PlanHandles apply(const Plan& plan, TimePoint now);
    void release(std::uint32_t index, std::uint32_t generation) override;  // by handles
    void release(ChargeHandle& handle, TimePoint now);
    // The charge's decode part has produced `tokens` so far. Optional: between calls, and without
    // them, KV is assumed to grow by the unit's measured step rate.
    void progress_decode(const ChargeHandle& handle, TokenCount tokens, TimePoint now);
    // So much of the charge's prefill is done, in predicted ms and tokens in all.
    void progress_prefill(const ChargeHandle& handle, double done_ms, TokenCount done_tokens,
                          TimePoint now);
    // Moves a charge (migration, late-bound forward). false: ended charge or rank gone.
    bool move(const ChargeHandle& handle, RankSlot to, TimePoint now);
    std::optional<Charge> charge(const ChargeHandle& handle) const;  // as it stands now

    // ---- what engines say
    // Sampled at `sampled_at` (<= now) at the engine.
    void report(RankId rank, const model::Load& load, TimePoint sampled_at, TimePoint now);
    void stored(RankId rank, BlockHash parent, std::span<const BlockHash> blocks, TimePoint now);
    void removed(RankId rank, std::span<const BlockHash> blocks, TimePoint now);
    void cleared(RankId rank, TimePoint now);
    // The plan's prompt will be resident on its prefill rank: a speculative entry.
    void expect(const Plan& plan, std::span<const BlockHash> blocks, TimePoint now);
    // "Busy" (429, 503, quota refused): no new work for a short lease (R35, R36).
    void mark_busy(RankSlot slot, TimePoint now);

    // ---- what other gateways say
    Digest digest(TimePoint now);
    void fold(const Digest& digest, TimePoint sampled_at, TimePoint now);

    // Ends leases, ramps slow starts, drops silent peers, maintains the index. About every 10-100
    // ms, and before a choice that must see an ended lease. O(ranks) at most every `rescore_every`.
    void tick(TimePoint now);

    // ---- reading
    const ViewOptions& options() const { return options_; }
    TokenCount block_tokens() const { return options_.block_tokens; }
    const CostModel& cost(Stage stage) const { return cost_[static_cast<std::size_t>(stage)]; }
    const Residency& residency() const { return residency_; }
    PrefixMatch match(std::span<const BlockHash> chain) const { return residency_.match(chain); }

    std::size_t slots() const;  // including free ones
    // A rank that may get work now: ready, not busy.
    bool live(RankSlot slot) const {
        return slot < brief_.size() && brief_[slot].score != MinIndex::kClosed;
    }
    RankId id(RankSlot slot) const;
    RankSlot slot(RankId rank) const;  // kNoSlot when unknown or removed
    UnitId unit(RankSlot slot) const;
    Stage stage(RankSlot slot) const { return brief_[slot].stage; }
    WorkerState state(WorkerId worker) const;
    std::string_view name(WorkerId worker) const;
    RankLoad load(RankSlot slot) const;
    // Its own times slow start's share at the last tick, > 0.
    double speed(RankSlot slot) const { return brief_[slot].speed; }
    // What a rank is compared by, in ms; infinite when it may not get work. Prefill: outstanding ms
    // / speed; decode: load_ms / speed; unified: both; encode: outstanding ms / speed.
    double score(RankSlot slot) const { return brief_[slot].score; }
    double prefill_ms(RankSlot slot) const { return brief_[slot].prefill_ms; }  // outstanding
    TokenCount kv_capacity(RankSlot slot) const { return brief_[slot].kv_capacity; }
    // KV room for kv + reserve tokens beyond all that is charged.
    bool fits(RankSlot slot, TokenCount tokens) const {
        const Brief& b = brief_[slot];
        return b.kv_capacity == 0 || b.promised_tokens + tokens <= b.kv_capacity;
    }
    bool excluded(RankSlot slot, std::span<const WorkerId> workers) const;
    // The ranks' figures will be read soon.
    void prefetch(RankSlot slot) const { __builtin_prefetch(&brief_[slot]); }

    // Units of a stage in order of their creation, those with no rank included.
    std::span<const UnitId> units(Stage stage) const;
    std::span<const RankSlot> ranks(UnitId unit) const;
    // The unit's least score and its rank; ties by `salt`. kNoSlot when no rank is open.
    struct Least {
        RankSlot slot = kNoSlot;
        double score = 0;
    };
    Least least(UnitId unit, std::uint64_t salt) const;
    // The same over units [first, last) of units(stage).
    Least least(Stage stage, std::size_t first, std::size_t last, std::uint64_t salt) const;
    std::size_t position(RankSlot slot) const { return brief_[slot].unit; }  // in units(its stage)

    // Our charges on a rank, oldest first (for migration).
    struct LiveCharge {
        std::uint32_t index = 0;
        std::uint32_t generation = 0;
        double kv_tokens = 0;
        TokenCount reserve_tokens = 0;
        TimePoint since;
    };
    void decode_charges(RankSlot slot, std::vector<LiveCharge>& out) const;

    // Balance now: mean/max of the scores of a unit's ranks that are open (1 when idle).
    double balance(UnitId unit) const;
    const ViewStats& stats() const { return stats_; }
    TimePoint now() const { return now_; }

  private:
    struct Sums {  // of charges, ours or others'
        double prefill_ms = 0, prefill_tokens = 0, encode_ms = 0;
        double requests = 0, kv_tokens = 0, kv_anchor_s = 0;  // Σ request · time of its kv_tokens
        double reserve_tokens = 0;
        void add(const Sums& o, double sign);
    };
    // What a choice reads of a rank: one cache line, so that a choice among many candidates costs
    // one miss each. A copy of what Rank, Worker and Unit say, taken by rescore().
    struct alignas(64) Brief {
        float score = MinIndex::kClosed;
        float speed = 1;
        float prefill_ms = 0;
        std::uint32_t unit = 0;  // position in its pool
        double promised_tokens = 0;
        TokenCount kv_capacity = 0;
        Stage stage = Stage::kUnified;
    };
    struct ChargeRef;
    struct Rank;
    struct Worker;
    struct Unit;
    struct Slot;
    struct Peer;
    Rank* find(RankId rank);
    const Slot* find(const ChargeHandle& handle) const;
    Sums sums_of(const Slot& slot) const;
    void advance(TimePoint now);
    void link(std::uint32_t index, RankSlot slot);
    void unlink(std::uint32_t index);
    void take_place(WorkerId worker, std::uint32_t rank, UnitId unit);
    void enter_unit(RankSlot slot, UnitId unit);
    void leave_unit(Rank& rank);
    void set_score(const Unit& unit);
    void forget_rank(RankSlot slot);
    void rescore(RankSlot slot);
    void rescore_all();
    double drain_to(Rank& rank, double ours, double reported_tokens, TimePoint sampled_at);
    Sums begun_at(Rank& rank, TimePoint sampled_at);
    bool names(const ChargeRef& ref, const Rank& rank) const;
    void note(Rank& rank, std::uint32_t index);
    void refresh_peers();
    double slow_start_share(const Worker& worker) const;

    ViewOptions options_;
    std::array<CostModel, kStages> cost_;
    Residency residency_;
    std::vector<Rank> ranks_;
    std::vector<Brief> brief_;  // by slot, as ranks_
    std::vector<RankSlot> free_slots_;
    std::vector<Worker> workers_;  // by WorkerId
    std::vector<Unit> units_;
    struct Pool {
        std::vector<UnitId> units;
        MinIndex minima;  // of the units' scores, in that order
    };
    std::array<Pool, kStages> pools_;
    std::vector<Slot> charges_;
    std::uint32_t free_charge_ = kNoSlot;
    std::vector<Peer> peers_;  // few; in order of first contact
    ChargeHandle::Link link_;
    ViewStats stats_;
    TimePoint now_{};
    TimePoint next_sweep_{};
    TimePoint next_busy_end_ = TimePoint::never();
    std::vector<RankSlot> busy_;
    std::unordered_map<std::uint64_t, WorkerId> by_key_;  // live workers; looked up, never iterated
    std::uint64_t digest_sequence_ = 0;
};

}  // namespace nereid::router
