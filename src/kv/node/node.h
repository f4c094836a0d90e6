// Node: all decisions of one cache node, as a machine of events and actions. It holds the index,
// the DRAM tier and who holds what; it reads no clock, waits for nothing and calls no system.
//
//     put:  reserve -> the client fills its own staging region -> commit -> CopyIn -> readable
//     get:  get -> [ReadSsd ->] lease and places in the arena -> the client copies or computes in
//           place, checks the stamp -> release
//
// What holds (each in a *_test.cc beside it, all in node_model_test.cc):
//  - Immutable and idempotent: one object per key; a second put of a key only extends its life; a
//    commit repeated gets the same answer.
//  - Published only when whole: a key becomes visible after its bytes are in the arena and their
//  CRC
//    is the one the client announced (cases K1, K6).
//  - Single flight per key: who reserves or gets what is being written or read attaches to that one
//    flight and never waits behind it in a queue (K38, K39).
//  - Every hold has an owner and a deadline: reservations, leases, waiting gets, followers,
//  pollers.
//    They end by release, deadline or the owner's death, whichever is first (K30, K31).
//  - A slot is never reused while anything may still write it (CopyIn, ReadSsd) or a lease holds
//  it.
//  - A miss is an answer, not an error (K32).
//
// Threads: one. Only `index()` may be read from others (kv/index/index.h). Cost: a lookup of 512
// blocks about 2 us at 100 M entries, other commands about 0.3 us an object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "kv/index/index.h"
#include "kv/namespace.h"
#include "kv/node/counters.h"
#include "kv/node/hit_curve.h"
#include "kv/tier/arena.h"
#include "kv/tier/tier.h"
#include "model/block_key.h"

