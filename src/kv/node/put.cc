// Reserve, commit, abort, and those who wait for another's write.
#include <algorithm>

#include <fmt/format.h>

#include "kv/node/node_state.h"

namespace nereid::kv {
namespace {

constexpr std::size_t kRemembered = 65536;  // ended reservations whose outcome can be asked again

}  // namespace

void Node::Impl::command(const Request& r, const Reserve& c) {
    NamespaceState* ns = opened(r, c.ns);
    if (ns == nullptr) return;
    if (c.objects.size() > options.max_objects) {
        return refuse(r, Code::kTooLarge,
                      fmt::format("{} objects in one command, at most {}", c.objects.size(),
                                  options.max_objects));
    }
    const Client& client = clients.at(r.client);
    if (client.reservations.size() + client.followers.size() + c.objects.size() >
        options.max_client_reservations) {
        return refuse(r, Code::kRateLimited, "too many open reservations of this client");
    }
    Reserved answer;
    std::vector<SlotId> taken;
    bool full = false;
    for (std::uint32_t i = 0; i < c.objects.size(); ++i) {
        ReservationId id;
        // Once there was no room for one, those behind it in the prefix would be of no use.
        ObjectStatus status = full ? ObjectStatus::kNoSpace : reserve_one(r, c, i, id);
        full = full || status == ObjectStatus::kNoSpace;
        if (status == ObjectStatus::kNoSpace) ++counters.no_space;
        if (id.value != 0) taken.push_back(reservations.at(id).slot);
        answer.status.push_back(status);
        answer.ids.push_back(id);
    }
    for (std::size_t i = taken.size(); i-- > 0;) enqueue(taken[i]);  // the tail goes first
    reply(r.client, r.tag, std::move(answer));
}

ObjectStatus Node::Impl::reserve_one(const Request& r, const Reserve& c, std::uint32_t i,
                                     ReservationId& id) {
    const NamespaceState& ns = namespaces[c.ns];
    const ObjectName& name = c.objects[i];
    const ByteCount length = name.kind == ObjectKind::kHistory ? ns.geometry.history_bytes
                             : name.kind == ObjectKind::kState ? ns.geometry.state_bytes
                                                               : 0;
    if (length == 0) return ObjectStatus::kInvalid;
    const Duration ttl = c.ttl.count() > 0    ? c.ttl
                         : ns.ttl.count() > 0 ? ns.ttl
                                              : options.default_ttl;
    const auto hours =
        std::clamp<std::int64_t>((ttl.count() + 3'599'999'999'999) / 3'600'000'000'000, 1, 32'000);
    const ObjectKey key = key_of(ns, name.key, name.kind);
    const auto entry = index.find(key);
    if (entry && !expired(entry->expiry, hour())) {
        ++counters.exists;
        if (const SlotId slot = resident(key); slot != kNoSlot) {
            extend(slot, static_cast<std::uint16_t>(hours));
            use(slot);
            return ObjectStatus::kExists;
        }
        if (entry->location.tier == Tier::kSsd) {
            index.touch(key, expiry_hour(now.wall, std::chrono::hours(hours)));
            out->push_back(TouchSsd{entry->location});
            return ObjectStatus::kExists;
        }
        // An entry of another key with the same 48 bits: this one takes its place.
    } else if (const SlotId old = resident(key); old != kNoSlot) {
        doom(old, EvictCause::kExpired);
    }
    if (const auto flight = flights.find(key); flight != flights.end()) {
        if (c.attach) {
            const Duration hold = std::clamp(c.hold, Duration(1), options.max_hold);
            const FollowerId follower{next_id++};
            followers[follower] = {r.client, r.tag, i, key, now.mono + hold, hold};
            flight->second.followers.push_back(follower);
            clients.at(r.client).followers.insert(follower);
            schedule(Holder::kFollower, follower.value, now.mono + hold);
            ++counters.attached;
        }
        return ObjectStatus::kInFlight;
    }
    const auto slot = take_slot(c.ns, static_cast<std::uint32_t>(length), Need::kWrite);
    if (!slot) return ObjectStatus::kNoSpace;
    Block& b = blocks[*slot];
    b.key = key;
    b.block = name.block;
    b.kind = name.kind;
    b.ttl_hours = static_cast<std::uint16_t>(hours);
    b.expiry = expiry_hour(now.wall, std::chrono::hours(hours));
    id = open_reservation(r.client, *slot, key, c.hold);
    flights[key] = {*slot, id, {}, {}, {}};
    ++counters.reserved;
    return ObjectStatus::kOk;
}

ReservationId Node::Impl::open_reservation(ClientId client, SlotId slot, ObjectKey key,
                                           Duration hold) {
    const ReservationId id{next_id++};
    Reservation res;
    res.client = client;
    res.slot = slot;
    res.key = key;
    res.due = now.mono + std::clamp(hold, Duration(1), options.max_hold);
    schedule(Holder::kReservation, id.value, res.due);
    reservations[id] = std::move(res);
    clients.at(client).reservations.insert(id);
    blocks[slot].status = Status::kWriting;
    return id;
}

void Node::Impl::command(const Request& r, const Commit& c) {
    if (c.items.size() > options.max_objects) {
        return refuse(r, Code::kTooLarge,
                      fmt::format("{} items in one command, at most {}", c.items.size(),
                                  options.max_objects));
    }
    const CommitId id{next_id++};
    CommitState& state = commits[id];
    state.client = r.client;
    state.tag = r.tag;
    state.pending = static_cast<std::uint32_t>(c.items.size()) + 1;
    state.answer.status.resize(c.items.size());
    for (std::uint32_t i = 0; i < c.items.size(); ++i) commit_one(r, c.items[i], id, i);
    settle_commit(id, kNobody, ObjectStatus::kOk);
}

void Node::Impl::commit_one(const Request& r, const CommitItem& item, CommitId commit,
                            std::uint32_t i) {
    const auto refused = [&](ObjectStatus status) {
        ++counters.commits_refused;
        settle_commit(commit, i, status);
    };
    const auto it = reservations.find(item.reservation);
    if (it == reservations.end()) {
        const auto old = finished.find(item.reservation.value);
        if (old == finished.end()) return refused(ObjectStatus::kUnknown);
        if (old->second.client != r.client) return refused(ObjectStatus::kForeign);
        if (old->second.status != ObjectStatus::kOk) return refused(old->second.status);
        ++counters.commit_repeats;
        return settle_commit(commit, i, ObjectStatus::kOk);
    }
    Reservation& res = it->second;
    if (res.client != r.client) return refused(ObjectStatus::kForeign);
    if (res.copying) {
        ++counters.commit_repeats;
        res.waiting.emplace_back(commit, i);
        return;
    }
    const auto into = arena.bytes(res.slot);
    if (item.length != into.size()) return refused(ObjectStatus::kInvalid);
    // In time: from here on it ends with the copy, not with its deadline.
    unschedule(Holder::kReservation, item.reservation.value, res.due);
    res.copying = true;
    res.announced_crc = item.crc;
    res.waiting.emplace_back(commit, i);
    blocks[res.slot].status = Status::kCopying;
    const JobId job{next_id++};
    jobs[job] = {JobKind::kCopy, res.slot, item.reservation};
    out->push_back(CopyIn{job, r.client, item.region, item.offset, into});
}

void Node::Impl::settle_commit(CommitId id, std::uint32_t index_in_command, ObjectStatus status) {
    CommitState& state = commits.at(id);
    if (index_in_command != kNobody) state.answer.status[index_in_command] = status;
    if (--state.pending > 0) return;
    CommitState done = std::move(state);
    commits.erase(id);
    reply(done.client, done.tag, std::move(done.answer));
}

void Node::Impl::on(CopyDone& e) {
    const auto job = jobs.find(e.job);
    CHECK(job != jobs.end() && job->second.kind == JobKind::kCopy);
    const ReservationId id = job->second.reservation;
    jobs.erase(job);
    const Reservation& res = reservations.at(id);
    const SlotId slot = res.slot;
    ObjectStatus status = ObjectStatus::kOk;
    if (!e.crc.ok() || blocks[slot].doomed) {
        status = ObjectStatus::kFailed;
    } else if (*e.crc != res.announced_crc) {
        status = ObjectStatus::kCorrupt;
        ++counters.put_crc_failures;
    } else if (!make_readable(slot, *e.crc)) {
        blocks[slot].doomed = true;  // no index entry: its followers would find no room either
        status = ObjectStatus::kNoSpace;
    }
    if (status == ObjectStatus::kOk) {
        ++counters.committed;
        counters.dram_bytes_in += arena.ref(slot).length;
        append(slot);
    } else {
        ++counters.commits_refused;
    }
    end_reservation(id, status);
}

void Node::Impl::end_reservation(ReservationId id, ObjectStatus status) {
    const auto node = reservations.extract(id);
    const Reservation& res = node.mapped();
    if (!res.copying) unschedule(Holder::kReservation, id.value, res.due);
    if (const auto client = clients.find(res.client); client != clients.end()) {
        client->second.reservations.erase(id);
    }
    remember(id, res.client, status);
    for (const auto& [commit, i] : res.waiting) settle_commit(commit, i, status);
    end_write(res.key, status == ObjectStatus::kOk);
}

void Node::Impl::end_write(ObjectKey key, bool there) {
    InFlight& flight = flights.at(key);
    const SlotId slot = flight.slot;
    const auto waiting = std::exchange(flight.gets, {});
    if (!there && !blocks[slot].doomed && !flight.followers.empty()) {
        // The slot goes to the first follower, the others attach to its write.
        const FollowerId first = flight.followers.front();
        flight.followers.erase(flight.followers.begin());
        const Follower& f = followers.at(first);
        flight.reservation = open_reservation(f.client, slot, key, f.hold);
        end_follower(first, ObjectStatus::kMiss, flight.reservation);
    } else {
        const auto attached = std::exchange(flight.followers, {});
        flights.erase(key);
        if (!there) drop(slot);
        for (const FollowerId f : attached) {
            end_follower(f, there ? ObjectStatus::kOk : ObjectStatus::kMiss, {});
        }
    }
    for (const auto& [get, item] : waiting) {
        if (there) ++counters.joined_reads;
        resolve(get, item, there ? slot : kNoSlot, there ? ObjectStatus::kOk : ObjectStatus::kMiss);
    }
}

void Node::Impl::end_follower(FollowerId id, ObjectStatus status, ReservationId reservation) {
    const auto node = followers.extract(id);
    const Follower& f = node.mapped();
    unschedule(Holder::kFollower, id.value, f.due);
    if (const auto client = clients.find(f.client); client != clients.end()) {
        client->second.followers.erase(id);
    }
    if (const auto flight = flights.find(f.key); flight != flights.end()) {
        std::erase(flight->second.followers, id);
    }
    reply(f.client, f.tag, Flight{f.object, status, reservation});
}

void Node::Impl::expire_reservation(ReservationId id, ObjectStatus status) {
    CHECK(!reservations.at(id).copying);
    end_reservation(id, status);
}

void Node::Impl::remember(ReservationId id, ClientId client, ObjectStatus status) {
    finished[id.value] = {client, status};
    finished_order.push_back(id);
    if (finished_order.size() > kRemembered) {
        finished.erase(finished_order.front().value);
        finished_order.pop_front();
    }
}

void Node::Impl::command(const Request& r, const Abort& c) {
    if (c.reservations.size() > options.max_objects) {
        return refuse(r, Code::kTooLarge, "too many reservations in one command");
    }
    Committed answer;
    for (const ReservationId id : c.reservations) {
        const auto it = reservations.find(id);
        ObjectStatus status = ObjectStatus::kOk;
        if (it == reservations.end()) {
            status = ObjectStatus::kUnknown;
        } else if (it->second.client != r.client) {
            status = ObjectStatus::kForeign;
        } else if (it->second.copying) {
            status = ObjectStatus::kInFlight;  // too late: its commit decides
        } else {
            ++counters.reservations_aborted;
            expire_reservation(id, ObjectStatus::kUnknown);
        }
        answer.status.push_back(status);
    }
    reply(r.client, r.tag, std::move(answer));
}

}  // namespace nereid::kv
