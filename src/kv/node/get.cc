// Look-ups, gets with their reads from SSD, leases.
#include <algorithm>

#include <fmt/format.h>

#include "kv/node/node_state.h"

namespace nereid::kv {
namespace {

constexpr std::uint64_t kRawSample = 16;  // every so many look-ups all their blocks are counted

}  // namespace

// ---------------------------------------------------------------- look-up

Hit Node::Impl::hit_of(const NamespaceState& ns, const Lookup& c, std::uint32_t contiguous) const {
    const auto objects = objects_of(ns.geometry, c.prompt_tokens);
    std::vector<bool> present(objects.size());
    std::vector<ObjectKey> states;
    for (const ObjectRef& o : objects) {
        if (o.kind == ObjectKind::kState && o.block < contiguous) {
            states.push_back(key_of(ns, c.keys[o.block], ObjectKind::kState));
        }
    }
    const auto there = std::make_unique<bool[]>(states.size());
    index.contains(states, hour(), {there.get(), states.size()});
    std::size_t next_state = 0;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        if (objects[i].block >= contiguous) continue;
        present[i] = objects[i].kind == ObjectKind::kHistory || there[next_state++];
    }
    return usable_hit(ns.geometry, c.prompt_tokens, objects, present);
}

void Node::Impl::command(const Request& r, const Lookup& c) {
    const NamespaceState* ns = opened(r, c.ns);
    if (ns == nullptr) return;
    const TokenCount block_tokens = ns->geometry.block_tokens;
    if (c.keys.size() > options.max_objects ||
        c.prompt_tokens / block_tokens > options.max_objects) {
        return refuse(
            r, Code::kTooLarge,
            fmt::format("{} keys in one command, at most {}", c.keys.size(), options.max_objects));
    }
    std::vector<ObjectKey> keys;
    keys.reserve(c.keys.size());
    for (const auto& k : c.keys) keys.push_back(key_of(*ns, k, ObjectKind::kHistory));

    Found found;
    found.epoch = epoch;
    const bool sample = counters.lookups % kRawSample == 0;
    if (c.places || sample) {
        std::vector<IndexEntry> entries(keys.size());
        index.find_all(keys, hour(), entries);
        std::uint64_t raw = 0;
        for (const IndexEntry& e : entries) {
            const bool there = e.location.tier != Tier::kNowhere;
            raw += there ? 1 : 0;
            if (there && found.blocks == &e - entries.data()) ++found.blocks;
        }
        for (std::uint32_t b = 0; c.places && b < found.blocks; ++b) {
            found.tiers.push_back(entries[b].location.tier);
        }
        if (sample) {
            counters.sampled_raw_tokens += raw * block_tokens;
            counters.sampled_contiguous_tokens += std::uint64_t{found.blocks} * block_tokens;
        }
    } else {
        found.blocks = index.longest_prefix(keys, hour());
    }
    if (c.first_block == 0 && c.prompt_tokens > 0) {
        found.hit = hit_of(*ns, c, found.blocks);
        counters.usable_hit_tokens += std::uint64_t{found.hit.blocks} * block_tokens;
    }
    ++counters.lookups;
    counters.lookup_blocks += keys.size();
    counters.requested_tokens += keys.size() * block_tokens;
    counters.contiguous_hit_tokens += std::uint64_t{found.blocks} * block_tokens;
    if (curve) curve->reference(keys);
    reply(r.client, r.tag, std::move(found));
}

// ---------------------------------------------------------------- get

void Node::Impl::command(const Request& r, const Get& c) {
    const NamespaceState* ns = opened(r, c.ns);
    if (ns == nullptr) return;
    if (c.objects.size() > options.max_objects) {
        return refuse(r, Code::kTooLarge,
                      fmt::format("{} objects in one command, at most {}", c.objects.size(),
                                  options.max_objects));
    }
    Client& client = clients.at(r.client);
    if (client.leases.size() + client.gets.size() >= options.max_client_leases) {
        return refuse(r, Code::kRateLimited, "too many leases of this client");
    }
    ++counters.gets;
    const GetId id{next_id++};
    GetState& g = gets[id];
    client.gets.insert(id);
    g.client = r.client;
    g.tag = r.tag;
    g.ns = c.ns;
    g.lease = c.lease.count() > 0 ? std::min(c.lease, options.max_lease) : options.max_lease;
    g.stop_at_miss = c.stop_at_miss;
    const Duration wait = std::clamp(c.wait, Duration(0), options.max_wait);
    g.due = now.mono + wait;
    g.items.reserve(c.objects.size());
    bool full = false;  // no room for one: looked for no more in this command
    for (std::uint32_t i = 0; i < c.objects.size(); ++i) {
        g.items.push_back({.key = key_of(*ns, c.objects[i].key, c.objects[i].kind)});
        begin_item(id, g, i, c, full);
        const Item& item = g.items.back();
        if (item.pending) {
            ++g.pending;
        } else if (item.status != ObjectStatus::kOk && g.stop_at_miss) {
            break;  // what is behind a hole is of no use
        }
    }
    if (g.pending == 0) {
        finish_get(id);
    } else {
        schedule(Holder::kGet, id.value, g.due);
    }
}

