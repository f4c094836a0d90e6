// What a node counts: plain numbers that the shell exports (kv/node/probe.h) and tests read.
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace nereid::kv {

enum class EvictCause : std::uint8_t { kCapacity, kQuota, kExpired, kCleared, kCorrupt, kSteal };
inline constexpr std::size_t kEvictCauses = 6;

struct NodeCounters {
    // Look-ups: what could be used against what was merely there (case K4's counterpart: a raw hit
    // behind a hole is worth nothing).
    std::uint64_t lookups = 0;
    std::uint64_t lookup_blocks = 0;
    std::uint64_t contiguous_hit_tokens = 0;
    // Of every 16th look-up: all blocks that are there, and those of them that are contiguous.
    std::uint64_t sampled_raw_tokens = 0;
    std::uint64_t sampled_contiguous_tokens = 0;
    std::uint64_t usable_hit_tokens = 0;  // after the namespace's rules (keep, window, state)
    std::uint64_t requested_tokens = 0;
    // Gets
    std::uint64_t gets = 0;
    std::uint64_t dram_hits = 0;            // objects
    std::uint64_t ssd_hits = 0;             // objects, promoted
    std::uint64_t misses = 0;               // objects asked for and not there
    std::uint64_t joined_reads = 0;         // objects that another's read or write brought
    std::uint64_t overpromised_tokens = 0;  // the index said yes, the record said no
    std::uint64_t get_deadlines = 0;
    // Puts
    std::uint64_t reserved = 0;
    std::uint64_t committed = 0;
    std::uint64_t commit_repeats = 0;  // the same commit again: answered, nothing done
    std::uint64_t exists = 0;          // reserve of what is there: only its life is extended
    std::uint64_t attached = 0;        // followers of another's write
    std::uint64_t reservations_expired = 0;
    std::uint64_t reservations_aborted = 0;
    std::uint64_t commits_refused = 0;  // expired, foreign, unknown, wrong length
    std::uint64_t put_crc_failures = 0;
    std::uint64_t no_space = 0;
    // Tiers
    ByteCount dram_bytes_in = 0;
    ByteCount dram_bytes_out = 0;  // handed out by get
    ByteCount ssd_bytes_in = 0;
    ByteCount ssd_bytes_out = 0;
    std::uint64_t append_failures = 0;
    std::uint64_t append_deferred = 0;  // the write-behind queue was full; written later
    std::uint64_t append_lost = 0;      // evicted from DRAM before it was on SSD
    std::uint64_t held_back = 0;        // puts without room while others waited for the SSD
    std::uint64_t crc_failures = 0;     // of reads from SSD
    std::uint64_t read_failures = 0;
    std::array<std::uint64_t, kEvictCauses> evictions{};
    std::uint64_t ssd_gone = 0;  // records the SSD tier dropped
    std::uint64_t index_full = 0;
    // Owners
    std::uint64_t clients_gone = 0;
    std::uint64_t leases_expired = 0;
    std::uint64_t refused = 0;  // requests that were answered with an error
};

// What clients report of themselves (kv-wire, Report).
enum class ClientCount : std::uint8_t {
    kSaved,
    kSaveDropped,    // not offered to the node: queue full, or the node was given up
    kSaveFailed,     // offered, and not taken
    kFetched,        // objects that arrived whole
    kFetchTimeouts,  // computed instead
    kFetchFailed,    // given by the node, and gone or damaged on arrival
    kFetchSkipped,   // not asked: the node was given up
    kTroubles,       // times that it was
};
inline constexpr std::size_t kClientCounts = 8;
using ClientCounts = std::array<std::uint64_t, kClientCounts>;

// What is held now. All but `blocks` and the bytes are zero when no client is left and the queues
// have drained.
struct NodeHeld {
    std::uint64_t blocks = 0;  // readable objects in DRAM
    std::uint64_t leases = 0;
    std::uint64_t pinned_slots = 0;   // by leases
    std::uint64_t reservations = 0;   // neither committed, aborted nor expired
    std::uint64_t writing_slots = 0;  // reserved or being filled
    std::uint64_t reads = 0;          // SSD reads in flight
    std::uint64_t appends = 0;        // SSD appends in flight
    std::uint64_t append_queue = 0;
    std::uint64_t waiting_gets = 0;
    std::uint64_t followers = 0;
    std::uint64_t pollers = 0;
    ByteCount dram_used_bytes = 0;
    ByteCount dram_capacity_bytes = 0;
};

}  // namespace nereid::kv
