// Private: the state of a Node and the parts it is written in.
//   dram.cc: slots, domains, making room, pins.  put.cc: reserve, commit, followers.
//   get.cc: look-ups, gets, reads from SSD, leases.  node.cc: dispatch, clients, deadlines, events.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "kv/node/node.h"
#include "kv/tier/policy.h"

namespace nereid::kv {

using GetId = Id<struct KvGetTag>;
using CommitId = Id<struct KvCommitTag>;
using FollowerId = Id<struct KvFollowerTag>;
using PollerId = Id<struct KvPollerTag>;

// Who waits until when. An element of the deadline queue.
enum class Holder : std::uint8_t { kLease, kReservation, kGet, kFollower, kPoller };
struct Due {
    TimePoint at;
    Holder holder;
    std::uint64_t id;
    auto operator<=>(const Due&) const = default;
};

struct Node::Impl {
    enum class Status : std::uint8_t { kEmpty, kWriting, kCopying, kReading, kReady };

    // What the node knows of a slot besides its shared header. Flat, one per possible slot.
    struct Block {
        ObjectKey key;
        std::uint64_t ssd = 0;  // Location::value + 1; 0 = not on SSD
        std::uint32_t ns = 0;
        std::uint32_t block = 0;
        std::uint32_t pins = 0;
        std::uint32_t domain = 0;
        std::uint32_t used_at = 0;  // order of last uses, for choosing between domains
        ExpiryHour expiry = 0;
        std::uint16_t ttl_hours = 0;
        ObjectKind kind = ObjectKind::kHistory;
        Status status = Status::kEmpty;
        bool queued = false;     // in its domain's policy
        bool appending = false;  // the SSD tier reads it
        bool wants_ssd = false;  // in deferred_
        bool doomed = false;     // freed as soon as nothing holds it
        std::uint8_t tries = 0;  // failed appends
    };
    // Blocks of one tenant and one slot size: the unit of eviction order.
    struct Domain {
        std::uint64_t tenant = 0;
        ByteCount slot_bytes = 0;
        S3Fifo policy;
    };
    struct NamespaceState {
        model::Namespace ns;         // as opened
        model::Namespace effective;  // after clears
        Geometry geometry;
        std::uint64_t tenant = 0;
        Duration ttl{0};
        std::uint64_t clears = 0;
    };
    struct Client {
        std::set<NsId> opened;
        std::set<LeaseId> leases;
        std::set<ReservationId> reservations;
        std::set<GetId> gets;
        std::set<FollowerId> followers;
        std::set<PollerId> pollers;
    };
    struct Lease {
        ClientId client;
        TimePoint due;
        std::vector<SlotId> slots;
    };
    struct Reservation {
        ClientId client;
        TimePoint due;
        SlotId slot = kNoSlot;
        ObjectKey key;
        bool copying = false;
        std::uint32_t announced_crc = 0;
        std::vector<std::pair<CommitId, std::uint32_t>> waiting;  // answers to give when copied
    };
    struct Finished {
        ClientId client;
        ObjectStatus status;
    };
    struct CommitState {
        ClientId client;
        std::uint64_t tag = 0;
        std::uint32_t pending = 0;
        Committed answer;
    };
    struct Item {
        ObjectKey key;
        SlotId slot = kNoSlot;  // pinned by the get when kOk
        ObjectStatus status = ObjectStatus::kMiss;
        bool pending = false;
        bool promised = false;  // the index said it was there
    };
    struct GetState {
        ClientId client;
        std::uint64_t tag = 0;
        NsId ns = 0;
        TimePoint due;
        Duration lease{0};
        bool stop_at_miss = true;
        std::uint32_t pending = 0;
        std::vector<Item> items;
    };
    struct Follower {  // of a write, by Reserve with attach
        ClientId client;
        std::uint64_t tag = 0;
        std::uint32_t object = 0;
        ObjectKey key;
        TimePoint due;
        Duration hold{0};
    };
    // An object that is being written or read: one at a time per key.
    struct InFlight {
        SlotId slot = kNoSlot;
        ReservationId reservation;  // 0: a read from SSD
        Location from;
        std::vector<std::pair<GetId, std::uint32_t>> gets;
        std::vector<FollowerId> followers;
    };
    // For whom a slot is taken. A put is told that there is no room before it costs a block that
    // waits for the SSD: its engine skips it and counts it. A get has a request waiting, and what
    // it reads is on SSD already: it may cost one.
    enum class Need : std::uint8_t { kWrite, kRead };
    enum class Spare : std::uint8_t { kNothing, kWaiting };
    enum class JobKind : std::uint8_t { kCopy, kRead, kAppend };
    struct Job {
        JobKind kind = JobKind::kCopy;
        SlotId slot = kNoSlot;
        ReservationId reservation;
    };
    struct Poller {
        ClientId client;
        std::uint64_t tag = 0;
        std::uint64_t from = 0;
        std::uint32_t limit = 0;
        TimePoint due;
    };