// Pins what is in DRAM, attaches to what is on its way, begins to read what is on SSD.
void Node::Impl::begin_item(GetId id, GetState& g, std::uint32_t i, const Get& c, bool& full) {
    Item& item = g.items[i];
    const bool wait = g.due > now.mono;
    const auto entry = index.find(item.key);
    item.promised = entry && !expired(entry->expiry, hour());
    if (const SlotId slot = item.promised ? resident(item.key) : kNoSlot; slot != kNoSlot) {
        pin(slot);
        use(slot);
        item.slot = slot;
        item.status = ObjectStatus::kOk;
        ++counters.dram_hits;
        return;
    }
    const auto flight = flights.find(item.key);
    const bool reading = flight != flights.end() && flight->second.reservation.value == 0;
    if (flight != flights.end() && wait && (reading || c.join_writes)) {
        flight->second.gets.emplace_back(id, i);
        item.pending = true;
    } else if (!item.promised || entry->location.tier != Tier::kSsd) {
        ++counters.misses;
    } else if (!wait) {
        item.status = ObjectStatus::kTimedOut;
    } else if (!full && begin_read(item.key, c.ns, c.objects[i], entry->location)) {
        flights.at(item.key).gets.emplace_back(id, i);
        item.pending = true;
    } else {
        full = true;
        item.status = ObjectStatus::kNoSpace;
        ++counters.no_space;
    }
}

bool Node::Impl::begin_read(ObjectKey key, NsId ns, const ObjectName& name, Location from) {
    const Geometry& g = namespaces[ns].geometry;
    const ByteCount length = name.kind == ObjectKind::kHistory ? g.history_bytes : g.state_bytes;
    if (length == 0) return false;
    const auto slot = take_slot(ns, static_cast<std::uint32_t>(length), Need::kRead);
    if (!slot) return false;
    Block& b = blocks[*slot];
    b.key = key;
    b.block = name.block;
    b.kind = name.kind;
    b.status = Status::kReading;
    enqueue(*slot);
    flights[key] = {*slot, {}, from, {}, {}};
    const JobId job{next_id++};
    jobs[job] = {JobKind::kRead, *slot, {}};
    out->push_back(ReadSsd{job, from, key, arena.bytes(*slot)});
    out->push_back(TouchSsd{from});
    return true;
}

