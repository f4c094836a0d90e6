#include "kv/index/index.h"

#include <array>
#include <bit>
#include <utility>

#include "base/check.h"

namespace nereid::kv {
namespace {

constexpr std::uint32_t kSlots = 4;
constexpr double kLoad = 0.75;
constexpr std::size_t kBatch = 32;  // keys whose lines are on the way at once
constexpr int kRetries = 1000;      // of a reader while the writer is inside a change

constexpr std::uint64_t kTagBits = 48;

// word 1: location 0-39, expiry 40-55, flags 56-63
constexpr int kExpiryShift = 40;
constexpr int kTierShift = 58;   // 2 bits
constexpr int kClockShift = 56;  // 2 bits
constexpr std::uint64_t kClock = 3ULL << kClockShift;
constexpr std::uint64_t kAway = 1ULL << 60;      // in its other bucket
constexpr std::uint64_t kOverflow = 1ULL << 61;  // of the bucket, not of the slot: see count_away
constexpr std::uint32_t kMaxAway = (1U << kSlots) - 1;

constexpr std::uint64_t tag_of(std::uint64_t word0) { return word0 >> 16; }
constexpr ExpiryHour expiry_of(std::uint64_t word1) {
    return static_cast<ExpiryHour>(word1 >> kExpiryShift);
}
constexpr Tier tier_of(std::uint64_t word1) { return static_cast<Tier>((word1 >> kTierShift) & 3); }
constexpr std::uint64_t clock_of(std::uint64_t word1) { return (word1 & kClock) >> kClockShift; }

std::uint64_t word0_of(std::uint64_t tag, const IndexEntry& e) { return tag << 16 | e.generation; }
std::uint64_t word1_of(const IndexEntry& e) {
    return e.location.value | std::uint64_t{e.expiry} << kExpiryShift |
           static_cast<std::uint64_t>(e.location.tier) << kTierShift;
}
IndexEntry entry_of(std::uint64_t word0, std::uint64_t word1) {
    return {{tier_of(word1), word1 & kMaxLocation},
            expiry_of(word1),
            static_cast<std::uint16_t>(word0)};
}

std::uint64_t high(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

}  // namespace

struct alignas(64) Index::Bucket {
    std::array<std::atomic<std::uint64_t>, kSlots> word0;
    std::array<std::atomic<std::uint64_t>, kSlots> word1;