    Impl(const NodeOptions& node_options, Arena& node_arena, Index& node_index);

    // node.cc
    void on(Request& r);
    void on(const ClientGone& e);
    void on(const SsdGone& e);
    void on(const SsdMoved& e);
    void on(const SsdWritable& e);
    void on(const Scanned& e);
    void on(const Tick&);
    void command(const Request& r, const OpenNamespace& c);
    void command(const Request& r, const Subscribe& c);
    void command(const Request& r, const Clear& c);
    void end_due();
    void reply(ClientId client, std::uint64_t tag, Answer answer);
    void refuse(const Request& r, Code code, std::string message);
    // The namespace if this client opened it; otherwise answers and gives null.
    NamespaceState* opened(const Request& r, NsId ns);
    ObjectKey key_of(const NamespaceState& ns, const model::BlockKey& key, ObjectKind kind) const {
        return object_key(ns.effective, key, kind);
    }
    ExpiryHour hour() const { return expiry_hour(now.wall, Duration{0}) - 1; }
    void schedule(Holder holder, std::uint64_t id, TimePoint at) { due.insert({at, holder, id}); }
    void unschedule(Holder holder, std::uint64_t id, TimePoint at) { due.erase({at, holder, id}); }
    void publish(KvEvent event);
    void answer_pollers();
    void answer_poller(PollerId id, Poller poller);
    std::uint64_t oldest_event() const { return next_event - ring.size(); }

    // dram.cc
    std::optional<SlotId> take_slot(NsId ns, std::uint32_t length, Need need);
    bool make_tenant_room(std::uint64_t tenant, ByteCount bytes, Spare spare);
    bool make_room(std::uint64_t tenant, ByteCount slot_bytes, Spare spare);
    std::optional<SlotId> victim_of(Domain& d, Spare spare);
    bool may_go(SlotId slot, Spare spare) const;
    bool steal(const std::vector<SlotId>& run, Spare spare);  // all of it, or nothing
    bool steal_any_run(Spare spare);
    std::uint32_t domain_of(std::uint64_t tenant, ByteCount slot_bytes);
    void enqueue(SlotId slot);
    void evict(SlotId slot, EvictCause cause);
    void drop(SlotId slot);           // frees the slot of something that never became readable
    void settle_doomed(SlotId slot);  // frees it if it is doomed and nothing holds it
    void doom(SlotId slot, EvictCause cause);
    void free_slot(SlotId slot);
    void pin(SlotId slot);
    void unpin(SlotId slot);
    void use(SlotId slot);
    void extend(SlotId slot, std::uint16_t ttl_hours);
    bool make_readable(SlotId slot, std::uint32_t crc);
    SlotId resident(ObjectKey key) const;  // the readable block of this key, or kNoSlot
    void append(SlotId slot);
    void defer(SlotId slot);
    bool is_stale(const std::pair<SlotId, ObjectKey>& d) const;  // of `deferred`
    void start_append(SlotId slot);
    void drain_appends();
    void on(AppendDone& e);
    void sweep_expired();
    RecordInfo record_of(const Block& b, SlotId slot) const;
    std::uint64_t tenant_of(const Block& b) const { return domains[b.domain].tenant; }