void Node::Impl::on(ReadDone& e) {
    const auto job = jobs.find(e.job);
    CHECK(job != jobs.end() && job->second.kind == JobKind::kRead);
    const SlotId slot = job->second.slot;
    jobs.erase(job);
    Block& b = blocks[slot];
    const auto node = flights.extract(b.key);
    const InFlight& flight = node.mapped();
    const ByteCount length = arena.bytes(slot).size();
    ObjectStatus status = ObjectStatus::kOk;
    if (b.doomed) {
        status = ObjectStatus::kMiss;
    } else if (!e.record.ok()) {
        status = e.record.code() == Code::kCorrupt ? ObjectStatus::kCorrupt : ObjectStatus::kMiss;
        if (e.record.code() == Code::kCorrupt) {
            ++counters.crc_failures;
        } else if (e.record.code() != Code::kNotFound) {
            ++counters.read_failures;
        }
        if (index.erase(b.key, flight.from)) {
            publish({KvEventType::kRemoved, Tier::kSsd, b.ns, b.block, b.key});
        }
    } else {
        CHECK(e.record->object() == b.key && e.record->length == length);
        const auto hours = std::chrono::duration_cast<std::chrono::hours>(e.record->ttl).count();
        b.ttl_hours = static_cast<std::uint16_t>(std::clamp<std::int64_t>(hours, 1, 32'000));
        b.expiry = later(e.record->expiry, expiry_hour(now.wall, std::chrono::hours(b.ttl_hours)));
        b.block = e.record->block;
        counters.ssd_bytes_out += length;
        if (!make_readable(slot, e.record->payload_crc)) status = ObjectStatus::kNoSpace;
    }
    if (status != ObjectStatus::kOk) drop(slot);
    bool first = true;
    for (const auto& [get, item] : flight.gets) {
        if (status == ObjectStatus::kOk) ++(first ? counters.ssd_hits : counters.joined_reads);
        first = false;
        resolve(get, item, status == ObjectStatus::kOk ? slot : kNoSlot, status);
    }
    for (const FollowerId f : flight.followers) {
        end_follower(f, status == ObjectStatus::kOk ? ObjectStatus::kOk : ObjectStatus::kMiss, {});
    }
}

void Node::Impl::resolve(GetId id, std::uint32_t i, SlotId slot, ObjectStatus status) {
    const auto it = gets.find(id);
    if (it == gets.end()) return;
    GetState& g = it->second;
    // A get that was cut short before this item, or has it answered, no longer waits.
    if (i >= g.items.size() || !g.items[i].pending) return;
    Item& item = g.items[i];
    item.pending = false;
    --g.pending;
    item.status = status;
    if (status == ObjectStatus::kOk) {
        pin(slot);
        use(slot);
        item.slot = slot;
    } else {
        ++counters.misses;
        if (g.stop_at_miss) cut_behind(id, g, i);
    }
    if (g.pending > 0) return;
    unschedule(Holder::kGet, id.value, g.due);
    finish_get(id);
}

// Lets go of an item: its pin, or its place in a flight.
void Node::Impl::give_up_item(GetId id, GetState& g, std::uint32_t i, ObjectStatus status) {
    Item& item = g.items[i];
    if (item.pending) {
        if (const auto flight = flights.find(item.key); flight != flights.end()) {
            std::erase(flight->second.gets, std::pair(id, i));
        }
        item.pending = false;
        --g.pending;
    } else if (item.status == ObjectStatus::kOk) {
        unpin(item.slot);
    }
    item.slot = kNoSlot;
    item.status = status;
}

void Node::Impl::cut_behind(GetId id, GetState& g, std::uint32_t first_bad) {
    for (auto i = first_bad + 1; i < g.items.size(); ++i) {
        give_up_item(id, g, i, ObjectStatus::kMiss);
    }
    g.items.resize(first_bad + 1);
}

void Node::Impl::finish_get(GetId id) {
    const auto node = gets.extract(id);
    const GetState& g = node.mapped();
    CHECK(g.pending == 0);
    Client& client = clients.at(g.client);
    client.gets.erase(id);
    Got answer;
    Lease lease;
    bool hole = false;
    for (const Item& item : g.items) {
        const bool ok = item.status == ObjectStatus::kOk;
        hole = hole || !ok;
        if (!hole) ++answer.contiguous;
        answer.status.push_back(item.status);
        answer.places.push_back(ok ? arena.ref(item.slot) : SlotRef{});
        if (ok) {
            lease.slots.push_back(item.slot);
            counters.dram_bytes_out += answer.places.back().length;
        } else if (item.promised &&
                   (item.status == ObjectStatus::kMiss || item.status == ObjectStatus::kCorrupt)) {
            counters.overpromised_tokens += namespaces[g.ns].geometry.block_tokens;
        }
    }
    if (!lease.slots.empty()) {
        const LeaseId lease_id{next_id++};
        lease.client = g.client;
        lease.due = now.mono + g.lease;
        schedule(Holder::kLease, lease_id.value, lease.due);
        client.leases.insert(lease_id);
        leases[lease_id] = std::move(lease);
        answer.lease = lease_id;
    }
    reply(g.client, g.tag, std::move(answer));
}

// ---------------------------------------------------------------- leases

void Node::Impl::end_lease(LeaseId id) {
    const auto node = leases.extract(id);
    const Lease& lease = node.mapped();
    unschedule(Holder::kLease, id.value, lease.due);
    if (const auto client = clients.find(lease.client); client != clients.end()) {
        client->second.leases.erase(id);
    }
    for (const SlotId slot : lease.slots) unpin(slot);
}

void Node::Impl::command(const Request& r, const Renew& c) {
    const auto it = leases.find(c.lease);
    if (it == leases.end()) return refuse(r, Code::kNotFound, "this lease has ended");
    if (it->second.client != r.client) {
        return refuse(r, Code::kPermissionDenied, "another client's lease");
    }
    unschedule(Holder::kLease, c.lease.value, it->second.due);
    it->second.due = now.mono + std::clamp(c.hold, Duration(1), options.max_lease);
    schedule(Holder::kLease, c.lease.value, it->second.due);
    reply(r.client, r.tag, Done{});
}

void Node::Impl::command(const Request& r, const Release& c) {
    const auto it = leases.find(c.lease);
    if (it != leases.end()) {
        if (it->second.client != r.client) {
            return refuse(r, Code::kPermissionDenied, "another client's lease");
        }
        end_lease(c.lease);
    }
    reply(r.client, r.tag, Done{});  // of one that has ended too: releasing twice is no fault
}

}  // namespace nereid::kv
