#include "kv/tier/arena.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv {
namespace {

// docs/formats/kv-arena.md
constexpr std::uint64_t kMagic = 0x314152414b52454eULL;  // "NERKARA1"
constexpr ByteCount kSuperblock = 4096;
constexpr ByteCount kHeaderBytes = 64;
constexpr std::uint32_t kMaxRunPages = 16;

struct Superblock {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t header_bytes;
    std::uint64_t region_bytes;
    std::uint64_t data_begin;
    std::uint64_t page_bytes;
    std::uint64_t min_slot_bytes;
    std::uint64_t slots;
};

// Words of a slot's header.
enum Word : std::size_t { kStamp, kKeyHi, kKeyLo, kOffset, kLengthCrc };

// stamp: generation << 8 | state. Only a ready slot may be read.
constexpr std::uint64_t kFree = 0;
constexpr std::uint64_t kWriting = 1;
constexpr std::uint64_t kReady = 2;
constexpr std::uint64_t kStateMask = 0xff;
constexpr std::uint64_t kGeneration = 0x100;

constexpr ByteCount round_up(ByteCount n, ByteCount to) { return (n + to - 1) / to * to; }

// Words that other processes read while we write them.
std::atomic_ref<std::uint64_t> shared(std::uint64_t& word) {
    return std::atomic_ref<std::uint64_t>(word);
}
std::uint64_t load(const std::uint64_t* word, std::memory_order order) {
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word)).load(order);
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::span<std::uint8_t> memory,
                                             const Options& options) {
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kArenaGrain == 0);
    if (options.min_slot_bytes == 0 || options.min_slot_bytes % kArenaGrain != 0 ||
        options.page_bytes == 0 || options.page_bytes % options.min_slot_bytes != 0) {
        return err(Code::kInvalidArgument, "arena: slots are multiples of 4 KiB, pages of slots");
    }
    const ByteCount headers_per_page = options.page_bytes / options.min_slot_bytes;
    const ByteCount per_page = options.page_bytes + headers_per_page * kHeaderBytes;
    const ByteCount room = memory.size() < kSuperblock ? 0 : memory.size() - kSuperblock;
    ByteCount pages = room / per_page;
    // The table's end is rounded up, which may cost the last page.
    const auto begin = [&](ByteCount p) {
        return round_up(kSuperblock + p * headers_per_page * kHeaderBytes, kArenaGrain);
    };
    if (pages > 0 && begin(pages) + pages * options.page_bytes > memory.size()) --pages;
    if (pages == 0 || pages * headers_per_page >= kNoSlot) {
        return err(Code::kInvalidArgument, fmt::format("arena: {} bytes give {} pages of {} bytes",
                                                       memory.size(), pages, options.page_bytes));
    }
    auto arena = std::unique_ptr<Arena>(new Arena());
    arena->memory_ = memory;
    arena->options_ = options;
    arena->data_begin_ = begin(pages);
    arena->pages_ = arena->pages_free_ = static_cast<std::uint32_t>(pages);
    arena->page_run_.assign(pages, -1);
    const Superblock super{kMagic,
                           1,
                           kHeaderBytes,
                           memory.size(),
                           arena->data_begin_,
                           options.page_bytes,
                           options.min_slot_bytes,
                           pages * headers_per_page};
    std::memcpy(memory.data(), &super, sizeof super);
    return arena;
}

std::uint64_t* Arena::header(SlotId slot) {
    return reinterpret_cast<std::uint64_t*>(memory_.data() + kSuperblock + slot * kHeaderBytes);
}
const std::uint64_t* Arena::header(SlotId slot) const {
    return reinterpret_cast<const std::uint64_t*>(memory_.data() + kSuperblock +
                                                  slot * kHeaderBytes);
}

std::uint64_t Arena::slot_begin(SlotId slot) const {
    return load(header(slot) + kOffset, std::memory_order_relaxed);
}

