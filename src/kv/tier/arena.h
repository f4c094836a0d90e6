// Arena: the DRAM tier's memory. Slots for objects of equal size, packed in runs of 2 MiB pages, in
// one shared region that engines map read-only; and the reader's side of it.
//
// Layout (docs/formats/kv-arena.md): superblock, a table of 64-byte slot headers, pages. A slot
// begins at a multiple of 4 KiB. Its header holds a stamp (generation and state), the object's key,
// length and CRC-32C: who copies bytes out without asking reads the stamp before and after and
// takes the copy only if both are equal, the slot was ready, and its lease has not run out. The
// node is the only writer; the region is sealed (F_SEAL_FUTURE_WRITE) before its descriptor is
// given away.
//
// Threads: Arena on the node's loop alone. ArenaReader: any thread or process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "kv/namespace.h"

namespace nereid::kv {

inline constexpr ByteCount kArenaGrain = 4096;

// Where an object lies: all that a reader needs. 40 bytes on the wire.
struct SlotRef {
    std::uint64_t offset = 0;  // of the payload in the region
    std::uint32_t length = 0;
    std::uint32_t crc = 0;    // CRC-32C of the payload
    std::uint64_t stamp = 0;  // expected in the header while the copy runs
    ObjectKey key;
    bool operator==(const SlotRef&) const = default;
};

using SlotId = std::uint32_t;  // index of the slot's header
inline constexpr SlotId kNoSlot = 0xffffffff;

class Arena {
  public:
    struct Options {
        ByteCount page_bytes = 2 << 20;  // allocation unit of runs; a multiple of min_slot_bytes
        ByteCount min_slot_bytes = 16 << 10;  // a multiple of 4 KiB; one header per so many bytes
    };
    // `memory` begins at a multiple of 4 KiB, is zero, writable, and outlives the arena.
    // kInvalidArgument: too small for one page.
    static Result<std::unique_ptr<Arena>> create(std::span<std::uint8_t> memory,
                                                 const Options& options);

    // A slot for `length` bytes, in state writing. nullopt: no free slot of that size and no free
    // run of pages. Cost: O(1), a new run O(pages).
    std::optional<SlotId> allocate(std::uint32_t length);
    // Makes the object readable. `crc` is that of the slot's `length` bytes.
    void publish(SlotId slot, ObjectKey key, std::uint32_t crc);
    // The bytes are another's from here on: the generation rises first.
    void free(SlotId slot);

    std::span<std::uint8_t> bytes(SlotId slot);  // `length` long
    SlotRef ref(SlotId slot) const;
    std::uint64_t location(SlotId slot) const;     // Location::value of tier kDram
    SlotId slot_at(std::uint64_t location) const;  // kNoSlot when no live slot begins there
    // Slots of the same size class share runs; freeing all slots of a run frees its pages.
    ByteCount slot_bytes(std::uint32_t length) const;
    // The slots in use of the run that holds `slot`: what must go for its pages to become free.
    std::vector<SlotId> run_of(SlotId slot) const;
    // The same by number, below run_count(); empty for one that is not used.
    std::vector<SlotId> slots_of(std::uint32_t run) const;
    std::uint32_t run_count() const { return static_cast<std::uint32_t>(runs_.size()); }
    bool in_use(SlotId slot) const;

    SlotId slot_count() const;  // ids are below it
    ByteCount page_bytes_free() const;
    ByteCount payload_capacity() const;
    ByteCount used_bytes() const { return used_bytes_; }  // whole slots
    std::uint32_t slots_used() const { return slots_used_; }

  private:
    struct Run {
        std::uint32_t first_page = 0;
        std::uint32_t pages = 0;  // 0: this entry is free
        std::uint32_t slots = 0;
        std::uint32_t used = 0;
        ByteCount slot_bytes = 0;
        std::vector<std::uint32_t> free;  // indices of free slots, the lowest last
        std::uint32_t place = 0;          // in its class's list of runs with free slots
    };
    struct SizeClass {
        std::uint32_t run_pages = 0;
        std::uint32_t run_slots = 0;
        std::vector<std::uint32_t> open;  // runs with free slots
    };
    Arena() = default;
    std::uint64_t* header(SlotId slot);
    const std::uint64_t* header(SlotId slot) const;
    SizeClass& size_class(ByteCount slot_bytes);
    bool add_run(SizeClass& c, ByteCount slot_bytes);
    std::uint64_t slot_begin(SlotId slot) const;

    std::span<std::uint8_t> memory_;
    Options options_;
    ByteCount data_begin_ = 0;
    std::uint32_t pages_ = 0;
    std::vector<std::int32_t> page_run_;  // run of each page, -1 = free
    std::vector<Run> runs_;
    std::vector<std::uint32_t> free_runs_;
    std::map<ByteCount, SizeClass> classes_;  // by slot bytes
    std::uint32_t pages_free_ = 0;
    std::uint32_t page_cursor_ = 0;
    ByteCount used_bytes_ = 0;
    std::uint32_t slots_used_ = 0;
};

// The reader's side, over a read-only mapping of the same region.
class ArenaReader {
  public:
    // kCorrupt: not an arena, another version, sizes that do not fit the mapping.
    static Result<ArenaReader> open(std::span<const std::uint8_t> mapping);
    // Copies [at, at + into.size()) of the object, checking the stamp before and after. The CRC is
    // computed in the same pass and compared when the whole object is copied. kNotFound: the slot
    // was reused or its lease ended; kCorrupt: CRC; kInvalidArgument: the ref lies outside the
    // mapping. After a failure the content of `into` is undefined.
    Result<void> copy(const SlotRef& ref, std::span<std::uint8_t> into, ByteCount at = 0) const;
    // Zero-copy: the bytes themselves, good while the lease holds. Call still_valid after the last
    // use. kNotFound, kInvalidArgument as above.
    Result<std::span<const std::uint8_t>> view(const SlotRef& ref) const;
    bool still_valid(const SlotRef& ref) const;

  private:
    bool inside(const SlotRef& ref) const;

    std::span<const std::uint8_t> mapping_;
    ByteCount data_begin_ = 0;
    ByteCount min_slot_bytes_ = 0;
    std::uint64_t slots_ = 0;
};

}  // namespace nereid::kv