namespace nereid::kv {

using ClientId = Id<struct KvClientTag>;  // one connection; never reused
using LeaseId = Id<struct KvLeaseTag>;
using ReservationId = Id<struct KvReservationTag>;
using JobId = Id<struct KvJobTag>;  // an effect under way
using NsId = std::uint32_t;         // a namespace as this node numbers it

struct Now {
    TimePoint mono;
    WallTime wall;
};

struct ObjectName {
    model::BlockKey key;
    ObjectKind kind = ObjectKind::kHistory;
    std::uint32_t block = 0;  // index in its prompt
};

// ---------------------------------------------------------------- commands

// Idempotent. kConflict: known with another geometry. kOverloaded: too many namespaces. Who may
// open a namespace is the surface's business (a capability per namespace); the other commands of a
// client are refused (kPermissionDenied) for namespaces it has not opened.
struct OpenNamespace {
    model::Namespace ns;
    Geometry geometry;
    std::uint64_t tenant = 0;  // shares of DRAM are counted by it
    Duration ttl{0};           // of puts that name none; 0 = the node's default
};
// How much of this prompt is there? Answered at once, nothing is held. The answer is an estimate:
// only get is a promise. `keys` are those of blocks first_block, first_block + 1, ...; a client
// with several nodes asks each for its parts.
struct Lookup {
    NsId ns = 0;
    std::uint32_t first_block = 0;
    std::vector<model::BlockKey> keys;
    TokenCount prompt_tokens = 0;  // 0 = unknown: `hit` is not computed
    bool places = false;           // answer `tiers` too: one look per block instead of a few
};
// Brings the objects, in order, into the arena and leases them. The answer holds those before the
// first that is not there. SSD objects are read first; the answer comes when all are resolved or at
// `wait`. With `join_writes` objects that are being written count as coming.
struct Get {
    NsId ns = 0;
    std::vector<ObjectName> objects;
    Duration lease{0};  // capped by the node's maximum
    Duration wait{0};   // for SSD and joined writes; 0 = only what is in DRAM now
    bool join_writes = false;
    bool stop_at_miss = true;  // otherwise every object is answered for itself
};
struct Renew {
    LeaseId lease;
    Duration hold{0};
};
struct Release {
    LeaseId lease;
};
// Room for objects that this client has or is about to have. Answered at once, per object.
struct Reserve {
    NsId ns = 0;
    std::vector<ObjectName> objects;  // of one prefix, head first
    Duration hold{0};
    Duration ttl{0};      // 0 = the namespace's
    bool attach = false;  // objects in another's flight: tell me how it ends (Flight)
};
struct CommitItem {
    ReservationId reservation;
    std::uint32_t region = 0;  // of the client's staging regions, as the surface numbers them
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t crc = 0;  // CRC-32C of these bytes
};
struct Commit {
    std::vector<CommitItem> items;
};
struct Abort {
    std::vector<ReservationId> reservations;
};
// One batch of events from `from` on: at once if there are some, else when there are or at `wait`.
// The client asks again with the batch's end: so a slow one only holds up itself (K25).
struct Subscribe {
    std::uint64_t from = 0;
    std::uint32_t limit = 1024;
    Duration wait{0};
};
// Forgets all objects of the namespace: a new epoch, under which old names are not found (K24),
// also after a restart: the answer comes when that is durable. Their bytes on SSD go when they
// expire.
struct Clear {
    NsId ns = 0;
};

using Command = std::variant<OpenNamespace, Lookup, Get, Renew, Release, Reserve, Commit, Abort,
                             Subscribe, Clear>;

// ---------------------------------------------------------------- answers

struct NamespaceOpened {
    NsId ns = 0;
    std::uint64_t epoch = 0;
};
struct Found {
    std::uint32_t blocks = 0;       // contiguous from first_block
    Hit hit;                        // under the namespace's rules; only for first_block == 0
    std::uint32_t dram_blocks = 0;  // of `blocks`
    std::vector<Tier> tiers;        // where each of `blocks` is
    std::uint64_t epoch = 0;        // of this node: changes when it restarts or clears
};
enum class ObjectStatus : std::uint8_t {
    kOk,
    kMiss,
    kExists,    // reserve: there already
    kInFlight,  // reserve: another is writing or reading it
    kNoSpace,   // no slot could be freed
    kTimedOut,  // get: not there by `wait`
    kCorrupt,   // commit: the bytes have another CRC; get: damaged on SSD (then it is gone)
    kExpired,   // commit: the reservation's time was over
    kForeign,   // commit, abort: another client's
    kUnknown,   // commit, abort: no such reservation (any more)
    kInvalid,   // commit: length or place that cannot be
    kFailed,    // commit: the bytes could not be read from the staging region
};
struct Got {
    LeaseId lease;                     // 0 when nothing is leased
    std::uint32_t contiguous = 0;      // objects before the first that is not kOk
    std::vector<ObjectStatus> status;  // with stop_at_miss: of contiguous + 1 objects at most
    std::vector<SlotRef> places;       // of objects that are kOk, in order, else length 0
};
struct Reserved {
    std::vector<ObjectStatus> status;
    std::vector<ReservationId> ids;  // 0 unless kOk
};
struct Committed {
    std::vector<ObjectStatus> status;
};
struct Done {};
// To a follower: the flight it attached to ended. kOk: the object is there. kMiss: it failed and
// this follower may reserve it now (the first follower gets `reservation` with it).
struct Flight {
    std::uint32_t object = 0;                 // index in the Reserve command
    ObjectStatus status = ObjectStatus::kOk;  // kTimedOut: the follower's own `hold` ran out
    ReservationId reservation;
};
enum class KvEventType : std::uint8_t { kStored, kRemoved, kCleared };
inline constexpr NsId kAnyNs = 0xffffffff;
struct KvEvent {
    KvEventType type = KvEventType::kStored;
    Tier tier = Tier::kDram;  // that gained or lost it
    NsId ns = kAnyNs;         // kAnyNs: not known (a record that the SSD tier dropped)
    std::uint32_t block = 0;
    ObjectKey key;  // of object_key(namespace, block key, kind)
};
struct Events {
    std::uint64_t first = 0;  // number of events[0]
    std::uint64_t next = 0;   // ask from here
    bool gap = false;         // events before `first` that were asked for are forgotten: resync
    std::uint64_t epoch = 0;
    std::vector<KvEvent> events;
};

using Answer =
    std::variant<NamespaceOpened, Found, Got, Reserved, Committed, Done, Flight, Events, Error>;

// ---------------------------------------------------------------- events in, actions out

struct Request {
    ClientId client;
    std::uint64_t tag = 0;  // the client's; comes back with each answer
    Command command;
};
struct ClientGone {
    ClientId client;
};
struct CopyDone {  // of CopyIn; the CRC of what was copied, or why it was not
    JobId job;
    Result<std::uint32_t> crc;
};
struct AppendDone {
    JobId job;
    Result<Location> location;
};
struct ReadDone {
    JobId job;
    Result<RecordInfo> record;
};
struct SsdGone {
    std::vector<ScanEntry> entries;
    GoneCause cause = GoneCause::kExpired;
};
struct SsdMoved {
    ObjectKey key;
    Location from;
    Location to;
    ExpiryHour expiry = 0;
};
struct SsdWritable {
    bool writable = true;
};
struct Scanned {  // at a restart
    std::vector<ScanEntry> entries;
};
struct Tick {};  // deadlines, sweeping; at next_deadline() and at least every second

using Event = std::variant<Request, ClientGone, CopyDone, AppendDone, ReadDone, SsdGone, SsdMoved,
                           SsdWritable, Scanned, Tick>;

struct Reply {
    ClientId client;
    std::uint64_t tag = 0;
    Answer answer;
};
// Copy `into.size()` bytes from the client's region with the CRC (kv/tier/copy_crc.h), then
// CopyDone. Regions are bounds-checked by who executes it: a range outside is kInvalidArgument.
struct CopyIn {
    JobId job;
    ClientId client;
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
    std::span<std::uint8_t> into;
};
struct AppendSsd {
    JobId job;
    RecordInfo info;
    std::span<const std::uint8_t> payload;
};
struct ReadSsd {
    JobId job;
    Location location;
    ObjectKey key;
    std::span<std::uint8_t> into;
};
struct TouchSsd {
    Location location;
};

// Makes a clear durable; then `reply` goes out, or an Error in its place.
struct RememberClear {
    model::Namespace ns;
    std::uint64_t clears = 0;
    Reply reply;
};

using Action = std::variant<Reply, CopyIn, AppendSsd, ReadSsd, TouchSsd, RememberClear>;

struct NodeOptions {
    Duration max_lease = std::chrono::seconds(60);
    Duration max_hold = std::chrono::seconds(120);  // of a reservation
    Duration max_wait = std::chrono::seconds(30);
    Duration default_ttl = std::chrono::hours(7 * 24);
    std::uint32_t max_objects = 8192;  // in one command: kTooLarge beyond
    std::uint32_t max_namespaces = 4096;
    std::uint32_t max_client_leases = 65536;
    std::uint32_t max_client_reservations = 65536;
    ByteCount tenant_quota_bytes = 0;                // of DRAM, per tenant; 0 = all of it
    ByteCount append_queue_bytes = 64 << 20;         // in flight towards SSD
    bool ssd = true;                                 // there is a tier below
    std::map<Digest256, std::uint64_t> clears = {};  // of earlier runs: namespace -> how often
    std::uint32_t event_ring = 65536;
    std::uint64_t sweep_buckets = 65536;  // of the index, per tick
    std::uint64_t epoch = 1;              // of this run; differs from earlier runs'
};

class Node {
  public:
    // The arena and the index outlive the node.
    Node(const NodeOptions& options, Arena& arena, Index& index);
    ~Node();
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    // Appends to `actions`. `now` never goes back.
    void step(Event event, Now now, std::vector<Action>& actions);
    // When a Tick has something to do; never() if nothing is pending.
    TimePoint next_deadline() const;

    const Index& index() const;
    const NodeCounters& counters() const;
    NodeHeld held() const;
    ByteCount tenant_bytes(std::uint64_t tenant) const;

    // Hit ratio of block references, had DRAM held so many blocks (kv/node/hit_curve.h): from an
    // eighth to eight times of what it holds. Empty before the first namespace is opened.
    std::vector<HitCurve::Point> hit_curve() const;

    // Every readable object in DRAM, in order of slots (nereid cache ls).
    struct Listed {
        NsId ns = 0;
        model::BlockKey key;
        ObjectKind kind = ObjectKind::kHistory;
        std::uint32_t block = 0;
        SlotRef place;
        std::uint32_t pins = 0;
        Location ssd;  // tier kNowhere: not on SSD (yet)
        ExpiryHour expiry = 0;
    };
    void list(const std::function<void(const Listed&)>& each) const;
    // Asserts the invariants above on the whole state (tests). O(everything).
    void check_invariants() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace nereid::kv