ByteCount Arena::slot_bytes(std::uint32_t length) const {
    return std::max(options_.min_slot_bytes, round_up(length, kArenaGrain));
}

// Pages per run: the fewest that waste at most a twentieth, else the best up to kMaxRunPages.
Arena::SizeClass& Arena::size_class(ByteCount slot_bytes) {
    const auto [it, fresh] = classes_.try_emplace(slot_bytes);
    SizeClass& c = it->second;
    if (fresh) {
        double best = 2;
        const auto least = static_cast<std::uint32_t>((slot_bytes + options_.page_bytes - 1) /
                                                      options_.page_bytes);
        for (std::uint32_t pages = least; pages <= std::max(least, kMaxRunPages); ++pages) {
            const ByteCount run = pages * options_.page_bytes;
            const double waste = static_cast<double>(run % slot_bytes) / static_cast<double>(run);
            if (waste < best) {
                best = waste;
                c.run_pages = pages;
                c.run_slots = static_cast<std::uint32_t>(run / slot_bytes);
            }
            if (best <= 0.05) break;
        }
    }
    return c;
}

// First fit from where the last run was found: runs of one size end up side by side.
bool Arena::add_run(SizeClass& c, ByteCount slot_bytes) {
    std::uint32_t want = c.run_pages;
    std::uint32_t slots = c.run_slots;
    const auto least =
        static_cast<std::uint32_t>((slot_bytes + options_.page_bytes - 1) / options_.page_bytes);
    for (; want >= least && want > 0; --want) {
        slots = static_cast<std::uint32_t>(want * options_.page_bytes / slot_bytes);
        if (want > pages_free_) continue;
        std::uint32_t length = 0;
        for (std::uint32_t i = 0; i < pages_ + want; ++i) {
            const std::uint32_t page = (page_cursor_ + i) % pages_;
            if (page == 0) length = 0;  // no run wraps
            length = page_run_[page] < 0 ? length + 1 : 0;
            if (length < want) continue;
            const std::uint32_t first = page + 1 - want;
            std::uint32_t id;
            if (free_runs_.empty()) {
                id = static_cast<std::uint32_t>(runs_.size());
                runs_.emplace_back();
            } else {
                id = free_runs_.back();
                free_runs_.pop_back();
            }
            Run& run = runs_[id];
            run = {
                first, want, slots, 0, slot_bytes, {}, static_cast<std::uint32_t>(c.open.size())};
            for (std::uint32_t s = slots; s-- > 0;) run.free.push_back(s);
            for (std::uint32_t p = first; p <= page; ++p) {
                page_run_[p] = static_cast<std::int32_t>(id);
            }
            pages_free_ -= want;
            page_cursor_ = (page + 1) % pages_;
            c.open.push_back(id);
            return true;
        }
    }
    return false;
}

std::optional<SlotId> Arena::allocate(std::uint32_t length) {
    const ByteCount bytes = slot_bytes(length);
    if (length == 0 || bytes > ByteCount{pages_} * options_.page_bytes) return std::nullopt;
    SizeClass& c = size_class(bytes);
    if (c.open.empty() && !add_run(c, bytes)) return std::nullopt;
    Run& run = runs_[c.open.back()];
    const std::uint32_t index = run.free.back();
    run.free.pop_back();
    ++run.used;
    if (run.free.empty()) c.open.pop_back();

    const ByteCount in_data = run.first_page * options_.page_bytes + index * bytes;
    const auto slot = static_cast<SlotId>(in_data / options_.min_slot_bytes);
    std::uint64_t* h = header(slot);
    CHECK((h[kStamp] & kStateMask) == kFree);
    shared(h[kStamp]).store((h[kStamp] & ~kStateMask) | kWriting, std::memory_order_release);
    shared(h[kOffset]).store(data_begin_ + in_data, std::memory_order_relaxed);
    shared(h[kLengthCrc]).store(length, std::memory_order_relaxed);
    used_bytes_ += bytes;
    ++slots_used_;
    return slot;
}