    // put.cc
    void command(const Request& r, const Reserve& c);
    void command(const Request& r, const Commit& c);
    void command(const Request& r, const Abort& c);
    void on(CopyDone& e);
    ObjectStatus reserve_one(const Request& r, const Reserve& c, std::uint32_t i,
                             ReservationId& id);
    ReservationId open_reservation(ClientId client, SlotId slot, ObjectKey key, Duration hold);
    void commit_one(const Request& r, const CommitItem& item, CommitId commit, std::uint32_t i);
    void end_reservation(ReservationId id, ObjectStatus status);
    void end_write(ObjectKey key, bool there);
    void end_follower(FollowerId id, ObjectStatus status, ReservationId reservation);
    void expire_reservation(ReservationId id, ObjectStatus status);
    void settle_commit(CommitId id, std::uint32_t index, ObjectStatus status);
    void remember(ReservationId id, ClientId client, ObjectStatus status);

    // get.cc
    void command(const Request& r, const Lookup& c);
    void command(const Request& r, const Get& c);
    void command(const Request& r, const Renew& c);
    void command(const Request& r, const Release& c);
    void on(ReadDone& e);
    void resolve(GetId id, std::uint32_t item, SlotId slot, ObjectStatus status);
    void begin_item(GetId id, GetState& g, std::uint32_t i, const Get& c, bool& full);
    bool begin_read(ObjectKey key, NsId ns, const ObjectName& name, Location from);
    void give_up_item(GetId id, GetState& g, std::uint32_t i, ObjectStatus status);
    void cut_behind(GetId id, GetState& g, std::uint32_t first_bad);
    void finish_get(GetId id);
    void end_lease(LeaseId id);
    Hit hit_of(const NamespaceState& ns, const Lookup& c, std::uint32_t contiguous) const;

    NodeOptions options;
    Arena& arena;
    Index& index;
    Now now;
    std::vector<Action>* out = nullptr;
    NodeCounters counters;

    std::vector<Block> blocks;
    PolicyNodes nodes;
    std::vector<Domain> domains;
    std::map<std::pair<std::uint64_t, ByteCount>, std::uint32_t> domain_ids;  // tenant, slot bytes
    std::map<std::uint64_t, ByteCount> tenant_bytes;
    std::uint32_t domain_cursor = 0;
    std::uint32_t run_cursor = 0;
    std::uint32_t use_clock = 0;
    std::uint32_t expiry_cursor = 0;
    TimePoint next_sweep;
    std::uint64_t readable = 0;
    std::uint64_t pinned = 0;

    std::vector<NamespaceState> namespaces;
    std::map<Digest256, NsId> namespace_ids;
    std::map<ClientId, Client> clients;
    std::map<LeaseId, Lease> leases;
    std::map<ReservationId, Reservation> reservations;
    std::unordered_map<std::uint64_t, Finished> finished;  // by reservation id
    std::deque<ReservationId> finished_order;
    std::map<CommitId, CommitState> commits;
    std::map<GetId, GetState> gets;
    std::map<FollowerId, Follower> followers;
    std::map<PollerId, Poller> pollers;
    std::unordered_map<ObjectKey, InFlight> flights;
    std::map<JobId, Job> jobs;
    std::set<Due> due;
    std::uint64_t next_id = 1;

    bool ssd_writable = true;
    ByteCount append_bytes = 0;  // in flight
    std::uint64_t appends = 0;
    std::deque<std::pair<SlotId, ObjectKey>> deferred;  // write-behind that has to wait

    std::deque<KvEvent> ring;
    std::uint64_t next_event = 1;
    std::uint64_t epoch = 1;
    std::optional<HitCurve> curve;
};

}  // namespace nereid::kv
