// SsdTier: what a node asks of the tier below DRAM. Implemented by kv/ssd on segments; the node's
// shell (kv/node/runner.h) turns the node's actions into these calls and their results into events.
//
// Objects are immutable: an append of a key that is there already makes a second record, and the
// index points at the newer one. Self-describing: the record's header holds everything of
// RecordInfo, so that the index can be rebuilt and a read can be checked (cases K2, K16, K17).
//
// Threads: one loop; completions on it. Suspended operations may be destroyed; then the buffer must
// stay valid until the tier says so (`quiesce`), because the device may still write into it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/task.h"
#include "kv/index/index.h"
#include "kv/namespace.h"
#include "model/block_key.h"

namespace nereid::kv {

// Buffers given to append and read begin at a multiple of this, and may be read or written up to
// the next multiple behind their length (direct I/O).
inline constexpr ByteCount kIoAlignment = 4096;

struct RecordInfo {
    model::Namespace ns;
    model::BlockKey key;
    ObjectKind kind = ObjectKind::kHistory;
    std::uint32_t block = 0;        // depth in its prefix: what is copied forward first at expiry
    std::uint32_t length = 0;       // payload bytes
    std::uint32_t payload_crc = 0;  // CRC-32C of the payload, computed when it entered the node
    ExpiryHour expiry = 0;
    Duration ttl{0};  // of its class; what a copy forward adds
    ObjectKey object() const { return object_key(ns, key, kind); }
    bool operator==(const RecordInfo&) const = default;
};

struct ScanEntry {
    ObjectKey key;
    Location location;  // tier kSsd
    ExpiryHour expiry = 0;
    std::uint16_t generation = 0;
};
struct ScanBatch {
    std::vector<ScanEntry> entries;  // of one segment at most; later records of a key come later
    bool done = false;
};

enum class GoneCause : std::uint8_t {
    kExpired,  // its segment's time was over
    kSpace,    // the disk was full: oldest expiry first
    kCorrupt,  // a read or a scrub found it damaged
    kIo,       // the device refuses it
};

// What happens to records without the node's asking. Called on the loop, never inside a call of the
// node's. After `gone` or `moved` returns, the old location may be reused: a read that is given the
// old location finds another record's header there, which is kNotFound.
class SsdListener {
  public:
    virtual ~SsdListener() = default;
    virtual void on_gone(std::span<const ScanEntry> entries, GoneCause cause) = 0;
    virtual void on_moved(ObjectKey key, Location from, Location to, ExpiryHour expiry) = 0;
    // The tier refuses appends (full, failing device) or takes them again.
    virtual void on_writable(bool writable) = 0;
};

struct SsdStats {
    ByteCount capacity_bytes = 0;
    ByteCount used_bytes = 0;     // segments that hold live records, whole
    ByteCount payload_bytes = 0;  // appended for the node
    ByteCount written_bytes = 0;  // to the device, everything: write amplification is the quotient
    ByteCount forwarded_bytes = 0;  // copied forward at expiry
    ByteCount read_bytes = 0;
    std::uint64_t records = 0;
    std::uint64_t corrupt = 0;
    std::uint64_t io_errors = 0;
    std::uint64_t torn = 0;             // records dropped at a restart
    std::uint64_t budget_overruns = 0;  // blocks that the copy-forward budget left behind
};

class SsdTier {
  public:
    virtual ~SsdTier() = default;
    virtual void set_listener(SsdListener* listener) = 0;

    // Completes when the record is on stable storage (or, with group commit, when its group is).
    // `payload` must stay unchanged until then: the caller pins it (case K15). kNoSpace, kIo,
    // kOverloaded (more in flight than the tier takes: try again after a completion).
    virtual io::Task<Result<Location>> append(RecordInfo info,
                                              std::span<const std::uint8_t> payload) = 0;
    // Reads and checks header (key, kind, namespace, generation) and payload CRC. kNotFound:
    // another record is there now; kCorrupt; kIo; kInvalidArgument: into.size() is not the
    // payload's length (nothing was written). After any other failure the content of `into` is
    // undefined.
    virtual io::Task<Result<RecordInfo>> read(Location location, ObjectKey expected,
                                              std::span<std::uint8_t> into) = 0;

    // Records found on the device at start, oldest segment first; partial service meanwhile.
    // Batches come until `done`. Errors: kIo of the folder itself; a damaged segment is skipped and
    // counted.
    virtual io::Task<Result<ScanBatch>> scan_next() = 0;

    // A hit at this time, for the copy-forward decision (blocks hit in the final quarter of their
    // life). Cheap: no I/O; unknown locations are ignored.
    virtual void touch(Location location, WallTime now) = 0;
    // Expires, copies forward, seals: bounded work, to be called every few seconds.
    virtual io::Task<void> tick(WallTime now) = 0;
    // The namespace has been cleared so often: kept beyond a restart, and durable when this ends.
    virtual io::Task<Result<void>> remember_clear(const model::Namespace& ns,
                                                  std::uint64_t clears) = 0;
    // Ends when no operation is in flight any more.
    virtual io::Task<void> quiesce() = 0;
    virtual SsdStats stats() const = 0;
};

}  // namespace nereid::kv