void Arena::publish(SlotId slot, ObjectKey key, std::uint32_t crc) {
    std::uint64_t* h = header(slot);
    CHECK((h[kStamp] & kStateMask) == kWriting);
    shared(h[kKeyHi]).store(key.hi, std::memory_order_relaxed);
    shared(h[kKeyLo]).store(key.lo, std::memory_order_relaxed);
    shared(h[kLengthCrc])
        .store((h[kLengthCrc] & 0xffffffff) | std::uint64_t{crc} << 32, std::memory_order_relaxed);
    shared(h[kStamp]).store((h[kStamp] & ~kStateMask) | kReady, std::memory_order_release);
}

void Arena::free(SlotId slot) {
    std::uint64_t* h = header(slot);
    CHECK((h[kStamp] & kStateMask) != kFree);
    const ByteCount in_data = h[kOffset] - data_begin_;
    // Readers that copy now find another stamp afterwards; whoever writes the slot next comes after
    // this store.
    shared(h[kStamp]).store(((h[kStamp] & ~kStateMask) + kGeneration) | kFree,
                            std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);

    const std::int32_t id = page_run_[in_data / options_.page_bytes];
    Run& run = runs_[static_cast<std::size_t>(id)];
    SizeClass& c = classes_.at(run.slot_bytes);
    const auto index = static_cast<std::uint32_t>((in_data - run.first_page * options_.page_bytes) /
                                                  run.slot_bytes);
    if (run.free.empty()) {
        run.place = static_cast<std::uint32_t>(c.open.size());
        c.open.push_back(static_cast<std::uint32_t>(id));
    }
    run.free.push_back(index);
    used_bytes_ -= run.slot_bytes;
    --slots_used_;
    if (--run.used > 0) return;
    // The last slot of the run: its pages are anyone's again.
    for (std::uint32_t p = run.first_page; p < run.first_page + run.pages; ++p) page_run_[p] = -1;
    pages_free_ += run.pages;
    c.open[run.place] = c.open.back();
    runs_[c.open.back()].place = run.place;
    c.open.pop_back();
    run.pages = 0;
    run.free.clear();
    free_runs_.push_back(static_cast<std::uint32_t>(id));
}

std::span<std::uint8_t> Arena::bytes(SlotId slot) {
    const std::uint64_t* h = header(slot);
    return memory_.subspan(h[kOffset], h[kLengthCrc] & 0xffffffff);
}

SlotRef Arena::ref(SlotId slot) const {
    const std::uint64_t* h = header(slot);
    return {h[kOffset],
            static_cast<std::uint32_t>(h[kLengthCrc]),
            static_cast<std::uint32_t>(h[kLengthCrc] >> 32),
            h[kStamp],
            {h[kKeyHi], h[kKeyLo]}};
}

std::uint64_t Arena::location(SlotId slot) const { return slot_begin(slot) / kArenaGrain; }

SlotId Arena::slot_at(std::uint64_t location) const {
    const ByteCount offset = location * kArenaGrain;
    if (location > std::numeric_limits<ByteCount>::max() / kArenaGrain || offset < data_begin_ ||
        offset >= data_begin_ + ByteCount{pages_} * options_.page_bytes) {
        return kNoSlot;
    }
    const auto slot = static_cast<SlotId>((offset - data_begin_) / options_.min_slot_bytes);
    return in_use(slot) && slot_begin(slot) == offset ? slot : kNoSlot;
}

std::vector<SlotId> Arena::run_of(SlotId slot) const {
    const ByteCount in_data = slot_begin(slot) - data_begin_;
    return slots_of(static_cast<std::uint32_t>(page_run_[in_data / options_.page_bytes]));
}

std::vector<SlotId> Arena::slots_of(std::uint32_t number) const {
    const Run& run = runs_[number];
    std::vector<SlotId> out;
    for (std::uint32_t i = 0; run.pages > 0 && i < run.slots; ++i) {
        const ByteCount at = run.first_page * options_.page_bytes + i * run.slot_bytes;
        const auto id = static_cast<SlotId>(at / options_.min_slot_bytes);
        if (in_use(id) && slot_begin(id) == data_begin_ + at) out.push_back(id);
    }
    return out;
}

