// Index: which objects a node has and where, in a flat table of 16-byte slots.
//
// A bucket is one cache line of four slots. A key has two buckets (its own, and one computed from
// the first and the tag, as in a cuckoo filter: Fan et al. 2014); a slot is
//     word 0: tag:48 generation:16      word 1: location:40 expiry:16 flags:8
// so nothing is allocated per entry and 100 M entries take 2.1 GB. Only 48 bits of the key are
// kept: an answer is an estimate, wrong with probability below 2^-44 per absent key; who reads the
// bytes compares the full key in the record's header.
//
// Threads: one writer (the node's loop). Any number of readers may call the const functions at the
// same time without locks: slots are read with a check of word 0 on both sides of word 1, and a
// miss is repeated if an entry moved meanwhile. A reader may see an update late,
// never a mixture; it may miss an entry whose move or change of generation the writer was
// interrupted in (it does not wait for it). Memory: fixed at creation, committed by the system as
// it is touched (case K26).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/units.h"
#include "io/memory_region.h"
#include "kv/namespace.h"

namespace nereid::kv {

enum class Tier : std::uint8_t { kNowhere = 0, kDram = 1, kSsd = 2, kRemote = 3 };

// 40 bits, meaning by tier: DRAM: offset in the arena / 4 KiB; SSD: segment slot << 16 | offset in
// the segment / 4 KiB; remote: the cluster's business.
struct Location {
    Tier tier = Tier::kNowhere;
    std::uint64_t value = 0;
    bool operator==(const Location&) const = default;
};
inline constexpr std::uint64_t kMaxLocation = (1ULL << 40) - 1;

struct IndexEntry {
    Location location;
    ExpiryHour expiry = 0;
    std::uint16_t generation = 0;  // of the place, as its owner counts it
    bool operator==(const IndexEntry&) const = default;
};

class Index {
  public:
    struct Options {
        std::uint64_t entries = 1 << 20;  // room for so many at a load of 0.75 (21.3 B each)
        std::uint64_t seed = 0;           // keys that collide under one seed do not under another
        bool huge_pages = true;           // asked for, not required
    };
    // kNoSpace when the system gives no memory.
    static Result<std::unique_ptr<Index>> create(const Options& options);

    // ---- the writer's
    enum class Put : std::uint8_t {
        kInserted,
        kUpdated,
        kReplaced,  // no room: took the place of the coldest SSD entry within reach, which is
                    // forgotten (a miss from now on)
        kFull,      // no room and nothing to replace; the table is as before
    };
    // Inserts or replaces. About 90 ns at 100 M entries, unbatched.
    Put put(ObjectKey key, const IndexEntry& entry);
    // Removes the entry if it is still at `location`; false otherwise.
    bool erase(ObjectKey key, Location location);
    // Sets the CLOCK bits of an entry to 3 and extends its expiry to the later of both.
    bool touch(ObjectKey key, ExpiryHour expiry);
    // Brings the lines of these keys near before a series of put/erase/touch.
    void prefetch(std::span<const ObjectKey> keys) const;
    struct Swept {
        std::uint64_t removed = 0;
        bool wrapped = false;  // this call reached the end of the table
    };
    // Removes expired entries but those of tier DRAM (their owner does it) and ages CLOCK bits, in
    // `buckets` buckets from where the last call stopped: a bounded slice of a full scan (K20).
    Swept sweep(std::uint64_t buckets, ExpiryHour now);

    // ---- readers'
    std::optional<IndexEntry> find(ObjectKey key) const;
    // out[i] = keys[i] is there and not expired. At most keys.size() entries of `out` are written;
    // returns how many are there. Batched with prefetching.
    std::uint64_t contains(std::span<const ObjectKey> keys, ExpiryHour now,
                           std::span<bool> out) const;
    // Entries of the keys; tier kNowhere for what is absent or expired. Batched.
    void find_all(std::span<const ObjectKey> keys, ExpiryHour now, std::span<IndexEntry> out) const;
    // Length of the longest prefix of `keys` that is there, by galloping and then searching between
    // the last hit and the first miss, several probes at a time. Since eviction takes the tail of a
    // prefix first, presence is monotone but for accidents: an estimate, that `get` corrects.
    std::uint32_t longest_prefix(std::span<const ObjectKey> keys, ExpiryHour now) const;

    struct Stats {
        std::uint64_t entries = 0;
        std::uint64_t capacity = 0;  // slots
        ByteCount bytes = 0;
        std::uint64_t displaced = 0;
        std::uint64_t refused = 0;   // puts that found no room
        std::uint64_t replaced = 0;  // entries forgotten for want of room
    };
    Stats stats() const;

    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

  private:
    struct Bucket;
    struct Probe {
        std::uint64_t own;  // bucket
        std::uint64_t tag;  // 48 bits, not 0
    };
    struct Place {
        std::uint64_t bucket;
        std::uint32_t slot;
    };
    Index(io::MemoryRegion memory, std::uint64_t buckets, std::uint64_t seed);
    Probe probe(ObjectKey key) const;
    std::uint64_t other_bucket(std::uint64_t bucket, std::uint64_t tag) const;
    bool look(const Probe& probe, IndexEntry& out) const;  // one try
    bool read(const Probe& probe, IndexEntry& out) const;  // until it is no accident of a change
    bool there(const Probe& probe, ExpiryHour now) const;
    std::uint32_t run_of_hits(std::span<const ObjectKey> keys, std::span<const std::uint32_t> at,
                              ExpiryHour now) const;
    std::optional<Place> place_of(const Probe& probe) const;
    std::optional<std::uint32_t> free_slot(std::uint64_t bucket) const;
    std::optional<Place> make_room(std::uint64_t own, std::uint64_t other);
    std::optional<Place> coldest(std::uint64_t own, std::uint64_t other) const;
    void write(Place at, std::uint64_t word0, std::uint64_t word1);
    void move(Place from, Place to);
    void count_away(std::uint64_t bucket, int change);
    void remove(Place at);

    io::MemoryRegion memory_;
    Bucket* buckets_ = nullptr;
    std::uint64_t bucket_count_ = 0;
    std::uint64_t seed_ = 0;
    std::uint64_t entries_ = 0;
    std::uint64_t displaced_ = 0;
    std::uint64_t refused_ = 0;
    std::uint64_t replaced_ = 0;
    std::uint64_t sweep_at_ = 0;
    // Odd while the writer moves or rewrites an entry; a reader's miss during that is repeated.
    std::atomic<std::uint64_t> change_{0};
};

}  // namespace nereid::kv
