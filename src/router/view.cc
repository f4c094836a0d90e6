#include "router/view.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/hash.h"
#include "router/view_state.h"

namespace nereid::router {
namespace {

Duration from_ms(double ms) { return Duration(static_cast<std::int64_t>(ms * 1e6)); }

}  // namespace

std::string_view stage_name(Stage stage) {
    constexpr std::array<std::string_view, kStages> kNames{"encode", "prefill", "decode",
                                                           "unified"};
    return kNames[static_cast<std::size_t>(stage)];
}

std::uint64_t worker_key(std::string_view name, std::uint64_t epoch) {
    Sha256 hash;
    hash.update(as_bytes(name));
    std::array<std::uint8_t, 8> raw{};
    std::memcpy(raw.data(), &epoch, sizeof epoch);
    const Digest256 digest = hash.update(raw).finish();
    std::uint64_t key = 0;
    std::memcpy(&key, digest.data(), sizeof key);
    return key;
}

void View::Sums::add(const Sums& o, double sign) {
    prefill_ms += sign * o.prefill_ms;
    prefill_tokens += sign * o.prefill_tokens;
    encode_ms += sign * o.encode_ms;
    requests += sign * o.requests;
    kv_tokens += sign * o.kv_tokens;
    kv_anchor_s += sign * o.kv_anchor_s;
    reserve_tokens += sign * o.reserve_tokens;
}

View::View(const ViewOptions& options)
    : options_(options), residency_(options.residency), link_(std::make_shared<ChargeBook*>(this)) {
    CHECK(options.busy_lease <= Duration(1s));
    cost_.fill(options.cost);
}

View::~View() { *link_ = nullptr; }

std::size_t View::slots() const { return ranks_.size(); }

// ---------------------------------------------------------------- membership

UnitId View::add_unit(Stage stage) {
    const UnitId id{units_.size()};
    Pool& pool = pools_[static_cast<std::size_t>(stage)];
    Unit& unit = units_.emplace_back();
    unit.stage = stage;
    unit.position = static_cast<std::uint32_t>(pool.units.size());
    pool.units.push_back(id);
    pool.minima.resize(pool.units.size());
    return id;
}

Result<WorkerId> View::add_worker(const WorkerSpec& spec, TimePoint now) {
    advance(now);
    if (spec.ranks == 0 || !(spec.speed > 0)) {
        return err(Code::kInvalidArgument, "a worker has at least one rank and a positive speed");
    }
    const std::uint64_t key = worker_key(spec.name, spec.epoch);
    if (by_key_.contains(key)) {
        return err(Code::kConflict, "worker \"" + spec.name + "\" is there already");
    }
    if (spec.unit &&
        (spec.unit->value >= units_.size() || units_[spec.unit->value].stage != spec.stage)) {
        return err(Code::kConflict, "worker \"" + spec.name + "\" and its unit play other stages");
    }
    const WorkerId id{workers_.size()};
    const UnitId unit = spec.unit ? *spec.unit : add_unit(spec.stage);
    units_[unit.value].of_one_worker = !spec.unit;
    Worker& worker = workers_.emplace_back();
    worker.spec = spec;
    worker.key = key;
    worker.state = WorkerState::kReady;
    worker.ready_since = now;
    worker.indexed = spec.block_tokens == options_.block_tokens;
    if (spec.block_tokens != 0 && !worker.indexed) ++stats_.profile_mismatches;
    by_key_.emplace(key, id);
    for (std::uint32_t rank = 0; rank < spec.ranks; ++rank) take_place(id, rank, unit);
    if (!peers_.empty()) {  // their digests may name it already
        refresh_peers();
        rescore_all();
    }
    return id;
}

void View::take_place(WorkerId id, std::uint32_t rank_number, UnitId unit) {
    RankSlot slot = 0;
    if (free_slots_.empty()) {
        slot = static_cast<RankSlot>(ranks_.size());
        ranks_.emplace_back();
        brief_.emplace_back();
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
    }
    Worker& worker = workers_[id.value];
    Rank& rank = ranks_[slot];
    rank = Rank{};
    rank.used = true;
    rank.id = {id, rank_number};
    brief_[slot] = Brief{};
    brief_[slot].stage = worker.spec.stage;
    brief_[slot].kv_capacity = worker.spec.kv_capacity_tokens;
    worker.slots.push_back(slot);
    if (worker.indexed) residency_.add_rank(slot);
    enter_unit(slot, unit);
    rescore(slot);
}

void View::enter_unit(RankSlot slot, UnitId id) {
    Unit& unit = units_[id.value];
    ranks_[slot].unit = id;
    brief_[slot].unit = unit.position;
    ranks_[slot].position = static_cast<std::uint32_t>(unit.slots.size());
    unit.slots.push_back(slot);
    unit.scores.resize(unit.slots.size());
}

void View::leave_unit(Rank& rank) {
    Unit& unit = units_[rank.unit.value];
    const RankSlot last = unit.slots.back();
    unit.slots[rank.position] = last;
    ranks_[last].position = rank.position;
    unit.scores.set(rank.position, brief_[last].score);
    unit.slots.pop_back();
    unit.scores.resize(unit.slots.size());
    set_score(unit);
    if (!unit.slots.empty() || !unit.of_one_worker) return;
    Pool& pool = pools_[static_cast<std::size_t>(unit.stage)];
    pool.units.erase(pool.units.begin() + static_cast<std::ptrdiff_t>(unit.position));
    for (std::size_t i = 0; i < pool.units.size(); ++i) {
        Unit& other = units_[pool.units[i].value];
        other.position = static_cast<std::uint32_t>(i);
        for (const RankSlot slot : other.slots) brief_[slot].unit = other.position;
        pool.minima.set(i, other.scores.minimum());
    }
    pool.minima.resize(pool.units.size());
}

void View::set_score(const Unit& unit) {
    pools_[static_cast<std::size_t>(unit.stage)].minima.set(unit.position, unit.scores.minimum());
}

bool View::set_state(WorkerId id, WorkerState state, TimePoint now) {
    advance(now);
    if (id.value >= workers_.size() || state == WorkerState::kRemoved) return false;
    Worker& worker = workers_[id.value];
    if (worker.state == WorkerState::kRemoved) return false;
    // Back from a drain is a new start; back from a breaker is not.
    if (worker.state == WorkerState::kDraining && state == WorkerState::kReady) {
        worker.ready_since = now;
    }
    worker.state = state;
    for (const RankSlot slot : worker.slots) rescore(slot);
    return true;
}

bool View::remove_worker(WorkerId id, TimePoint now) {
    advance(now);
    if (id.value >= workers_.size()) return false;
    Worker& worker = workers_[id.value];
    if (worker.state == WorkerState::kRemoved) return false;
    worker.state = WorkerState::kRemoved;
    by_key_.erase(worker.key);
    for (const RankSlot slot : worker.slots) {
        Rank& rank = ranks_[slot];
        if (worker.indexed) residency_.remove_rank(slot);
        brief_[slot].score = MinIndex::kClosed;
        leave_unit(rank);
        rank.used = false;
        if (rank.live_charges == 0) forget_rank(slot);
    }
    worker.slots.clear();
    return true;
}

void View::forget_rank(RankSlot slot) {
    ranks_[slot] = Rank{};
    brief_[slot] = Brief{};
    free_slots_.push_back(slot);
}

bool View::set_stage(WorkerId id, Stage stage, TimePoint now) {
    advance(now);
    if (id.value >= workers_.size()) return false;
    Worker& worker = workers_[id.value];
    if (worker.state == WorkerState::kRemoved) return false;
    for (const RankSlot slot : worker.slots) {
        if (ranks_[slot].live_charges != 0) return false;
    }
    const UnitId unit = add_unit(stage);
    units_[unit.value].of_one_worker = true;
    worker.spec.stage = stage;
    worker.spec.unit = unit;
    for (const RankSlot slot : worker.slots) {
        Rank& rank = ranks_[slot];
        leave_unit(rank);
        brief_[slot].stage = stage;
        enter_unit(slot, unit);
        rescore(slot);
    }
    return true;
}

void View::set_cost(Stage stage, const CostModel& cost, TimePoint now) {
    advance(now);
    cost_[static_cast<std::size_t>(stage)] = cost;
    rescore_all();
}

// ---------------------------------------------------------------- accounting

View::Sums View::sums_of(const Slot& slot) const {
    const Charge& c = slot.charge;
    return {.prefill_ms = c.prefill_ms,
            .prefill_tokens = static_cast<double>(c.prefill_tokens),
            .encode_ms = c.encode_ms,
            .requests = static_cast<double>(c.requests),
            .kv_tokens = static_cast<double>(c.kv_tokens),
            .kv_anchor_s = c.requests * slot.anchor_s,
            .reserve_tokens = static_cast<double>(c.reserve_tokens)};
}

void View::link(std::uint32_t index, RankSlot slot) {
    Slot& charge = charges_[index];
    Rank& rank = ranks_[slot];
    charge.charge.slot = slot;
    charge.newer = kNoSlot;
    charge.older = rank.newest;
    if (rank.newest != kNoSlot) charges_[rank.newest].newer = index;
    rank.newest = index;
    if (rank.oldest == kNoSlot) rank.oldest = index;
    ++rank.live_charges;
    ++rank.placed;
    rank.own.add(sums_of(charge), 1);
    note(rank, index);
    rescore(slot);
}

// For the next report.
void View::note(Rank& rank, std::uint32_t index) {
    const Slot& charge = charges_[index];
    const auto add = [&](std::vector<ChargeRef>& refs) {
        if (refs.size() > 2 * std::size_t{rank.live_charges} + 16) {  // no report comes
            std::erase_if(refs, [&](const ChargeRef& ref) { return !names(ref, rank); });
        }
        refs.push_back({index, charge.generation});
    };
    add(rank.unbegun);
    if (charge.charge.prefill_tokens != 0) add(rank.prefilling);
}

bool View::names(const ChargeRef& ref, const Rank& rank) const {
    const Slot& charge = charges_[ref.index];
    return charge.active && charge.generation == ref.generation &&
           &ranks_[charge.charge.slot] == &rank;
}

void View::unlink(std::uint32_t index) {
    Slot& charge = charges_[index];
    const RankSlot slot = charge.charge.slot;
    Rank& rank = ranks_[slot];
    (charge.newer == kNoSlot ? rank.newest : charges_[charge.newer].older) = charge.older;
    (charge.older == kNoSlot ? rank.oldest : charges_[charge.older].newer) = charge.newer;
    rank.own.add(sums_of(charge), -1);
    if (--rank.live_charges == 0) rank.own = {};  // no dust from rounding stays
    if (!rank.used) {
        if (rank.live_charges == 0) forget_rank(slot);
        return;
    }
    while (!rank.ended.empty() && rank.ended.front().ended_at + options_.sample_age < now_) {
        rank.ended.pop_front();
    }
    rank.ended.push_back({charge.begins_at, now_, sums_of(charge)});
    rescore(slot);
}

ChargeHandle View::apply(const Charge& charge, TimePoint now) {
    advance(now);
    CHECK(charge.slot < ranks_.size());
    if (!ranks_[charge.slot].used) return {};
    std::uint32_t index = free_charge_;
    if (index == kNoSlot) {
        index = static_cast<std::uint32_t>(charges_.size());
        charges_.emplace_back();
    } else {
        free_charge_ = charges_[index].newer;
    }
    Slot& slot = charges_[index];
    const std::uint32_t generation = slot.generation + 1;
    slot = Slot{};
    slot.charge = charge;
    slot.generation = generation;
    slot.active = true;
    slot.placed_at = now_;
    slot.begins_at = now_ + from_ms(charge.starts_in_ms);
    slot.anchor_s = in_seconds(slot.begins_at);
    slot.prefill_tokens = charge.prefill_tokens;
    slot.prefill_ms = charge.prefill_ms;
    link(index, charge.slot);
    ++stats_.applied;
    ++stats_.live_charges;
    return {link_, index, generation};
}

PlanHandles View::apply(const Plan& plan, TimePoint now) {
    PlanHandles handles;
    if (plan.encode) handles.encode = apply(plan.encode->charge, now);
    if (plan.prefill) handles.prefill = apply(plan.prefill->charge, now);
    if (plan.decode) handles.decode = apply(plan.decode->charge, now);
    return handles;
}

void View::release(std::uint32_t index, std::uint32_t generation) {
    if (index >= charges_.size()) return;
    Slot& slot = charges_[index];
    if (!slot.active || slot.generation != generation) return;
    unlink(index);
    slot.active = false;
    slot.newer = free_charge_;
    free_charge_ = index;
    ++stats_.released;
    --stats_.live_charges;
}

void View::release(ChargeHandle& handle, TimePoint now) {
    advance(now);
    handle.release();
}

const View::Slot* View::find(const ChargeHandle& handle) const {
    if (!handle.active() || handle.index() >= charges_.size()) return nullptr;
    const Slot& slot = charges_[handle.index()];
    return slot.active && slot.generation == handle.generation() ? &slot : nullptr;
}

void View::progress_decode(const ChargeHandle& handle, TokenCount tokens, TimePoint now) {
    advance(now);
    if (find(handle) == nullptr) return;
    Slot& slot = charges_[handle.index()];
    if (tokens <= slot.produced) return;
    Rank& rank = ranks_[slot.charge.slot];
    rank.own.add(sums_of(slot), -1);
    const TokenCount more = tokens - slot.produced;
    slot.produced = tokens;
    slot.charge.kv_tokens += more;
    slot.charge.reserve_tokens -= std::min(slot.charge.reserve_tokens, more);
    slot.anchor_s = in_seconds(now_);
    rank.own.add(sums_of(slot), 1);
    if (rank.used) rescore(slot.charge.slot);
}

void View::progress_prefill(const ChargeHandle& handle, double done_ms, TokenCount done_tokens,
                            TimePoint now) {
    advance(now);
    if (find(handle) == nullptr) return;
    Slot& slot = charges_[handle.index()];
    Rank& rank = ranks_[slot.charge.slot];
    rank.own.add(sums_of(slot), -1);
    // What a report has drained already is not drained twice.
    slot.charge.prefill_ms =
        std::min(slot.charge.prefill_ms, std::max(0.0, slot.prefill_ms - done_ms));
    slot.charge.prefill_tokens =
        std::min(slot.charge.prefill_tokens,
                 slot.prefill_tokens - std::min(done_tokens, slot.prefill_tokens));
    rank.own.add(sums_of(slot), 1);
    if (rank.used) rescore(slot.charge.slot);
}

bool View::move(const ChargeHandle& handle, RankSlot to, TimePoint now) {
    advance(now);
    if (find(handle) == nullptr || to >= ranks_.size() || !ranks_[to].used) return false;
    const std::uint32_t index = handle.index();
    if (charges_[index].charge.slot == to) return true;
    unlink(index);
    charges_[index].placed_at = now_;
    charges_[index].begins_at = now_;
    link(index, to);
    ++stats_.moved;
    return true;
}

std::optional<Charge> View::charge(const ChargeHandle& handle) const {
    const Slot* slot = find(handle);
    if (slot == nullptr) return std::nullopt;
    return slot->charge;
}

void View::decode_charges(RankSlot slot, std::vector<LiveCharge>& out) const {
    out.clear();
    const Rank& rank = ranks_[slot];
    const double now_s = in_seconds(now_);
    for (std::uint32_t i = rank.oldest; i != kNoSlot; i = charges_[i].newer) {
        const Slot& c = charges_[i];
        const double grown = std::max(0.0, now_s - c.anchor_s) * rank.growth_per_s;
        const auto grown_tokens = static_cast<TokenCount>(grown);
        out.push_back({.index = i,
                       .generation = c.generation,
                       .kv_tokens = c.charge.kv_tokens + grown,
                       .reserve_tokens = c.charge.reserve_tokens -
                                         std::min(c.charge.reserve_tokens, grown_tokens),
                       .since = c.begins_at});
    }
}

// ---------------------------------------------------------------- time

void View::advance(TimePoint now) {
    if (now > now_) now_ = now;
    if (now_ < next_busy_end_) return;
    next_busy_end_ = TimePoint::never();
    std::vector<RankSlot> over;
    std::erase_if(busy_, [&](RankSlot slot) {
        const Rank& rank = ranks_[slot];
        if (rank.used && rank.busy_until > now_) {
            next_busy_end_ = std::min(next_busy_end_, rank.busy_until);
            return false;
        }
        over.push_back(slot);
        return true;
    });
    for (const RankSlot slot : over) {
        if (ranks_[slot].used) rescore(slot);
    }
}

void View::tick(TimePoint now) {
    advance(now);
    residency_.maintain(now_);
    if (now_ < next_sweep_) return;
    next_sweep_ = now_ + options_.rescore_every;
    const std::size_t before = peers_.size();
    std::erase_if(peers_, [&](const Peer& p) { return p.sampled_at + options_.peer_ttl < now_; });
    if (peers_.size() != before) {
        stats_.peers_expired += before - peers_.size();
        refresh_peers();
    }
    for (Rank& rank : ranks_) {
        const bool silent = rank.used && rank.reported_at > TimePoint{Duration::min()} &&
                            rank.reported_at + options_.report_ttl < now_;
        if (silent && !rank.silent) ++stats_.reports_expired;
        rank.silent = silent;
    }
    rescore_all();
}

double View::slow_start_share(const Worker& worker) const {
    const Duration age = now_ - worker.ready_since;
    if (options_.slow_start <= Duration(0) || age >= options_.slow_start) return 1.0;
    const double part = to_seconds(age) / to_seconds(options_.slow_start);
    return options_.slow_start_floor + (1 - options_.slow_start_floor) * part;
}

void View::rescore_all() {
    for (RankSlot slot = 0; slot < ranks_.size(); ++slot) {
        if (ranks_[slot].used) rescore(slot);
    }
}

// own + foreign + echo (see the header), and the score that follows.
void View::rescore(RankSlot slot) {
    Rank& rank = ranks_[slot];
    Sums total = rank.own;
    TimePoint peers_at = TimePoint::never();
    for (const Peer& peer : peers_) peers_at = std::min(peers_at, peer.sampled_at);
    const bool has_report = rank.reported_at > TimePoint{Duration::min()} &&
                            rank.reported_at + options_.report_ttl >= now_;
    const bool by_peers = !peers_.empty() && (!has_report || peers_at >= rank.reported_at);
    if (by_peers) {
        total.add(rank.peers, 1);
    } else if (has_report) {
        total.add(rank.reported, 1);
    }
    if (options_.echo && !peers_.empty()) {
        const TimePoint since = by_peers ? peers_at : rank.reported_at;
        Sums echo;
        for (std::uint32_t i = rank.newest; i != kNoSlot && charges_[i].placed_at > since;
             i = charges_[i].older) {
            echo.add(sums_of(charges_[i]), 1);
        }
        total.add(echo, static_cast<double>(peers_.size()));
    }
    const double grown =
        std::max(0.0, total.requests * in_seconds(now_) - total.kv_anchor_s) * rank.growth_per_s;
    Brief& brief = brief_[slot];
    brief.promised_tokens =
        std::max(total.kv_tokens + grown, total.kv_tokens + total.reserve_tokens);
    brief.prefill_ms = static_cast<float>(total.prefill_ms);
    total.kv_tokens += grown;
    rank.total = total;

    const Worker& worker = workers_[rank.id.worker.value];
    brief.speed = static_cast<float>(worker.spec.speed * slow_start_share(worker));
    brief.score = MinIndex::kClosed;
    if (worker.state == WorkerState::kReady && rank.busy_until <= now_) {
        const DecodeCost& decode = cost_[static_cast<std::size_t>(brief.stage)].decode;
        double ms = 0;
        switch (brief.stage) {
            case Stage::kEncode:
                ms = total.encode_ms;
                break;
            case Stage::kPrefill:
                ms = total.prefill_ms;
                break;
            case Stage::kDecode:
                ms = decode.load_ms(total.requests, total.kv_tokens);
                break;
            case Stage::kUnified:
                ms = total.prefill_ms + total.encode_ms +
                     options_.unified_steps * decode.load_ms(total.requests, total.kv_tokens);
                break;
        }
        brief.score = static_cast<float>(ms / brief.speed);
    }
    Unit& unit = units_[rank.unit.value];
    unit.scores.set(rank.position, brief.score);
    set_score(unit);
}

// ---------------------------------------------------------------- reading

RankId View::id(RankSlot slot) const { return ranks_[slot].id; }
RankSlot View::slot(RankId rank) const {
    if (rank.worker.value >= workers_.size()) return kNoSlot;
    const Worker& worker = workers_[rank.worker.value];
    return rank.rank < worker.slots.size() ? worker.slots[rank.rank] : kNoSlot;
}
UnitId View::unit(RankSlot slot) const { return ranks_[slot].unit; }
WorkerState View::state(WorkerId worker) const {
    return worker.value < workers_.size() ? workers_[worker.value].state : WorkerState::kRemoved;
}
std::string_view View::name(WorkerId worker) const { return workers_[worker.value].spec.name; }

RankLoad View::load(RankSlot slot) const {
    const Rank& rank = ranks_[slot];
    return {.prefill_ms = rank.total.prefill_ms,
            .prefill_tokens = rank.total.prefill_tokens,
            .encode_ms = rank.total.encode_ms,
            .requests = rank.total.requests,
            .kv_tokens = rank.total.kv_tokens,
            .reserve_tokens = rank.total.reserve_tokens,
            .placed = rank.placed};
}

bool View::excluded(RankSlot slot, std::span<const WorkerId> workers) const {
    return std::find(workers.begin(), workers.end(), ranks_[slot].id.worker) != workers.end();
}

std::span<const UnitId> View::units(Stage stage) const {
    return pools_[static_cast<std::size_t>(stage)].units;
}
std::span<const RankSlot> View::ranks(UnitId unit) const { return units_[unit.value].slots; }

View::Least View::least(UnitId id, std::uint64_t salt) const {
    const Unit& unit = units_[id.value];
    if (unit.slots.empty()) return {};
    const std::size_t at = unit.scores.least(salt);
    if (at == MinIndex::kNone) return {};
    return {.slot = unit.slots[at], .score = unit.scores.get(at)};
}

View::Least View::least(Stage stage, std::size_t first, std::size_t last,
                        std::uint64_t salt) const {
    const Pool& pool = pools_[static_cast<std::size_t>(stage)];
    if (first >= last || last > pool.units.size()) return {};
    const std::size_t at = pool.minima.least(first, last, salt);
    return at == MinIndex::kNone ? Least{} : least(pool.units[at], salt);
}

double View::balance(UnitId id) const {
    double sum = 0;
    double most = 0;
    std::size_t open = 0;
    for (const RankSlot slot : units_[id.value].slots) {
        const double score = brief_[slot].score;
        if (std::isinf(score)) continue;
        sum += score;
        most = std::max(most, score);
        ++open;
    }
    return most <= 0 ? 1.0 : sum / (static_cast<double>(open) * most);
}

}  // namespace nereid::router