bool Arena::in_use(SlotId slot) const {
    return slot < slot_count() && (header(slot)[kStamp] & kStateMask) != kFree;
}

SlotId Arena::slot_count() const {
    return static_cast<SlotId>(ByteCount{pages_} * options_.page_bytes / options_.min_slot_bytes);
}

ByteCount Arena::page_bytes_free() const { return ByteCount{pages_free_} * options_.page_bytes; }
ByteCount Arena::payload_capacity() const { return ByteCount{pages_} * options_.page_bytes; }

// ---------------------------------------------------------------- reader

Result<ArenaReader> ArenaReader::open(std::span<const std::uint8_t> mapping) {
    Superblock super{};
    if (mapping.size() < sizeof super) return err(Code::kCorrupt, "arena: too short");
    std::memcpy(&super, mapping.data(), sizeof super);
    if (super.magic != kMagic || super.version != 1 || super.header_bytes != kHeaderBytes) {
        return err(Code::kCorrupt, "arena: not an arena of version 1");
    }
    if (super.region_bytes > mapping.size() || super.data_begin > super.region_bytes ||
        super.min_slot_bytes == 0 || super.slots > super.region_bytes / kHeaderBytes ||
        kSuperblock + super.slots * kHeaderBytes > super.data_begin) {
        return err(Code::kCorrupt, "arena: sizes that do not fit the mapping");
    }
    ArenaReader reader;
    reader.mapping_ = mapping.first(super.region_bytes);
    reader.data_begin_ = super.data_begin;
    reader.min_slot_bytes_ = super.min_slot_bytes;
    reader.slots_ = super.slots;
    return reader;
}

bool ArenaReader::inside(const SlotRef& ref) const {
    return ref.offset >= data_begin_ && ref.offset <= mapping_.size() &&
           ref.length <= mapping_.size() - ref.offset &&
           (ref.offset - data_begin_) / min_slot_bytes_ < slots_;
}

Result<std::span<const std::uint8_t>> ArenaReader::view(const SlotRef& ref) const {
    if (!inside(ref)) return err(Code::kInvalidArgument, "arena: a place outside it");
    if (!still_valid(ref)) return err(Code::kNotFound, "arena: the slot holds another object now");
    return mapping_.subspan(ref.offset, ref.length);
}

bool ArenaReader::still_valid(const SlotRef& ref) const {
    if (!inside(ref)) return false;
    // What was read before must not move behind this.
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t slot = (ref.offset - data_begin_) / min_slot_bytes_;
    const auto* h =
        reinterpret_cast<const std::uint64_t*>(mapping_.data() + kSuperblock + slot * kHeaderBytes);
    return (ref.stamp & kStateMask) == kReady &&
           load(h + kStamp, std::memory_order_acquire) == ref.stamp &&
           load(h + kKeyHi, std::memory_order_relaxed) == ref.key.hi &&
           load(h + kKeyLo, std::memory_order_relaxed) == ref.key.lo;
}

Result<void> ArenaReader::copy(const SlotRef& ref, std::span<std::uint8_t> into,
                               ByteCount at) const {
    TRY(const auto bytes, view(ref));
    if (at > bytes.size() || into.size() > bytes.size() - at) {
        return err(Code::kInvalidArgument, "arena: more bytes than the object has");
    }
    const std::uint32_t crc = copy_crc32c(into, bytes.subspan(at, into.size()));
    if (!still_valid(ref)) return err(Code::kNotFound, "arena: the slot was reused meanwhile");
    if (into.size() == bytes.size() && crc != ref.crc) {
        return err(Code::kCorrupt, "arena: the object's checksum differs");
    }
    return {};
}

}  // namespace nereid::kv
