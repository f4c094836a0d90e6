// The DRAM tier's decisions: who gets a slot, who goes, what is written behind to SSD.
#include <algorithm>

#include "kv/node/node_state.h"

namespace nereid::kv {
namespace {

constexpr std::uint32_t kDomainsAsked = 16;    // when room is needed: all, if there are no more
constexpr std::uint32_t kExpirySlots = 65536;  // looked at per tick
constexpr std::uint8_t kAppendTries = 3;
constexpr std::uint32_t kRunsAsked = 64;  // when a run has to go and the victim's cannot

}  // namespace

// ---------------------------------------------------------------- slots

std::uint32_t Node::Impl::domain_of(std::uint64_t tenant, ByteCount slot_bytes) {
    const auto [it, fresh] =
        domain_ids.try_emplace({tenant, slot_bytes}, static_cast<std::uint32_t>(domains.size()));
    if (fresh) domains.push_back({tenant, slot_bytes, S3Fifo(nodes)});
    return it->second;
}

std::optional<SlotId> Node::Impl::take_slot(NsId ns, std::uint32_t length, Need need) {
    const std::uint64_t tenant = namespaces[ns].tenant;
    const ByteCount bytes = arena.slot_bytes(length);
    const auto take = [&](Spare spare) -> std::optional<SlotId> {
        if (!make_tenant_room(tenant, bytes, spare)) return std::nullopt;
        for (;;) {
            if (const auto slot = arena.allocate(length)) return slot;
            if (!make_room(tenant, bytes, spare)) return std::nullopt;
        }
    };
    auto slot = take(Spare::kWaiting);
    if (!slot && need == Need::kRead) slot = take(Spare::kNothing);
    if (!slot) {
        if (need == Need::kWrite && (appends > 0 || !deferred.empty())) ++counters.held_back;
        return std::nullopt;
    }
    Block& b = blocks[*slot];
    CHECK(b.status == Status::kEmpty);
    b.ns = ns;
    b.domain = domain_of(tenant, bytes);
    b.used_at = ++use_clock;
    tenant_bytes[tenant] += bytes;
    return slot;
}

// While the tier below takes records, what waits for it is spared: it would be lost for good.
bool Node::Impl::may_go(SlotId slot, Spare spare) const {
    const Block& b = blocks[slot];
    const bool waits = b.wants_ssd && ssd_writable && spare == Spare::kWaiting;
    return b.status == Status::kReady && b.pins == 0 && !b.appending && !waits;
}

std::optional<SlotId> Node::Impl::victim_of(Domain& d, Spare spare) {
    return d.policy.victim([this, spare](std::uint32_t id) { return may_go(id, spare); });
}

bool Node::Impl::make_tenant_room(std::uint64_t tenant, ByteCount bytes, Spare spare) {
    if (options.tenant_quota_bytes == 0) return true;
    while (tenant_bytes[tenant] + bytes > options.tenant_quota_bytes) {
        std::optional<SlotId> victim;
        const auto same = domain_ids.find({tenant, bytes});
        if (same != domain_ids.end()) victim = victim_of(domains[same->second], spare);
        for (auto it = domain_ids.lower_bound({tenant, 0});
             !victim && it != domain_ids.end() && it->first.first == tenant; ++it) {
            victim = victim_of(domains[it->second], spare);
        }
        if (!victim) return false;
        evict(*victim, EvictCause::kQuota);
    }
    return true;
}

// Among domains the one whose next victim was used longest ago gives way. Another slot size gives a
// whole run, and only if its victim is clearly older: otherwise sizes would take pages from each
// other in turn.
bool Node::Impl::make_room(std::uint64_t tenant, ByteCount slot_bytes, Spare spare) {
    std::optional<SlotId> same;
    std::optional<SlotId> other;
    const auto age = [this](SlotId slot) { return use_clock - blocks[slot].used_at; };
    const auto consider = [&](Domain& d) {
        const auto victim = victim_of(d, spare);
        if (!victim) return;
        auto& best = d.slot_bytes == slot_bytes ? same : other;
        if (!best || age(*victim) > age(*best)) best = victim;
    };
    const auto count = static_cast<std::uint32_t>(domains.size());
    if (count > kDomainsAsked) {
        const auto own = domain_ids.find({tenant, slot_bytes});
        if (own != domain_ids.end()) consider(domains[own->second]);
    }
    for (std::uint32_t i = 0; i < std::min(count, kDomainsAsked); ++i) {
        consider(domains[(domain_cursor + i) % count]);
    }
    if (count > 0) domain_cursor = (domain_cursor + kDomainsAsked) % count;
    if (other && (!same || age(*other) / 5 * 4 > age(*same)) &&
        steal(arena.run_of(*other), spare)) {
        return true;
    }
    if (!same) return other && steal_any_run(spare);
    evict(*same, EvictCause::kCapacity);
    return true;
}

bool Node::Impl::steal(const std::vector<SlotId>& run, Spare spare) {
    const auto stays = [&](SlotId s) { return !may_go(s, spare); };
    if (run.empty() || std::ranges::any_of(run, stays)) return false;
    for (const SlotId s : run) evict(s, EvictCause::kSteal);
    return true;
}

// Beside the victim may lie what is being read, perhaps for this very request: then another run.
bool Node::Impl::steal_any_run(Spare spare) {
    const std::uint32_t count = arena.run_count();
    for (std::uint32_t i = 0; i < std::min(count, kRunsAsked); ++i) {
        run_cursor = (run_cursor + 1) % count;
        if (steal(arena.slots_of(run_cursor), spare)) return true;
    }
    return false;
}

void Node::Impl::enqueue(SlotId slot) {
    Block& b = blocks[slot];
    CHECK(!b.queued);
    domains[b.domain].policy.insert(slot, b.key.lo);
    b.queued = true;
}

void Node::Impl::free_slot(SlotId slot) {
    Block& b = blocks[slot];
    CHECK(b.pins == 0 && !b.appending);
    Domain& d = domains[b.domain];
    if (b.queued) d.policy.remove(slot);
    if (b.status == Status::kReady) --readable;
    tenant_bytes[d.tenant] -= d.slot_bytes;
    arena.free(slot);
    b = Block{};
}

void Node::Impl::evict(SlotId slot, EvictCause cause) {
    Block& b = blocks[slot];
    CHECK(may_go(slot, Spare::kNothing) && !b.doomed);
    domains[b.domain].policy.evict(slot, b.key.lo);
    b.queued = false;
    const Location here{Tier::kDram, arena.location(slot)};
    const auto entry = index.find(b.key);
    if (entry && entry->location == here) {
        if (b.ssd != 0) {
            index.put(b.key, {{Tier::kSsd, b.ssd - 1}, b.expiry, 0});
        } else {
            index.erase(b.key, here);
        }
    }
    if (b.wants_ssd) ++counters.append_lost;
    ++counters.evictions[static_cast<std::size_t>(cause)];
    publish({KvEventType::kRemoved, Tier::kDram, b.ns, b.block, b.key});
    free_slot(slot);
}

void Node::Impl::drop(SlotId slot) {
    CHECK(blocks[slot].status != Status::kReady);
    free_slot(slot);
}

void Node::Impl::doom(SlotId slot, EvictCause cause) {
    Block& b = blocks[slot];
    CHECK(b.status == Status::kReady && !b.doomed);
    if (b.queued) domains[b.domain].policy.remove(slot);
    b.queued = false;
    index.erase(b.key, {Tier::kDram, arena.location(slot)});
    ++counters.evictions[static_cast<std::size_t>(cause)];
    publish({KvEventType::kRemoved, Tier::kDram, b.ns, b.block, b.key});
    b.doomed = true;
    settle_doomed(slot);
}

void Node::Impl::settle_doomed(SlotId slot) {
    const Block& b = blocks[slot];
    if (b.doomed && b.status == Status::kReady && b.pins == 0 && !b.appending) free_slot(slot);
}

void Node::Impl::pin(SlotId slot) {
    CHECK(blocks[slot].status == Status::kReady);
    ++blocks[slot].pins;
    ++pinned;
}

void Node::Impl::unpin(SlotId slot) {
    CHECK(blocks[slot].pins > 0);
    --blocks[slot].pins;
    --pinned;
    settle_doomed(slot);
}

void Node::Impl::use(SlotId slot) {
    Block& b = blocks[slot];
    if (b.queued) domains[b.domain].policy.touch(slot);
    b.used_at = ++use_clock;
    extend(slot, b.ttl_hours);
    if (b.ssd != 0) out->push_back(TouchSsd{{Tier::kSsd, b.ssd - 1}});
}

// A block keeps the longest life it was given, and a hit begins it anew.
void Node::Impl::extend(SlotId slot, std::uint16_t ttl_hours) {
    Block& b = blocks[slot];
    b.ttl_hours = std::max(b.ttl_hours, ttl_hours);
    b.expiry = later(b.expiry, expiry_hour(now.wall, std::chrono::hours(b.ttl_hours)));
    index.touch(b.key, b.expiry);
}

bool Node::Impl::make_readable(SlotId slot, std::uint32_t crc) {
    Block& b = blocks[slot];
    const auto known = index.find(b.key);
    b.ssd = known && known->location.tier == Tier::kSsd ? known->location.value + 1 : 0;
    arena.publish(slot, b.key, crc);
    const auto put = index.put(b.key, {{Tier::kDram, arena.location(slot)}, b.expiry, 0});
    if (put == Index::Put::kFull) {
        ++counters.index_full;
        return false;
    }
    b.status = Status::kReady;
    ++readable;
    publish({KvEventType::kStored, Tier::kDram, b.ns, b.block, b.key});
    return true;
}

SlotId Node::Impl::resident(ObjectKey key) const {
    const auto entry = index.find(key);
    if (!entry || entry->location.tier != Tier::kDram) return kNoSlot;
    const SlotId slot = arena.slot_at(entry->location.value);
    // The index compares 48 bits; here is the whole key.
    if (slot == kNoSlot || blocks[slot].key != key || blocks[slot].status != Status::kReady) {
        return kNoSlot;
    }
    return slot;
}

void Node::Impl::sweep_expired() {
    const auto slots = static_cast<std::uint32_t>(blocks.size());
    for (std::uint32_t i = 0; i < std::min(slots, kExpirySlots); ++i) {
        const SlotId slot = expiry_cursor;
        expiry_cursor = (expiry_cursor + 1) % slots;
        const Block& b = blocks[slot];
        if (b.status != Status::kReady || b.doomed || !expired(b.expiry, hour())) continue;
        doom(slot, EvictCause::kExpired);
    }
    index.sweep(options.sweep_buckets, hour());
}

// ---------------------------------------------------------------- write-behind

RecordInfo Node::Impl::record_of(const Block& b, SlotId slot) const {
    const SlotRef ref = arena.ref(slot);
    const NamespaceState& ns = namespaces[b.ns];
    RecordInfo info;
    info.ns = ns.effective;
    info.key = block_key(ns.effective, b.key, b.kind);
    info.kind = b.kind;
    info.block = b.block;
    info.length = ref.length;
    info.payload_crc = ref.crc;
    info.expiry = b.expiry;
    info.ttl = std::chrono::hours(b.ttl_hours);
    return info;
}

void Node::Impl::append(SlotId slot) {
    Block& b = blocks[slot];
    if (!options.ssd || b.ssd != 0 || b.appending || b.wants_ssd || b.doomed) return;
    const ByteCount length = arena.ref(slot).length;
    if (ssd_writable && deferred.empty() &&
        (appends == 0 || append_bytes + length <= options.append_queue_bytes)) {
        start_append(slot);
        return;
    }
    defer(slot);
    ++counters.append_deferred;
}

void Node::Impl::defer(SlotId slot) {
    blocks[slot].wants_ssd = true;
    // While the tier takes nothing, blocks leave DRAM and their entries stay.
    if (deferred.size() > 2 * blocks.size())
        std::erase_if(deferred, [this](const auto& d) { return is_stale(d); });
    deferred.emplace_back(slot, blocks[slot].key);
}

bool Node::Impl::is_stale(const std::pair<SlotId, ObjectKey>& d) const {
    const Block& b = blocks[d.first];
    return b.key != d.second || !b.wants_ssd || b.doomed;
}

void Node::Impl::start_append(SlotId slot) {
    Block& b = blocks[slot];
    b.appending = true;
    b.wants_ssd = false;
    ++appends;
    append_bytes += arena.ref(slot).length;
    const JobId job{next_id++};
    jobs[job] = {JobKind::kAppend, slot, {}};
    out->push_back(AppendSsd{job, record_of(b, slot), arena.bytes(slot)});
}

void Node::Impl::drain_appends() {
    while (!deferred.empty() && ssd_writable) {
        const SlotId slot = deferred.front().first;
        const bool stale = is_stale(deferred.front());
        if (!stale && appends > 0 &&
            append_bytes + arena.ref(slot).length > options.append_queue_bytes) {
            return;
        }
        deferred.pop_front();
        if (!stale) start_append(slot);
    }
}

void Node::Impl::on(AppendDone& e) {
    const auto job = jobs.find(e.job);
    CHECK(job != jobs.end() && job->second.kind == JobKind::kAppend);
    const SlotId slot = job->second.slot;
    jobs.erase(job);
    Block& b = blocks[slot];
    const ByteCount length = arena.ref(slot).length;
    b.appending = false;
    --appends;
    append_bytes -= length;
    if (e.location.ok()) {
        CHECK(e.location->tier == Tier::kSsd);
        b.ssd = e.location->value + 1;
        counters.ssd_bytes_in += length;
        if (!b.doomed) publish({KvEventType::kStored, Tier::kSsd, b.ns, b.block, b.key});
    } else {
        ++counters.append_failures;
        // What the tier could not take now is offered again at the next completion or tick (K34);
        // what it fails at again and again stays in DRAM alone.
        if (!b.doomed && (e.location.code() == Code::kOverloaded || ++b.tries < kAppendTries))
            defer(slot);
    }
    const bool ok = e.location.ok();
    settle_doomed(slot);
    if (ok) drain_appends();
}

}  // namespace nereid::kv
