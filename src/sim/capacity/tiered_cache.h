// TieredCache: the prefix blocks that one rank holds, in up to three tiers (HBM, DRAM, SSD), each
// least-recently-used: what falls out of a tier goes to the next, out of the last one it is gone. A
// used block moves to the first tier.
//
// Blocks are chain ids (workload/request.h): a hit is a run of resident ids from the chain's start.
// A chain is used from its tail to its head, so a tail is evicted before its head. A tier of 0
// blocks is skipped. Deterministic; costs about 30 ns a block looked up, 60 ns a block used.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nereid::sim {

inline constexpr std::size_t kTiers = 3;

class TieredCache {
  public:
    using Id = std::uint64_t;
    // Tier sizes in blocks.
    explicit TieredCache(std::array<std::uint64_t, kTiers> capacity);

    struct Hit {
        std::uint32_t blocks = 0;
        std::array<std::uint32_t, kTiers> by_tier{};
    };
    // The longest resident prefix of the chain; nothing is touched.
    Hit match(std::span<const Id> chain) const;

    // The whole chain is resident and most recently used from now on. Appends to `stored` the ids
    // that were not here, to `removed` those that fell out (never one of this chain unless the
    // chain alone is larger than the cache).
    void use(std::span<const Id> chain, std::vector<Id>& stored, std::vector<Id>& removed);

    void clear();
    std::uint64_t size() const { return live_; }
    std::uint64_t capacity() const { return capacity_[0] + capacity_[1] + capacity_[2]; }

  private:
    static constexpr std::uint32_t kNone = 0xffff'ffff;
    struct Entry {
        Id id = 0;
        std::uint32_t previous = kNone, next = kNone;  // towards recent, towards old
        std::uint32_t tier = 0;
    };
    struct List {
        std::uint32_t head = kNone, tail = kNone;
        std::uint64_t size = 0;
    };

    std::size_t home(Id id) const;
    std::uint32_t find(Id id) const;
    void index_insert(Id id, std::uint32_t entry);
    void index_erase(Id id);
    void grow();
    void unlink(std::uint32_t e);
    void push_front(std::uint32_t e, std::uint32_t tier);
    void overflow(std::vector<Id>& removed);

    std::array<std::uint64_t, kTiers> capacity_;
    std::uint32_t first_tier_ = 0;
    std::array<List, kTiers> lists_;
    std::vector<Entry> entries_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> table_;  // entry + 1, 0 is empty; linear probing
    std::uint64_t live_ = 0;
};

}  // namespace nereid::sim
