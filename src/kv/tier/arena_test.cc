#include "kv/tier/arena.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"
#include "io/memory_region.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv {
namespace {

struct World {
    io::MemoryRegion memory;
    std::unique_ptr<Arena> arena;
    explicit World(ByteCount bytes,
                   Arena::Options options = {.page_bytes = 64 << 10, .min_slot_bytes = 4096}) {
        auto region = io::MemoryRegion::anonymous(bytes, false);
        memory = std::move(*region);
        auto made = Arena::create(memory.bytes(), options);
        EXPECT_TRUE(made.ok()) << made.error().message;
        arena = std::move(*made);
    }
    SlotId put(std::uint32_t length, std::uint8_t fill, ObjectKey key) {
        const auto slot = arena->allocate(length);
        EXPECT_TRUE(slot.has_value());
        std::fill(arena->bytes(*slot).begin(), arena->bytes(*slot).end(), fill);
        arena->publish(*slot, key, crc32c(arena->bytes(*slot)));
        return *slot;
    }
};

TEST(Arena, SmallObjectsArePackedAndLargeOnesWasteLittle) {
    // The three sizes that matter (DeepInfer, V4-Flash, SmolLM2), in 2 MiB pages.
    for (const std::uint32_t length : {114'048U, 985'664U, 1'474'624U, 3'128'928U}) {
        World w(512ULL << 20, {.page_bytes = 2 << 20, .min_slot_bytes = 16 << 10});
        ByteCount payload = 0;
        while (const auto slot = w.arena->allocate(length)) {
            EXPECT_EQ(w.arena->ref(*slot).offset % kArenaGrain, 0U);
            payload += length;
        }
        EXPECT_GT(static_cast<double>(payload) / (512.0 * (1 << 20)), 0.90) << length;
        EXPECT_GE(w.arena->used_bytes(), payload);
    }
}

TEST(Arena, RefusesImpossibleSizes) {
    auto region = io::MemoryRegion::anonymous(1 << 20, false);
    EXPECT_EQ(Arena::create(region->bytes().first(4096), {}).code(), Code::kInvalidArgument);
    EXPECT_EQ(
        Arena::create(region->bytes(), {.page_bytes = 64 << 10, .min_slot_bytes = 1000}).code(),
        Code::kInvalidArgument);
    EXPECT_EQ(Arena::create(region->bytes(), {.page_bytes = 10'000, .min_slot_bytes = 4096}).code(),
              Code::kInvalidArgument);
    World w(1 << 20);
    EXPECT_FALSE(w.arena->allocate(0).has_value());
    EXPECT_FALSE(w.arena->allocate(2 << 20).has_value());
    EXPECT_FALSE(w.arena->allocate(0xffffffff).has_value());
}

// Against a naive model: no two objects overlap, contents stay, freed runs serve other sizes.
TEST(Arena, NoOverlapUnderRandomAllocation) {
    World w(4 << 20);
    const auto reader = ArenaReader::open(w.memory.bytes());
    ASSERT_TRUE(reader.ok());
    Prng rng(2);
    struct Live {
        SlotRef ref;
        std::uint8_t fill;
    };
    std::map<SlotId, Live> live;
    const std::array<std::uint32_t, 5> sizes{100, 4096, 5000, 40'000, 150'000};
    std::uint64_t next = 1;
    for (int step = 0; step < 6000; ++step) {
        // Phases of growth and of shrinking, so that whole runs come free.
        if (rng.below(10) < (step / 500 % 2 == 0 ? 7U : 2U)) {
            const std::uint32_t length = sizes[rng.below(sizes.size())];
            const auto slot = w.arena->allocate(length);
            if (!slot) continue;
            ASSERT_FALSE(live.contains(*slot));
            const auto bytes = w.arena->bytes(*slot);
            ASSERT_EQ(bytes.size(), length);
            const auto fill = static_cast<std::uint8_t>(rng.next());
            std::fill(bytes.begin(), bytes.end(), fill);
            w.arena->publish(*slot, {next, next}, crc32c(bytes));
            ++next;
            live[*slot] = {w.arena->ref(*slot), fill};
            ASSERT_EQ(w.arena->slot_at(w.arena->location(*slot)), *slot);
        } else if (!live.empty()) {
            auto it = live.begin();
            std::advance(it, static_cast<long>(rng.below(live.size())));
            std::vector<std::uint8_t> out(it->second.ref.length);
            ASSERT_TRUE(reader->copy(it->second.ref, out).ok());
            ASSERT_EQ(std::count(out.begin(), out.end(), it->second.fill),
                      static_cast<long>(out.size()));
            w.arena->free(it->first);
            ASSERT_EQ(reader->copy(it->second.ref, out).code(), Code::kNotFound);
            live.erase(it);
        }
        ASSERT_EQ(w.arena->slots_used(), live.size());
    }
    for (const auto& [slot, l] : live) w.arena->free(slot);
    EXPECT_EQ(w.arena->used_bytes(), 0U);
    EXPECT_EQ(w.arena->page_bytes_free(), w.arena->payload_capacity());
}

TEST(Arena, RunOfListsWhoSharesPages) {
    World w(1 << 20);
    std::set<SlotId> slots;
    for (int i = 0; i < 16; ++i) slots.insert(w.put(4096, 1, {1, static_cast<std::uint64_t>(i)}));
    const auto run = w.arena->run_of(*slots.begin());
    EXPECT_EQ(run.size(), 16U);
    for (const SlotId s : run) w.arena->free(s);
    EXPECT_EQ(w.arena->page_bytes_free(), w.arena->payload_capacity());
}

// K9, K15: a reader whose slot was reused between its two looks does not take the bytes.
TEST(ArenaReader, AReusedSlotIsFoundOut_K9_K15) {
    World w(1 << 20);
    const auto reader = ArenaReader::open(w.memory.bytes());
    ASSERT_TRUE(reader.ok());
    w.put(5000, 7, {3, 4});  // keeps the run's pages
    const SlotId slot = w.put(5000, 7, {1, 2});
    const SlotRef ref = w.arena->ref(slot);
    ASSERT_TRUE(reader->view(ref).ok());
    EXPECT_TRUE(reader->still_valid(ref));
    w.arena->free(slot);
    EXPECT_FALSE(reader->still_valid(ref));
    const SlotId again = w.put(5000, 7, {1, 2});  // even the same object in the same place
    ASSERT_EQ(again, slot);
    EXPECT_FALSE(reader->still_valid(ref));
    EXPECT_EQ(reader->view(ref).code(), Code::kNotFound);
    EXPECT_TRUE(reader->still_valid(w.arena->ref(again)));
}

TEST(ArenaReader, NeverReadsWhatIsBeingWritten_K6) {
    World w(1 << 20);
    const auto reader = ArenaReader::open(w.memory.bytes());
    const auto slot = w.arena->allocate(100);
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(reader->view(w.arena->ref(*slot)).code(), Code::kNotFound);
}

// K11, K12, K16: the checksum is of the bytes that arrived, and zero is a checksum like any other.
TEST(ArenaReader, EveryFlippedBitIsFound_K11_K12_K16) {
    World w(1 << 20);
    const auto reader = ArenaReader::open(w.memory.bytes());
    const SlotId slot = w.put(300, 0, {1, 2});
    SlotRef ref = w.arena->ref(slot);
    std::vector<std::uint8_t> out(300);
    ASSERT_TRUE(reader->copy(ref, out).ok());
    for (std::size_t bit = 0; bit < 300 * 8; ++bit) {
        w.arena->bytes(slot)[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        ASSERT_EQ(reader->copy(ref, out).code(), Code::kCorrupt);
        w.arena->bytes(slot)[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    }
    ref.crc = 0;
    EXPECT_EQ(reader->copy(ref, out).code(), Code::kCorrupt);
    // A part of an object is copied without that check.
    std::vector<std::uint8_t> part(100);
    EXPECT_TRUE(reader->copy(ref, part, 200).ok());
    EXPECT_EQ(reader->copy(ref, part, 201).code(), Code::kInvalidArgument);
}

TEST(ArenaReader, PlacesOutsideAreRefused) {
    World w(1 << 20);
    const auto reader = ArenaReader::open(w.memory.bytes());
    const SlotRef good = w.arena->ref(w.put(300, 0, {1, 2}));
    std::vector<std::uint8_t> out(16);
    for (const auto& [offset, length] :
         std::vector<std::pair<std::uint64_t, std::uint32_t>>{{0, 300},
                                                              {1 << 20, 1},
                                                              {~0ULL, 300},
                                                              {(1 << 20) - 1, 300},
                                                              {~0ULL - 100, 0xffffffff}}) {
        SlotRef ref = good;
        ref.offset = offset;
        ref.length = length;
        EXPECT_EQ(reader->copy(ref, out).code(), Code::kInvalidArgument) << offset;
        EXPECT_FALSE(reader->still_valid(ref));
    }
    EXPECT_EQ(w.arena->slot_at(0), kNoSlot);
    EXPECT_EQ(w.arena->slot_at((1ULL << 40) - 1), kNoSlot);
    EXPECT_EQ(w.arena->slot_at(~0ULL), kNoSlot);
}

TEST(ArenaReader, ADamagedSuperblockIsRefused) {
    World w(1 << 20);
    EXPECT_EQ(ArenaReader::open(w.memory.bytes().first(20)).code(), Code::kCorrupt);
    EXPECT_EQ(ArenaReader::open(w.memory.bytes().first(1 << 19)).code(), Code::kCorrupt);
    Prng rng(4);
    for (std::size_t byte = 0; byte < 56; ++byte) {
        const std::uint8_t old = w.memory.bytes()[byte];
        for (int i = 0; i < 8; ++i) {
            w.memory.bytes()[byte] = static_cast<std::uint8_t>(rng.next());
            const auto r = ArenaReader::open(w.memory.bytes());
            if (!r.ok()) {
                EXPECT_EQ(r.code(), Code::kCorrupt);
                continue;
            }
            // What passes must still not lead outside.
            std::vector<std::uint8_t> out(64);
            for (const std::uint64_t offset : {0ULL, 4096ULL, 600'000ULL, (1ULL << 20) - 64}) {
                (void)r->copy({offset, 64, 0, 2, {}}, out);
            }
        }
        w.memory.bytes()[byte] = old;
    }
}

}  // namespace
}  // namespace nereid::kv