    bool overflowed() const {
        std::uint64_t any = 0;
        for (const auto& w : word1) any |= w.load(std::memory_order_relaxed);
        return (any & kOverflow) != 0;
    }
};

Result<std::unique_ptr<Index>> Index::create(const Options& options) {
    static_assert(sizeof(Bucket) == 64);
    const auto slots = static_cast<std::uint64_t>(static_cast<double>(options.entries) / kLoad);
    const std::uint64_t buckets = std::max<std::uint64_t>(2, slots / kSlots + 1);
    TRY(auto memory, io::MemoryRegion::anonymous(buckets * sizeof(Bucket), options.huge_pages));
    return std::unique_ptr<Index>(new Index(std::move(memory), buckets, options.seed));
}

// The pages come zeroed, and zero is the empty table: atomics of 8 bytes are their bytes.
Index::Index(io::MemoryRegion memory, std::uint64_t buckets, std::uint64_t seed)
    : memory_(std::move(memory)),
      buckets_(reinterpret_cast<Bucket*>(memory_.bytes().data())),
      bucket_count_(buckets),
      seed_(seed * 0x9e3779b97f4a7c15ULL) {}

Index::Probe Index::probe(ObjectKey key) const {
    // Keys are uniform; the multiplication only makes buckets depend on the seed.
    std::uint64_t x = (key.lo ^ seed_) * 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    const std::uint64_t tag = ((key.hi ^ seed_) * 0xbf58476d1ce4e5b9ULL) >> (64 - kTagBits);
    return {high(x * 0x9e3779b97f4a7c15ULL, bucket_count_), tag == 0 ? 1 : tag};
}

// An involution: of the two buckets of an entry each leads to the other.
std::uint64_t Index::other_bucket(std::uint64_t bucket, std::uint64_t tag) const {
    const std::uint64_t h = high(tag * 0x94d049bb133111ebULL, bucket_count_);
    return h >= bucket ? h - bucket : h + bucket_count_ - bucket;
}

// ---------------------------------------------------------------- readers

bool Index::look(const Probe& p, IndexEntry& out) const {
    std::uint64_t b = p.own;
    for (int side = 0; side < 2; ++side) {
        const Bucket& bucket = buckets_[b];
        for (std::uint32_t s = 0; s < kSlots; ++s) {
            const std::uint64_t w0 = bucket.word0[s].load(std::memory_order_acquire);
            if (tag_of(w0) != p.tag) continue;
            const std::uint64_t w1 = bucket.word1[s].load(std::memory_order_acquire);
            if (bucket.word0[s].load(std::memory_order_relaxed) != w0) continue;
            out = entry_of(w0, w1);
            return true;
        }
        if (side == 1 || !bucket.overflowed()) return false;
        b = other_bucket(b, p.tag);
    }
    return false;
}

bool Index::read(const Probe& p, IndexEntry& out) const {
    for (int i = 0; i < kRetries; ++i) {
        const std::uint64_t before = change_.load(std::memory_order_acquire);
        if (look(p, out)) return true;
        std::atomic_thread_fence(std::memory_order_acquire);
        if (before % 2 == 0 && change_.load(std::memory_order_relaxed) == before) return false;
    }
    return false;  // a miss is always allowed
}

bool Index::there(const Probe& p, ExpiryHour now) const {
    IndexEntry e;
    return read(p, e) && !expired(e.expiry, now);
}

std::optional<IndexEntry> Index::find(ObjectKey key) const {
    IndexEntry e;
    if (!read(probe(key), e)) return std::nullopt;
    return e;
}

void Index::prefetch(std::span<const ObjectKey> keys) const {
    for (const ObjectKey key : keys) __builtin_prefetch(&buckets_[probe(key).own]);
}

std::uint64_t Index::contains(std::span<const ObjectKey> keys, ExpiryHour now,
                              std::span<bool> out) const {
    CHECK(out.size() >= keys.size());
    std::uint64_t count = 0;
    std::array<Probe, kBatch> probes;
    for (std::size_t at = 0; at < keys.size(); at += kBatch) {
        const std::size_t n = std::min(kBatch, keys.size() - at);
        for (std::size_t i = 0; i < n; ++i) {
            probes[i] = probe(keys[at + i]);
            __builtin_prefetch(&buckets_[probes[i].own]);
        }
        for (std::size_t i = 0; i < n; ++i) {
            out[at + i] = there(probes[i], now);
            count += out[at + i] ? 1 : 0;
        }
    }
    return count;
}

void Index::find_all(std::span<const ObjectKey> keys, ExpiryHour now,
                     std::span<IndexEntry> out) const {
    CHECK(out.size() >= keys.size());
    std::array<Probe, kBatch> probes;
    for (std::size_t at = 0; at < keys.size(); at += kBatch) {
        const std::size_t n = std::min(kBatch, keys.size() - at);
        for (std::size_t i = 0; i < n; ++i) {
            probes[i] = probe(keys[at + i]);
            __builtin_prefetch(&buckets_[probes[i].own]);
        }
        for (std::size_t i = 0; i < n; ++i) {
            IndexEntry e;
            out[at + i] = read(probes[i], e) && !expired(e.expiry, now) ? e : IndexEntry{};
        }
    }
}

// How many of these positions are there, up to the first that is not.
std::uint32_t Index::run_of_hits(std::span<const ObjectKey> keys, std::span<const std::uint32_t> at,
                                 ExpiryHour now) const {
    std::array<Probe, kBatch> probes;
    for (std::size_t i = 0; i < at.size(); ++i) {
        probes[i] = probe(keys[at[i]]);
        __builtin_prefetch(&buckets_[probes[i].own]);
    }
    for (std::uint32_t i = 0; i < at.size(); ++i) {
        if (!there(probes[i], now)) return i;
    }
    return static_cast<std::uint32_t>(at.size());
}

std::uint32_t Index::longest_prefix(std::span<const ObjectKey> keys, ExpiryHour now) const {
    // Between two known points so many probes are sent at once: one round of cache misses each.
    // More probes are cheaper than more rounds until the memory's parallelism is used up.
    constexpr std::uint32_t kWays = 10;
    const auto n = static_cast<std::uint32_t>(keys.size());
    std::array<std::uint32_t, kBatch> at;
    std::size_t count = 0;
    for (std::uint64_t p = 0; p + 1 < n && count + 1 < kBatch; p = 2 * p + 1) {
        at[count++] = static_cast<std::uint32_t>(p);
    }
    if (n > 0) at[count++] = n - 1;

    std::uint32_t low = 0;   // keys before it are taken to be there
    std::uint32_t high = n;  // the first that is known to be missing, or n
    while (low < high) {
        const std::uint32_t hits = run_of_hits(keys, {at.data(), count}, now);
        if (hits > 0) low = at[hits - 1] + 1;
        if (hits < count) high = at[hits];
        if (low >= high) break;
        const std::uint32_t gap = high - low;
        count = std::min(gap, kWays);
        for (std::uint32_t i = 0; i < count; ++i) {
            at[i] = low + static_cast<std::uint32_t>(std::uint64_t{gap} * (i + 1) / (count + 1));
        }
        if (gap <= kWays) {
            for (std::uint32_t i = 0; i < count; ++i) at[i] = low + i;
        }
    }
    return low;
}

// ---------------------------------------------------------------- the writer

std::optional<Index::Place> Index::place_of(const Probe& p) const {
    std::uint64_t b = p.own;
    for (int side = 0; side < 2; ++side) {
        for (std::uint32_t s = 0; s < kSlots; ++s) {
            if (tag_of(buckets_[b].word0[s].load(std::memory_order_relaxed)) == p.tag) {
                return Place{b, s};
            }
        }
        if (!buckets_[b].overflowed()) break;
        b = other_bucket(b, p.tag);
    }
    return std::nullopt;
}

std::optional<std::uint32_t> Index::free_slot(std::uint64_t bucket) const {
    for (std::uint32_t s = 0; s < kSlots; ++s) {
        if (buckets_[bucket].word0[s].load(std::memory_order_relaxed) == 0) return s;
    }
    return std::nullopt;
}

// How many entries of this bucket live in their other one: four bits, one in each slot's word 1. At
// 15 the count is lost and stays, and look-ups visit both buckets.
void Index::count_away(std::uint64_t bucket, int change) {
    auto& words = buckets_[bucket].word1;
    std::uint32_t n = 0;
    for (std::uint32_t s = 0; s < kSlots; ++s) {
        if ((words[s].load(std::memory_order_relaxed) & kOverflow) != 0) n |= 1U << s;
    }
    if (n == kMaxAway) return;
    CHECK(change > 0 || n > 0);
    const std::uint32_t next = change > 0 ? n + 1 : n - 1;
    for (std::uint32_t s = 0; s < kSlots; ++s) {
        const std::uint64_t old = words[s].load(std::memory_order_relaxed);
        const std::uint64_t bit = (next >> s & 1) != 0 ? kOverflow : 0;
        if ((old & kOverflow) != bit) {
            words[s].store((old & ~kOverflow) | bit, std::memory_order_relaxed);
        }
    }
}

// Readers take an entry only if word 0 is the same before and after word 1. Release on word 1 keeps
// the zero before it, release on word 0 keeps word 1 before it.
void Index::write(Place at, std::uint64_t word0, std::uint64_t word1) {
    Bucket& b = buckets_[at.bucket];
    b.word0[at.slot].store(0, std::memory_order_relaxed);
    const std::uint64_t overflow = b.word1[at.slot].load(std::memory_order_relaxed) & kOverflow;
    b.word1[at.slot].store((word1 & ~kOverflow) | overflow, std::memory_order_release);
    b.word0[at.slot].store(word0, std::memory_order_release);
}

void Index::remove(Place at) {
    Bucket& b = buckets_[at.bucket];
    const std::uint64_t tag = tag_of(b.word0[at.slot].load(std::memory_order_relaxed));
    const std::uint64_t word1 = b.word1[at.slot].load(std::memory_order_relaxed);
    b.word0[at.slot].store(0, std::memory_order_release);
    b.word1[at.slot].store(word1 & kOverflow, std::memory_order_release);
    if ((word1 & kAway) != 0) count_away(other_bucket(at.bucket, tag), -1);
    --entries_;
}

void Index::move(Place from, Place to) {
    const Bucket& b = buckets_[from.bucket];
    const std::uint64_t word0 = b.word0[from.slot].load(std::memory_order_relaxed);
    const std::uint64_t word1 = b.word1[from.slot].load(std::memory_order_relaxed);
    write(to, word0, word1 ^ kAway);
    if ((word1 & kAway) == 0) count_away(from.bucket, 1);
    remove(from);  // counts the entry's return if it was away
    ++entries_;
    ++displaced_;
}

// Breadth-first over displacements until one ends at a free slot; then moves along that path.
std::optional<Index::Place> Index::make_room(std::uint64_t own, std::uint64_t other) {
    struct Node {
        std::uint64_t bucket;
        std::uint16_t parent;
        std::uint8_t slot;  // of the parent's bucket, whose entry would move to `bucket`
    };
    constexpr std::size_t kNodes = 340;  // depth 4
    std::array<Node, kNodes> nodes;
    std::size_t count = 0;
    nodes[count++] = {own, 0, 0};
    if (other != own) nodes[count++] = {other, 1, 0};
    const std::size_t roots = count;
    for (std::size_t i = 0; i < count; ++i) {
        if (const auto slot = i >= roots ? free_slot(nodes[i].bucket) : std::nullopt) {
            Place to{nodes[i].bucket, *slot};
            for (std::size_t at = i; at >= roots; at = nodes[at].parent) {
                const Place from{nodes[nodes[at].parent].bucket, nodes[at].slot};
                move(from, to);
                to = from;
            }
            return to;
        }
        for (std::uint32_t s = 0; s < kSlots && count < kNodes; ++s) {
            const std::uint64_t w0 =
                buckets_[nodes[i].bucket].word0[s].load(std::memory_order_relaxed);
            const std::uint64_t next = other_bucket(nodes[i].bucket, tag_of(w0));
            // A bucket twice on one path would move entries that are no longer where it saw them.
            bool seen = next == nodes[i].bucket;
            for (std::size_t at = i; at >= roots && !seen; at = nodes[at].parent) {
                seen = nodes[nodes[at].parent].bucket == next;
            }
            if (!seen) {
                nodes[count++] = {next, static_cast<std::uint16_t>(i),
                                  static_cast<std::uint8_t>(s)};
            }
        }
    }
    return std::nullopt;
}

std::optional<Index::Place> Index::coldest(std::uint64_t own, std::uint64_t other) const {
    std::optional<Place> best;
    std::uint64_t best_clock = 0;
    for (const std::uint64_t b : {own, other}) {
        for (std::uint32_t s = 0; s < kSlots; ++s) {
            const std::uint64_t w1 = buckets_[b].word1[s].load(std::memory_order_relaxed);
            if (tier_of(w1) != Tier::kSsd) continue;
            if (!best || clock_of(w1) < best_clock) {
                best = Place{b, s};
                best_clock = clock_of(w1);
            }
        }
    }
    return best;
}

Index::Put Index::put(ObjectKey key, const IndexEntry& entry) {
    CHECK(entry.location.value <= kMaxLocation && entry.location.tier != Tier::kNowhere);
    const Probe p = probe(key);
    const std::uint64_t change = change_.load(std::memory_order_relaxed);
    if (const auto at = place_of(p)) {
        Bucket& b = buckets_[at->bucket];
        const std::uint64_t flags =
            b.word1[at->slot].load(std::memory_order_relaxed) & (kAway | kClock | kOverflow);
        const std::uint64_t word0 = word0_of(p.tag, entry);
        if (b.word0[at->slot].load(std::memory_order_relaxed) == word0) {
            b.word1[at->slot].store(word1_of(entry) | flags, std::memory_order_release);
            return Put::kUpdated;
        }
        change_.store(change + 1, std::memory_order_release);
        std::atomic_thread_fence(std::memory_order_release);
        write(*at, word0, word1_of(entry) | flags);
        change_.store(change + 2, std::memory_order_release);
        return Put::kUpdated;
    }
    Put result = Put::kInserted;
    std::uint64_t away = 0;
    std::optional<Place> to;
    const std::uint64_t other = other_bucket(p.own, p.tag);
    if (const auto slot = free_slot(p.own)) {
        to = Place{p.own, *slot};
    } else if (const auto far = free_slot(other)) {
        to = Place{other, *far};
    } else {
        change_.store(change + 1, std::memory_order_release);
        std::atomic_thread_fence(std::memory_order_release);
        to = make_room(p.own, other);
        change_.store(change + 2, std::memory_order_release);
    }
    if (!to) {
        to = coldest(p.own, other);
        if (!to) {
            ++refused_;
            return Put::kFull;
        }
        remove(*to);
        ++replaced_;
        result = Put::kReplaced;
    }
    if (to->bucket != p.own) {
        away = kAway;
        count_away(p.own, 1);
    }
    write(*to, word0_of(p.tag, entry), word1_of(entry) | away);
    ++entries_;
    return result;
}

bool Index::erase(ObjectKey key, Location location) {
    const auto at = place_of(probe(key));
    if (!at) return false;
    const Bucket& b = buckets_[at->bucket];
    const std::uint64_t w1 = b.word1[at->slot].load(std::memory_order_relaxed);
    if (tier_of(w1) != location.tier || (w1 & kMaxLocation) != location.value) return false;
    remove(*at);
    return true;
}

bool Index::touch(ObjectKey key, ExpiryHour expiry) {
    const auto at = place_of(probe(key));
    if (!at) return false;
    auto& word = buckets_[at->bucket].word1[at->slot];
    const std::uint64_t old = word.load(std::memory_order_relaxed);
    const std::uint64_t life = later(expiry_of(old), expiry);
    const std::uint64_t mask = 0xffffULL << kExpiryShift;
    word.store((old & ~mask) | life << kExpiryShift | kClock, std::memory_order_release);
    return true;
}

Index::Swept Index::sweep(std::uint64_t buckets, ExpiryHour now) {
    Swept swept;
    for (std::uint64_t i = 0; i < std::min(buckets, bucket_count_); ++i) {
        for (std::uint32_t s = 0; s < kSlots; ++s) {
            auto& word1 = buckets_[sweep_at_].word1[s];
            const std::uint64_t w0 = buckets_[sweep_at_].word0[s].load(std::memory_order_relaxed);
            const std::uint64_t w1 = word1.load(std::memory_order_relaxed);
            if (w0 == 0) continue;
            if (tier_of(w1) != Tier::kDram && expired(expiry_of(w1), now)) {
                remove({sweep_at_, s});
                ++swept.removed;
            } else if (clock_of(w1) > 0) {
                word1.store(w1 - (1ULL << kClockShift), std::memory_order_release);
            }
        }
        if (++sweep_at_ == bucket_count_) {
            sweep_at_ = 0;
            swept.wrapped = true;
        }
    }
    return swept;
}

Index::Stats Index::stats() const {
    return {entries_, bucket_count_ * kSlots, memory_.size(), displaced_, refused_, replaced_};
}

}  // namespace nereid::kv
