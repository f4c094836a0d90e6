// Which ranks hold which prefix blocks: millions of blocks in a bounded number of bytes.
//
// A table of 8-byte slots, one per distinct block: 40 bits of its hash and the number of a *set of
// ranks*. Sets are interned and reference-counted, because the blocks of a prompt are nearly always
// held by the same ranks: ten million blocks share a few thousand sets. A block lives in one of two
// buckets of 8 slots (one cache line each) in one page, so a lookup touches two lines at most. 256
// shards grow by a quarter at a time: 10 bytes a block with its sets (measured).
//
// It is an estimate, never a promise: two blocks of ten million share 48 bits with probability
// 4e-8, an eviction is heard of late, and match() gallops (a few rounds of 7 to 15 positions each,
// instead of all 512). Whoever acts on it checks at the worker.
//
// Memory is bounded by `max_bytes` for the whole table, not per worker (R16-R18): at the bound an
// insert replaces a block of its bucket and counts it. Removing or clearing a rank costs O(sets):
// its holder number is retired at once, and the blocks that it alone held are swept out by
// maintain(); no other rank's entries change (R23).
//
// Threads: one. Costs (release build, 10 M blocks): see README.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"
#include "router/ids.h"

namespace nereid::router {

// Prefix depths found, deepest first. Valid until the residency changes.
struct PrefixMatch {
    static constexpr std::size_t kMaxLevels = 8;
    struct Level {
        std::uint32_t depth = 0;  // blocks [0, depth) are held ...
        std::uint32_t set = 0;    // ... by the ranks of this set
    };
    std::array<Level, kMaxLevels> levels{};
    std::uint32_t level_count = 0;
    std::uint32_t longest() const { return level_count == 0 ? 0 : levels[0].depth; }
};

struct ResidencyStats {
    std::uint64_t blocks = 0;       // distinct
    std::uint64_t sets = 0;         // with two ranks or more
    std::uint64_t bytes = 0;        // allocated, all of it
    std::uint64_t replaced = 0;     // blocks dropped at the bound
    std::uint64_t refused = 0;      // stores dropped: too many sets
    std::uint64_t speculative = 0;  // waiting for their event now
    std::uint64_t expired = 0;      // speculative ones that never got it
    std::uint64_t orphans = 0;      // stores whose parent is unknown (R22)
};

class Residency {
  public:
    struct Options {
        std::uint64_t max_bytes = 512u << 20u;
        Duration speculative_ttl = 2s;  // vllm-router's; 120 s for engines without events
        std::uint32_t max_speculative = 1u << 20u;
    };
    explicit Residency(const Options& options);
    ~Residency();
    Residency(const Residency&) = delete;
    Residency& operator=(const Residency&) = delete;

    // A rank begins with nothing. Any slot below 2^16 - 2^10.
    void add_rank(RankSlot slot);
    void remove_rank(RankSlot slot);  // idempotent
    void clear_rank(RankSlot slot);   // AllBlocksCleared, or a gap in its events

    // Blocks of a chain, in order, of which the first follows `parent` (0 = the chain begins here).
    // Idempotent. When the rank does not hold the parent, the blocks are dropped and counted as
    // orphans (R22), since whatever follows an unknown block can never be a hit.
    void store(RankSlot slot, BlockHash parent, std::span<const BlockHash> blocks);
    void remove(RankSlot slot, std::span<const BlockHash> blocks);
    // Blocks that a dispatched request will make resident: forgotten after the TTL unless stored.
    void expect(RankSlot slot, std::span<const BlockHash> blocks, TimePoint now);

    // The longest prefix of `chain` that any rank holds, and who holds how much of it. At most
    // kMaxLevels distinct depths, the deepest ones and the shallowest (the shared system prompt).
    PrefixMatch match(std::span<const BlockHash> chain) const;
    // Blocks of the match that this rank holds. O(levels).
    std::uint32_t depth(const PrefixMatch& match, RankSlot slot) const;
    // Up to out.size() ranks with their depths, deepest first; returns how many. Of more holders
    // than fit, `salt` says which.
    struct Holder {
        RankSlot slot;
        std::uint32_t depth;
    };
    std::size_t holders(const PrefixMatch& match, std::span<Holder> out, std::uint64_t salt) const;
    bool holds(RankSlot slot, BlockHash block) const;
    std::uint64_t blocks_of(RankSlot slot) const;

    // Expires speculative entries and sweeps what was retired; bounded work per call
    // (`budget` buckets). Call it about every 10 ms.
    void maintain(TimePoint now, std::uint32_t budget = 4096);
    // Room for so many blocks at once, within the bound: before a snapshot is replayed.
    void reserve(std::uint64_t blocks);
    ResidencyStats stats() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nereid::router
