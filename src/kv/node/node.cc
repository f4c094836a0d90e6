// Dispatch, clients, deadlines, namespaces, events, and the whole-state checks.
#include "kv/node/node.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "kv/node/node_state.h"

namespace nereid::kv {

Node::Node(const NodeOptions& options, Arena& arena, Index& index)
    : impl_(std::make_unique<Impl>(options, arena, index)) {}
Node::~Node() = default;

Node::Impl::Impl(const NodeOptions& node_options, Arena& node_arena, Index& node_index)
    : options(node_options),
      arena(node_arena),
      index(node_index),
      blocks(node_arena.slot_count()),
      nodes(node_arena.slot_count()),
      epoch(node_options.epoch) {}

void Node::step(Event event, Now now, std::vector<Action>& actions) {
    CHECK(now.mono >= impl_->now.mono);
    impl_->now = now;
    impl_->out = &actions;
    impl_->end_due();
    std::visit([this](auto& e) { impl_->on(e); }, event);
    impl_->answer_pollers();
    impl_->out = nullptr;
}

TimePoint Node::next_deadline() const {
    return impl_->due.empty() ? TimePoint::never() : impl_->due.begin()->at;
}

// ---------------------------------------------------------------- requests

// A name that nobody had: records under the old one are never looked up again.
static model::Namespace effective_namespace(const model::Namespace& ns, std::uint64_t clears) {
    if (clears == 0) return ns;
    std::string text("nereid-kv-cleared\1");
    ByteWriter w(text);
    w.put_bytes(ns.digest);
    w.put(clears);
    return {sha256(as_bytes(text))};
}

void Node::Impl::on(Request& r) {
    // Only OpenNamespace makes a client known: what a dead client still had under way finds
    // nothing.
    if (!clients.contains(r.client) && !std::holds_alternative<OpenNamespace>(r.command)) {
        ++counters.refused;
        out->push_back(
            Reply{r.client, r.tag, Error{Code::kPermissionDenied, "no namespace has been opened"}});
        return;
    }
    std::visit([&](const auto& c) { command(r, c); }, r.command);
}

void Node::Impl::reply(ClientId client, std::uint64_t tag, Answer answer) {
    if (clients.contains(client)) out->push_back(Reply{client, tag, std::move(answer)});
}

void Node::Impl::refuse(const Request& r, Code code, std::string message) {
    ++counters.refused;
    out->push_back(Reply{r.client, r.tag, Error{code, std::move(message)}});
}

Node::Impl::NamespaceState* Node::Impl::opened(const Request& r, NsId ns) {
    if (!clients.at(r.client).opened.contains(ns)) {
        refuse(r, Code::kPermissionDenied, "this client has not opened that namespace");
        return nullptr;
    }
    return &namespaces[ns];
}

void Node::Impl::command(const Request& r, const OpenNamespace& c) {
    if (const auto valid = check_geometry(c.geometry); !valid.ok()) {
        return refuse(r, valid.code(), valid.error().message);
    }
    const auto known = namespace_ids.find(c.ns.digest);
    NsId id;
    if (known != namespace_ids.end()) {
        id = known->second;
        if (namespaces[id].geometry != c.geometry || namespaces[id].tenant != c.tenant) {
            return refuse(r, Code::kConflict, "this namespace is known with another geometry");
        }
    } else if (namespaces.size() >= options.max_namespaces) {
        return refuse(r, Code::kOverloaded, "too many namespaces");
    } else {
        id = static_cast<NsId>(namespaces.size());
        const auto cleared = options.clears.find(c.ns.digest);
        const std::uint64_t clears = cleared == options.clears.end() ? 0 : cleared->second;
        namespaces.push_back(
            {c.ns, effective_namespace(c.ns, clears), c.geometry, c.tenant, c.ttl, clears});
        namespace_ids[c.ns.digest] = id;
    }
    if (!curve) {
        const ByteCount slot =
            arena.slot_bytes(static_cast<std::uint32_t>(c.geometry.history_bytes));
        const std::uint64_t here = std::max<std::uint64_t>(8, arena.payload_capacity() / slot);
        curve.emplace(std::vector<std::uint64_t>{here / 8, here / 4, here / 2, here, here * 2,
                                                 here * 4, here * 8});
    }
    clients[r.client].opened.insert(id);
    reply(r.client, r.tag, NamespaceOpened{id, epoch});
}

void Node::Impl::command(const Request& r, const Clear& c) {
    NamespaceState* ns = opened(r, c.ns);
    if (ns == nullptr) return;
    std::vector<ReservationId> open;
    for (SlotId slot = 0; slot < blocks.size(); ++slot) {
        Block& b = blocks[slot];
        if (b.ns != c.ns || b.status == Status::kEmpty || b.doomed) continue;
        if (b.status == Status::kReady) {
            doom(slot, EvictCause::kCleared);
            continue;
        }
        b.doomed = true;  // of what is under way nothing is kept
        if (b.status == Status::kWriting) open.push_back(flights.at(b.key).reservation);
    }
    for (const ReservationId id : open) expire_reservation(id, ObjectStatus::kExpired);
    ns->effective = effective_namespace(ns->ns, ++ns->clears);
    ++epoch;
    publish({KvEventType::kCleared, Tier::kNowhere, c.ns, 0, {}});
    if (options.ssd)
        out->push_back(RememberClear{ns->ns, ns->clears, Reply{r.client, r.tag, Done{}}});
    else
        reply(r.client, r.tag, Done{});
}

void Node::Impl::on(const ClientGone& e) {
    const auto it = clients.find(e.client);
    if (it == clients.end()) return;
    ++counters.clients_gone;
    // Everything it holds or waits for. Copies of its staging that have begun run to their end.
    Client gone = std::move(it->second);
    clients.erase(it);
    for (const PollerId id : gone.pollers) {
        unschedule(Holder::kPoller, id.value, pollers.at(id).due);
        pollers.erase(id);
    }
    for (const FollowerId id : gone.followers) end_follower(id, ObjectStatus::kMiss, {});
    for (const GetId id : gone.gets) {
        GetState& g = gets.at(id);
        for (std::uint32_t i = 0; i < g.items.size(); ++i) {
            give_up_item(id, g, i, ObjectStatus::kMiss);
        }
        unschedule(Holder::kGet, id.value, g.due);
        gets.erase(id);
    }
    for (const LeaseId id : gone.leases) end_lease(id);
    for (const ReservationId id : gone.reservations) {
        if (reservations.at(id).copying) continue;
        ++counters.reservations_aborted;
        expire_reservation(id, ObjectStatus::kUnknown);
    }
}

// ---------------------------------------------------------------- time

void Node::Impl::end_due() {
    while (!due.empty() && due.begin()->at <= now.mono) {
        const Due d = *due.begin();
        due.erase(due.begin());
        switch (d.holder) {
            case Holder::kLease:
                ++counters.leases_expired;
                end_lease(LeaseId{d.id});
                break;
            case Holder::kReservation:
                ++counters.reservations_expired;
                expire_reservation(ReservationId{d.id}, ObjectStatus::kExpired);
                break;
            case Holder::kGet: {
                ++counters.get_deadlines;
                const GetId id{d.id};
                GetState& g = gets.at(id);
                for (std::uint32_t i = 0; i < g.items.size(); ++i) {
                    if (!g.items[i].pending) continue;
                    give_up_item(id, g, i, ObjectStatus::kTimedOut);
                    if (g.stop_at_miss) cut_behind(id, g, i);
                }
                finish_get(id);
                break;
            }
            case Holder::kFollower:
                end_follower(FollowerId{d.id}, ObjectStatus::kTimedOut, {});
                break;
            case Holder::kPoller: {
                const PollerId id{d.id};
                answer_poller(id, pollers.at(id));
                break;
            }
        }
    }
}

void Node::Impl::on(const Tick&) {
    constexpr Duration kSweepEvery = 1s;
    if (now.mono >= next_sweep) {
        next_sweep = now.mono + kSweepEvery;
        sweep_expired();
    }
    drain_appends();
}

// ---------------------------------------------------------------- SSD

void Node::Impl::on(const SsdWritable& e) {
    ssd_writable = e.writable;
    drain_appends();
}

void Node::Impl::on(const SsdGone& e) {
    for (const ScanEntry& entry : e.entries) {
        ++counters.ssd_gone;
        const SlotId slot = resident(entry.key);
        if (slot != kNoSlot && blocks[slot].ssd == entry.location.value + 1) {
            blocks[slot].ssd = 0;
            // Its time was not over: the copy in DRAM is good and goes down again.
            if (e.cause == GoneCause::kCorrupt || e.cause == GoneCause::kIo) append(slot);
        } else if (!index.erase(entry.key, entry.location)) {
            continue;
        }
        publish({KvEventType::kRemoved, Tier::kSsd, kAnyNs, 0, entry.key});
    }
}

void Node::Impl::on(const SsdMoved& e) {
    const SlotId slot = resident(e.key);
    if (slot != kNoSlot) {
        if (blocks[slot].ssd == e.from.value + 1) blocks[slot].ssd = e.to.value + 1;
        return;
    }
    const auto entry = index.find(e.key);
    if (entry && entry->location == e.from) index.put(e.key, {e.to, e.expiry, 0});
}

void Node::Impl::on(const Scanned& e) {
    for (const ScanEntry& entry : e.entries) {
        if (expired(entry.expiry, hour())) continue;
        const SlotId slot = resident(entry.key);
        if (slot != kNoSlot) {
            if (blocks[slot].ssd == 0) blocks[slot].ssd = entry.location.value + 1;
            continue;
        }
        // What this run has written meanwhile is newer than what the scan finds.
        const auto known = index.find(entry.key);
        if (known && later(known->expiry, entry.expiry) == known->expiry &&
            known->expiry != entry.expiry) {
            continue;
        }
        index.put(entry.key, {entry.location, entry.expiry, entry.generation});
    }
}

// ---------------------------------------------------------------- events

void Node::Impl::publish(KvEvent event) {
    ring.push_back(event);
    ++next_event;
    if (ring.size() > options.event_ring) ring.pop_front();
}

void Node::Impl::command(const Request& r, const Subscribe& c) {
    Client& client = clients.at(r.client);
    if (client.pollers.size() >= options.max_client_leases) {
        return refuse(r, Code::kRateLimited, "too many open subscriptions of this client");
    }
    const Duration wait = std::clamp(c.wait, Duration(0), options.max_wait);
    const PollerId id{next_id++};
    // 0: whatever is remembered; only a real gap is one.
    const Poller poller{r.client, r.tag, std::max<std::uint64_t>(1, c.from),
                        std::clamp(c.limit, 1U, options.event_ring), now.mono + wait};
    pollers[id] = poller;
    client.pollers.insert(id);
    schedule(Holder::kPoller, id.value, poller.due);
    if (wait.count() == 0) answer_poller(id, poller);
}

void Node::Impl::answer_poller(PollerId id, Poller poller) {
    unschedule(Holder::kPoller, id.value, poller.due);
    pollers.erase(id);
    clients.at(poller.client).pollers.erase(id);
    Events events;
    events.epoch = epoch;
    // A cursor from before the ring, or from another run's future, has to begin anew.
    const bool beyond = poller.from > next_event;
    events.gap = poller.from < oldest_event() || beyond;
    events.first = events.gap ? oldest_event() : poller.from;
    const std::uint64_t begin = events.first - oldest_event();
    const std::uint64_t count = std::min<std::uint64_t>(poller.limit, ring.size() - begin);
    for (std::uint64_t i = 0; i < count; ++i) events.events.push_back(ring[begin + i]);
    events.next = events.first + count;
    reply(poller.client, poller.tag, std::move(events));
}

void Node::Impl::answer_pollers() {
    for (auto it = pollers.begin(); it != pollers.end();) {
        const auto [id, poller] = *it++;
        if (poller.from != next_event) answer_poller(id, poller);
    }
}

// ---------------------------------------------------------------- what others see

const Index& Node::index() const { return impl_->index; }
const NodeCounters& Node::counters() const { return impl_->counters; }

NodeHeld Node::held() const {
    const Impl& s = *impl_;
    NodeHeld h;
    h.blocks = s.readable;
    h.leases = s.leases.size();
    h.pinned_slots = s.pinned;
    h.reservations = s.reservations.size();
    for (const auto& [id, job] : s.jobs) h.reads += job.kind == Impl::JobKind::kRead ? 1 : 0;
    h.writing_slots = s.flights.size() - h.reads;
    h.appends = s.appends;
    h.append_queue = s.deferred.size();
    h.waiting_gets = s.gets.size();
    h.followers = s.followers.size();
    h.pollers = s.pollers.size();
    h.dram_used_bytes = s.arena.used_bytes();
    h.dram_capacity_bytes = s.arena.payload_capacity();
    return h;
}

ByteCount Node::tenant_bytes(std::uint64_t tenant) const {
    const auto it = impl_->tenant_bytes.find(tenant);
    return it == impl_->tenant_bytes.end() ? 0 : it->second;
}

std::vector<HitCurve::Point> Node::hit_curve() const {
    return impl_->curve ? impl_->curve->points() : std::vector<HitCurve::Point>{};
}

void Node::list(const std::function<void(const Listed&)>& each) const {
    const Impl& s = *impl_;
    for (SlotId slot = 0; slot < s.blocks.size(); ++slot) {
        const auto& b = s.blocks[slot];
        if (b.status != Impl::Status::kReady || b.doomed) continue;
        Listed l;
        l.ns = b.ns;
        l.key = block_key(s.namespaces[b.ns].effective, b.key, b.kind);
        l.kind = b.kind;
        l.block = b.block;
        l.place = s.arena.ref(slot);
        l.pins = b.pins;
        if (b.ssd != 0) l.ssd = {Tier::kSsd, b.ssd - 1};
        l.expiry = b.expiry;
        each(l);
    }
}

void Node::check_invariants() const {
    const Impl& s = *impl_;
    std::map<SlotId, std::uint32_t> pins;
    std::uint64_t all_pins = 0;
    for (const auto& [id, lease] : s.leases) {
        CHECK(s.clients.at(lease.client).leases.contains(id));
        for (const SlotId slot : lease.slots) ++pins[slot], ++all_pins;
    }
    for (const auto& [id, g] : s.gets) {
        CHECK(s.clients.at(g.client).gets.contains(id));
        std::uint32_t pending = 0;
        for (const auto& item : g.items) {
            pending += item.pending ? 1 : 0;
            if (!item.pending && item.status == ObjectStatus::kOk) ++pins[item.slot], ++all_pins;
            CHECK(!item.pending || s.flights.contains(item.key));
        }
        CHECK(pending == g.pending && pending > 0);
    }
    CHECK(all_pins == s.pinned);
    std::uint32_t used = 0;
    std::uint64_t readable = 0;
    std::uint64_t appends = 0;
    std::uint32_t queued = 0;
    std::map<std::uint64_t, ByteCount> bytes;
    for (SlotId slot = 0; slot < s.blocks.size(); ++slot) {
        const auto& b = s.blocks[slot];
        CHECK(s.arena.in_use(slot) == (b.status != Impl::Status::kEmpty));
        if (b.status == Impl::Status::kEmpty) continue;
        ++used;
        queued += b.queued ? 1 : 0;
        appends += b.appending ? 1 : 0;
        bytes[s.domains[b.domain].tenant] += s.domains[b.domain].slot_bytes;
        const auto held = pins.find(slot);
        CHECK(b.pins == (held == pins.end() ? 0 : held->second));
        if (b.status != Impl::Status::kReady) {
            CHECK(s.flights.at(b.key).slot == slot && b.pins == 0 && !b.appending);
            continue;
        }
        ++readable;
        CHECK(b.doomed ? (b.pins > 0 || b.appending) && !b.queued : b.queued);
        CHECK(b.doomed || s.resident(b.key) == slot);
    }
    CHECK(used == s.arena.slots_used() && readable == s.readable && appends == s.appends);
    std::uint32_t in_policies = 0;
    for (const auto& d : s.domains) in_policies += d.policy.size();
    CHECK(in_policies == queued);
    for (const auto& [tenant, n] : s.tenant_bytes) CHECK(bytes[tenant] == n);
    for (const auto& [id, res] : s.reservations) {
        CHECK(s.flights.at(res.key).reservation == id && s.flights.at(res.key).slot == res.slot);
        CHECK(res.copying || s.clients.at(res.client).reservations.contains(id));
    }
    for (const auto& [id, client] : s.clients) {
        for (const auto& f : client.followers) CHECK(s.followers.contains(f));
        for (const auto& f : client.reservations) CHECK(s.reservations.contains(f));
    }
}

}  // namespace nereid::kv
