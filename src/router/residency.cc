#include "router/residency.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace nereid::router {
namespace {

// A set's number: 0 none, 1..2^16-1 the single holder n - 1, above that an interned set.
constexpr std::uint32_t kFirstInterned = 1u << 16u;
constexpr std::uint32_t kSetBits = 24;
constexpr std::uint64_t kSetMask = (1u << kSetBits) - 1;
constexpr std::uint32_t kMaxHolders = kFirstInterned - 1;
constexpr std::size_t kShards = 256;
constexpr std::size_t kWays = 8;
constexpr std::uint64_t kSetOverhead = 112;  // bytes of an interned set besides its members

// splitmix64's finaliser: chain hashes are uniform already, those of tests and foreign engines may
// not be.
std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30u)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27u)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31u);
}
std::uint64_t holder_code(std::uint32_t holder) { return mix(holder + 0x9e3779b97f4a7c15u); }

struct alignas(64) Bucket {
    std::array<std::uint64_t, kWays> slots{};  // tag << 24 | set; 0 = empty
};

struct Set {
    std::vector<std::uint16_t> members;  // sorted
    std::uint64_t code = 0;              // XOR of the members' codes
    std::uint64_t refs = 0;              // blocks
};

// Where a block's slot may be: computed from its 48 bits alone, so that a shard can grow.
struct Place {
    std::uint32_t shard;
    std::uint64_t tag;  // 40 bits
};
Place place_of(BlockHash hash) {
    const std::uint64_t m = mix(hash);
    return {static_cast<std::uint32_t>(m >> 56u), m & ((std::uint64_t{1} << 40u) - 1)};
}

// The bits of slots whose upper 40 bits are `tag`; without branches, since the place is random.
unsigned matches(const Bucket& bucket, std::uint64_t tag) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < kWays; ++i) {
        bits |= static_cast<unsigned>(bucket.slots[i] >> kSetBits == tag) << i;
    }
    return bits;
}

// A shard's buckets. The two buckets of a block lie in one page of 64 (with fewer buckets:
// anywhere), so that a lookup costs one page walk, and growing, which scales the first bucket's
// number, moves through memory in order.
struct Shard {
    static constexpr std::uint64_t kPage = 64;
    struct Free {
        void operator()(Bucket* b) const { std::free(b); }
    };
    std::unique_ptr<Bucket[], Free> buckets;
    std::uint64_t size = 0;
    std::uint64_t used = 0;

    // At least `wanted` buckets.
    static std::uint64_t size_for(std::uint64_t wanted) {
        return wanted <= kPage ? wanted : (wanted + kPage - 1) / kPage * kPage;
    }
    void allocate(std::uint64_t n) {
        size = n;
        const std::size_t alignment = (n < kPage ? 1 : kPage) * sizeof(Bucket);
        buckets.reset(static_cast<Bucket*>(std::aligned_alloc(alignment, n * sizeof(Bucket))));
        CHECK(buckets != nullptr);
        std::uninitialized_value_construct_n(buckets.get(), n);
    }
    std::uint64_t first(std::uint64_t tag) const { return ((tag & 0xffff'ffffu) * size) >> 32u; }
    std::uint64_t second(std::uint64_t tag) const {
        const std::uint64_t h = tag * 0x9fb21c651e98df25u >> 32u;
        if (size < kPage) return (h * size) >> 32u;
        return first(tag) ^ (1 + ((h * (kPage - 1)) >> 32u));
    }

    std::uint64_t* find(std::uint64_t tag) const {
        Bucket& a = buckets[first(tag)];
        Bucket& b = buckets[second(tag)];
        // Tag 0 may be a block's, 0 is an empty slot: no block has set 0.
        for (unsigned bits = matches(a, tag) | matches(b, tag) << kWays; bits != 0;
             bits &= bits - 1) {
            const auto i = static_cast<std::size_t>(std::countr_zero(bits));
            std::uint64_t& slot = i < kWays ? a.slots[i] : b.slots[i - kWays];
            if (slot != 0) return &slot;
        }
        return nullptr;
    }
    static std::uint64_t* free_slot(Bucket& bucket) {
        for (std::uint64_t& slot : bucket.slots) {
            if (slot == 0) return &slot;
        }
        return nullptr;
    }
    // A free slot in the emptier of the two buckets.
    std::uint64_t* room(std::uint64_t tag) const {
        Bucket& a = buckets[first(tag)];
        Bucket& b = buckets[second(tag)];
        const auto used_in = [](const Bucket& bucket) {
            return std::count_if(bucket.slots.begin(), bucket.slots.end(),
                                 [](std::uint64_t slot) { return slot != 0; });
        };
        return free_slot(used_in(a) <= used_in(b) ? a : b);
    }
    // Both are full: one of theirs moves to its other bucket.
    std::uint64_t* room_by_moving(std::uint64_t tag) const {
        for (const std::uint64_t b : {first(tag), second(tag)}) {
            for (std::uint64_t& slot : buckets[b].slots) {
                const std::uint64_t other = slot >> kSetBits;
                const std::uint64_t one = first(other);
                std::uint64_t* to = free_slot(buckets[one == b ? second(other) : one]);
                if (to == nullptr) continue;
                *to = std::exchange(slot, 0);
                return &slot;
            }
        }
        return nullptr;
    }
    void prefetch(std::uint64_t tag) const {
        __builtin_prefetch(&buckets[first(tag)]);
        __builtin_prefetch(&buckets[second(tag)]);
    }
};

struct Expected {
    TimePoint until;
    BlockHash block;
    std::uint16_t holder;
};

}  // namespace

struct Residency::State {
    explicit State(const Options& o) : options(o) {
        for (Shard& shard : shards) {
            shard.allocate(2);
        }
        bucket_count = 2 * kShards;
    }

    Options options;
    std::array<Shard, kShards> shards;
    std::uint64_t bucket_count = 0;
    std::uint64_t blocks = 0;
    // Sets of two holders and more. Freed numbers are reused.
    std::vector<Set> sets;
    std::vector<std::uint32_t> free_sets;
    std::unordered_map<std::uint64_t, std::uint32_t> by_code;  // looked up, never iterated
    std::uint64_t set_bytes = 0;
    std::uint64_t live_sets = 0;
    // Holders are the 16-bit stand-ins of ranks: a cleared rank gets another one.
    std::vector<RankSlot> slot_of;         // by holder; kNoSlot: retired or free
    std::vector<std::uint64_t> blocks_by;  // by holder
    std::vector<std::uint16_t> free_holders;
    std::vector<std::uint32_t> holder_of;  // by slot; kMaxHolders: none
    std::vector<std::uint16_t> retired;    // waiting for a full sweep that began after them
    std::size_t retired_before_sweep = 0;  // of those, the ones this sweep will have cleaned
    bool sweeping = false;
    std::size_t sweep_shard = 0;
    std::uint64_t sweep_bucket = 0;
    // Speculative entries.
    std::deque<Expected> expected;
    std::unordered_map<std::uint64_t, TimePoint>
        pending;  // block ^ holder -> until; never iterated
    ResidencyStats counters;

    static std::uint64_t pending_key(BlockHash block, std::uint32_t holder) {
        return mix(block) ^ holder_code(holder);
    }
    std::uint64_t bytes() const {
        return bucket_count * sizeof(Bucket) + set_bytes + slot_of.capacity() * 12 +
               holder_of.capacity() * 4 + expected.size() * sizeof(Expected) + pending.size() * 40 +
               pending.bucket_count() * 8;
    }

    // ---- sets
    bool alive(std::uint32_t set) const {
        if (set == 0) return false;
        if (set < kFirstInterned) return slot_of[set - 1] != kNoSlot;
        return !sets[set - kFirstInterned].members.empty();
    }
    bool contains(std::uint32_t set, std::uint32_t holder) const {
        if (set < kFirstInterned) return set == holder + 1;
        const auto& m = sets[set - kFirstInterned].members;
        return std::binary_search(m.begin(), m.end(), static_cast<std::uint16_t>(holder));
    }
    std::span<const std::uint16_t> members(std::uint32_t set, std::uint16_t& single) const {
        if (set >= kFirstInterned) return sets[set - kFirstInterned].members;
        single = static_cast<std::uint16_t>(set - 1);
        return alive(set) ? std::span<const std::uint16_t>(&single, 1)
                          : std::span<const std::uint16_t>{};
    }
    void ref(std::uint32_t set) {
        if (set >= kFirstInterned) ++sets[set - kFirstInterned].refs;
    }
    // True when the set's number was freed.
    bool unref(std::uint32_t set) {
        if (set < kFirstInterned) return false;
        Set& s = sets[set - kFirstInterned];
        if (--s.refs != 0) return false;
        forget_code(set);
        set_bytes -= kSetOverhead + 2 * s.members.capacity();
        s = Set{};
        free_sets.push_back(set);
        --live_sets;
        return true;
    }
    void forget_code(std::uint32_t set) {
        const auto it = by_code.find(sets[set - kFirstInterned].code);
        if (it != by_code.end() && it->second == set) by_code.erase(it);
    }
    // The set with these members (two or more, sorted); 0 when there is no room for another.
    std::uint32_t intern(std::vector<std::uint16_t> m, std::uint64_t code) {
        if (const auto it = by_code.find(code);
            it != by_code.end() && sets[it->second - kFirstInterned].members == m) {
            return it->second;
        }
        m.shrink_to_fit();
        const std::uint64_t cost = kSetOverhead + 2 * m.capacity();
        if (free_sets.empty() && sets.size() + kFirstInterned >= kSetMask) return 0;
        if (bytes() + cost > options.max_bytes) return 0;
        std::uint32_t set = 0;
        if (free_sets.empty()) {
            set = static_cast<std::uint32_t>(sets.size()) + kFirstInterned;
            sets.emplace_back();
        } else {
            set = free_sets.back();
            free_sets.pop_back();
        }
        sets[set - kFirstInterned] = {.members = std::move(m), .code = code, .refs = 0};
        by_code.insert_or_assign(code, set);
        set_bytes += cost;
        ++live_sets;
        return set;
    }
    std::uint32_t with(std::uint32_t set, std::uint32_t holder) {
        std::uint16_t single = 0;
        const auto old = members(set, single);
        if (old.empty()) return holder + 1;
        std::vector<std::uint16_t> m;
        m.reserve(old.size() + 1);
        m.assign(old.begin(), old.end());
        const auto h = static_cast<std::uint16_t>(holder);
        m.insert(std::upper_bound(m.begin(), m.end(), h), h);
        const std::uint64_t code =
            set < kFirstInterned ? holder_code(set - 1) : sets[set - kFirstInterned].code;
        return intern(std::move(m), code ^ holder_code(holder));
    }
    // 0 when nobody is left, or when there is no room (the block is forgotten then).
    std::uint32_t without(std::uint32_t set, std::uint32_t holder) {
        if (set < kFirstInterned) return 0;
        const Set& s = sets[set - kFirstInterned];
        if (s.members.size() == 1) return 0;
        const auto h = static_cast<std::uint16_t>(holder);
        if (s.members.size() == 2) return (s.members[0] == h ? s.members[1] : s.members[0]) + 1u;
        std::vector<std::uint16_t> m = s.members;
        m.erase(std::lower_bound(m.begin(), m.end(), h));
        return intern(std::move(m), s.code ^ holder_code(holder));
    }

    // ---- blocks
    std::uint32_t lookup(BlockHash hash) const { return lookup(place_of(hash)); }
    std::uint32_t lookup(const Place& p) const {
        const std::uint64_t* slot = shards[p.shard].find(p.tag);
        if (slot == nullptr) return 0;
        const auto set = static_cast<std::uint32_t>(*slot & kSetMask);
        return alive(set) ? set : 0;
    }
    void prefetch(BlockHash hash) const {
        const Place p = place_of(hash);
        shards[p.shard].prefetch(p.tag);
    }
    void uncount(std::uint32_t set) {
        std::uint16_t single = 0;
        for (const std::uint16_t h : members(set, single)) --blocks_by[h];
    }
    void vacate(Shard& shard, std::uint64_t& slot) {
        unref(static_cast<std::uint32_t>(slot & kSetMask));
        slot = 0;
        --shard.used;
        --blocks;
    }

    bool grow(Shard& shard, std::uint64_t size) {
        for (;; size += 1 + size / 4) {
            size = Shard::size_for(size);
            const std::uint64_t more = (size - shard.size) * sizeof(Bucket);
            if (bytes() + more > options.max_bytes) return false;
            Shard next;
            next.allocate(size);
            bool fits = true;
            for (std::uint64_t b = 0; b < shard.size && fits; ++b) {
                for (const std::uint64_t slot : shard.buckets[b].slots) {
                    if (slot == 0) continue;
                    std::uint64_t* room = next.room(slot >> kSetBits);
                    if (room == nullptr) room = next.room_by_moving(slot >> kSetBits);
                    fits = room != nullptr;
                    if (!fits) break;
                    *room = slot;
                }
            }
            if (!fits) continue;
            next.used = shard.used;
            bucket_count += size - shard.size;
            if (sweeping && static_cast<std::size_t>(&shard - shards.data()) == sweep_shard) {
                sweep_bucket = 0;  // its buckets were dealt out anew
            }
            shard = std::move(next);
            return true;
        }
    }
    // The last change of set, which the next block of a chain nearly always repeats.
    struct Change {
        std::uint32_t from = 0;
        std::uint32_t to = 0;
    };
    // A dead block of the two buckets goes. Nothing dead is ever moved: a sweep might miss it.
    std::uint64_t* bury(Shard& shard, std::uint64_t tag) {
        for (const std::uint64_t b : {shard.first(tag), shard.second(tag)}) {
            for (std::uint64_t& slot : shard.buckets[b].slots) {
                if (alive(static_cast<std::uint32_t>(slot & kSetMask))) continue;
                vacate(shard, slot);
                return &slot;
            }
        }
        return nullptr;
    }
    // A free slot for a new block; at the bound one of its neighbours makes room.
    std::uint64_t* make_room(Shard& shard, std::uint64_t tag, Change& last) {
        if (std::uint64_t* room = shard.room(tag)) return room;
        last = {};  // sets may be freed below
        if (std::uint64_t* room = bury(shard, tag)) return room;
        if (std::uint64_t* room = shard.room_by_moving(tag)) return room;
        if (grow(shard, shard.size + 1 + shard.size / 4)) {
            if (std::uint64_t* room = shard.room(tag)) return room;
        }
        const std::uint64_t which = mix(tag + counters.replaced);
        Bucket& bucket = shard.buckets[(which & 8u) != 0 ? shard.first(tag) : shard.second(tag)];
        std::uint64_t& victim = bucket.slots[which % kWays];
        uncount(static_cast<std::uint32_t>(victim & kSetMask));
        vacate(shard, victim);
        ++counters.replaced;
        return &victim;
    }

    // Adds a holder to a block.
    void add(BlockHash hash, std::uint32_t holder, Change& last) {
        const Place p = place_of(hash);
        Shard& shard = shards[p.shard];
        std::uint64_t* slot = shard.find(p.tag);
        if (slot == nullptr) {
            slot = make_room(shard, p.tag, last);
            *slot = p.tag << kSetBits | (holder + 1);
            ++shard.used;
            ++blocks;
            ++blocks_by[holder];
            return;
        }
        const auto old = static_cast<std::uint32_t>(*slot & kSetMask);
        if (contains(old, holder)) return;
        std::uint32_t next = last.from == old ? last.to : 0;
        if (next == 0) next = with(old, holder);
        if (next == 0) {
            ++counters.refused;
            return;
        }
        ref(next);
        *slot = p.tag << kSetBits | next;
        last = unref(old) ? Change{} : Change{old, next};
        ++blocks_by[holder];
    }
    void drop(BlockHash hash, std::uint32_t holder, Change& last) {
        const Place p = place_of(hash);
        Shard& shard = shards[p.shard];
        std::uint64_t* slot = shard.find(p.tag);
        if (slot == nullptr) return;
        const auto old = static_cast<std::uint32_t>(*slot & kSetMask);
        if (!contains(old, holder)) return;
        --blocks_by[holder];
        const std::uint32_t next =
            last.from == old && last.from != 0 ? last.to : without(old, holder);
        if (next == 0) {
            if (old >=
                kFirstInterned) {  // no room for the smaller set: its other holders lose the block
                std::uint16_t single = 0;
                for (const std::uint16_t h : members(old, single)) {
                    if (h != holder) --blocks_by[h];
                }
            }
            vacate(shard, *slot);
            last = {};
            return;
        }
        ref(next);
        *slot = p.tag << kSetBits | next;
        last = unref(old) ? Change{} : Change{old, next};
    }

    // ---- holders
    std::uint32_t holder(RankSlot slot) const {
        return slot < holder_of.size() ? holder_of[slot] : kMaxHolders;
    }
    void hire(RankSlot slot) {
        if (slot >= holder_of.size()) holder_of.resize(slot + 1, kMaxHolders);
        std::uint32_t h = 0;
        if (free_holders.empty()) {
            if (slot_of.size() >= kMaxHolders) {  // more clears than sweeps could clean
                sweep_all();
                if (free_holders.empty()) return;
            }
        }
        if (free_holders.empty()) {
            h = static_cast<std::uint32_t>(slot_of.size());
            slot_of.push_back(slot);
            blocks_by.push_back(0);
        } else {
            h = free_holders.back();
            free_holders.pop_back();
            slot_of[h] = slot;
            blocks_by[h] = 0;
        }
        holder_of[slot] = h;
    }
    void retire(RankSlot slot) {
        const std::uint32_t h = holder(slot);
        if (h == kMaxHolders) return;
        holder_of[slot] = kMaxHolders;
        slot_of[h] = kNoSlot;
        blocks_by[h] = 0;
        const auto gone = static_cast<std::uint16_t>(h);
        for (std::size_t i = 0; i < sets.size(); ++i) {
            Set& s = sets[i];
            const auto at = std::lower_bound(s.members.begin(), s.members.end(), gone);
            if (at == s.members.end() || *at != gone) continue;
            const auto id = static_cast<std::uint32_t>(i) + kFirstInterned;
            forget_code(id);
            s.members.erase(at);
            s.code ^= holder_code(h);
            by_code.try_emplace(s.code, id);  // a twin may have it: two numbers for one set then
        }
        retired.push_back(gone);
        if (!sweeping) begin_sweep();
    }
    void begin_sweep() {
        sweeping = true;
        sweep_shard = 0;
        sweep_bucket = 0;
        retired_before_sweep = retired.size();
    }
    void sweep(std::uint64_t budget) {
        while (sweeping && budget > 0) {
            Shard& shard = shards[sweep_shard];
            for (; sweep_bucket < shard.size && budget > 0; ++sweep_bucket, --budget) {
                for (std::uint64_t& slot : shard.buckets[sweep_bucket].slots) {
                    if (slot != 0 && !alive(static_cast<std::uint32_t>(slot & kSetMask))) {
                        vacate(shard, slot);
                    }
                }
            }
            if (sweep_bucket < shard.size) return;
            sweep_bucket = 0;
            if (++sweep_shard < kShards) continue;
            for (std::size_t i = 0; i < retired_before_sweep; ++i)
                free_holders.push_back(retired[i]);
            retired.erase(retired.begin(),
                          retired.begin() + static_cast<std::ptrdiff_t>(retired_before_sweep));
            sweeping = false;
            if (!retired.empty()) begin_sweep();
        }
    }
    void sweep_all() {
        while (sweeping) sweep(bucket_count + kShards);
    }

    // ---- matching
    // Positions known so far with their sets, sorted by position.
    struct Known {
        std::array<std::uint32_t, 160> at{};
        std::array<std::uint32_t, 160> set{};
        std::size_t count = 0;
        bool full() const { return count + 16 > at.size(); }
        void insert(std::size_t where, std::span<const std::uint32_t> points,
                    std::span<const std::uint32_t> found) {
            const std::size_t n = points.size();
            std::copy_backward(at.begin() + static_cast<std::ptrdiff_t>(where),
                               at.begin() + static_cast<std::ptrdiff_t>(count),
                               at.begin() + static_cast<std::ptrdiff_t>(count + n));
            std::copy_backward(set.begin() + static_cast<std::ptrdiff_t>(where),
                               set.begin() + static_cast<std::ptrdiff_t>(count),
                               set.begin() + static_cast<std::ptrdiff_t>(count + n));
            std::copy(points.begin(), points.end(),
                      at.begin() + static_cast<std::ptrdiff_t>(where));
            std::copy(found.begin(), found.end(), set.begin() + static_cast<std::ptrdiff_t>(where));
            count += n;
        }
    };
    // Probes positions strictly between known[i] and known[i + 1], evenly: so many that as few
    // rounds as with 15 each are enough, and no more (a gap of 512 takes 3 rounds of 7).
    static std::uint32_t probes_for(std::uint32_t gap) {
        if (gap <= 15) return gap;
        if (gap < 16 * 16) {  // two rounds
            std::uint32_t n = 4;
            while (n * n <= gap) ++n;
            return n - 1;
        }
        std::uint32_t n = 7;  // three; beyond 4,095: more, with 15 each
        while (n < 16 && n * n * n <= gap) ++n;
        return n - 1;
    }
    void refine(std::span<const BlockHash> chain, Known& known, std::size_t i) const {
        const std::uint32_t lo = known.at[i];
        const std::uint32_t gap = known.at[i + 1] - lo - 1;
        const std::uint32_t n = probes_for(gap);
        std::array<std::uint32_t, 15> points{};
        std::array<std::uint32_t, 15> found{};
        std::array<Place, 15> places{};
        for (std::uint32_t k = 0; k < n; ++k) {
            points[k] = lo + static_cast<std::uint32_t>(std::uint64_t{k + 1} * (gap + 1) / (n + 1));
            places[k] = place_of(chain[points[k]]);
            shards[places[k].shard].prefetch(places[k].tag);
        }
        for (std::uint32_t k = 0; k < n; ++k) found[k] = lookup(places[k]);
        known.insert(i + 1, {points.data(), n}, {found.data(), n});
    }
    // The last known position before the first for which `keep` fails, narrowed until the two are
    // neighbours. keep(0) holds, keep(count - 1) does not.
    template <class Keep>
    std::size_t boundary(std::span<const BlockHash> chain, Known& known, Keep keep) const {
        for (;;) {
            std::size_t i = 0;
            while (i + 1 < known.count && keep(i + 1)) ++i;
            if (i + 1 == known.count || known.at[i + 1] == known.at[i] + 1 || known.full()) {
                return i;
            }
            refine(chain, known, i);
        }
    }
};

Residency::Residency(const Options& options) : state_(std::make_unique<State>(options)) {}
Residency::~Residency() = default;

void Residency::add_rank(RankSlot slot) {
    CHECK(slot < kMaxHolders - 1024);
    if (state_->holder(slot) == kMaxHolders) state_->hire(slot);
}
void Residency::remove_rank(RankSlot slot) { state_->retire(slot); }
void Residency::clear_rank(RankSlot slot) {
    const std::uint32_t h = state_->holder(slot);
    if (h == kMaxHolders || state_->blocks_by[h] == 0) return;
    state_->retire(slot);
    state_->hire(slot);
}

void Residency::store(RankSlot slot, BlockHash parent, std::span<const BlockHash> blocks) {
    State& s = *state_;
    const std::uint32_t h = s.holder(slot);
    if (h == kMaxHolders) return;
    if (parent != 0 && !s.contains(s.lookup(parent), h)) {
        s.counters.orphans += blocks.size();
        return;
    }
    constexpr std::size_t kAhead = 8;
    State::Change last;
    for (std::size_t i = 0; i < std::min(kAhead, blocks.size()); ++i) s.prefetch(blocks[i]);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i + kAhead < blocks.size()) s.prefetch(blocks[i + kAhead]);
        s.add(blocks[i], h, last);
        if (!s.pending.empty()) s.pending.erase(State::pending_key(blocks[i], h));
    }
}

void Residency::remove(RankSlot slot, std::span<const BlockHash> blocks) {
    State& s = *state_;
    const std::uint32_t h = s.holder(slot);
    if (h == kMaxHolders) return;
    State::Change last;
    for (const BlockHash block : blocks) {
        s.drop(block, h, last);
        if (!s.pending.empty()) s.pending.erase(State::pending_key(block, h));
    }
}

void Residency::expect(RankSlot slot, std::span<const BlockHash> blocks, TimePoint now) {
    State& s = *state_;
    const std::uint32_t h = s.holder(slot);
    if (h == kMaxHolders) return;
    const TimePoint until = now + s.options.speculative_ttl;
    State::Change last;
    for (const BlockHash block : blocks) {
        const std::uint64_t key = State::pending_key(block, h);
        const auto waiting = s.pending.find(key);
        const bool known = s.contains(s.lookup(block), h);
        if (known && waiting == s.pending.end()) continue;  // resident, as events say
        if (s.expected.size() >= s.options.max_speculative || s.bytes() > s.options.max_bytes) {
            return;
        }
        s.pending.insert_or_assign(key, until);
        s.expected.push_back({until, block, static_cast<std::uint16_t>(h)});
        if (!known) s.add(block, h, last);
    }
}

std::uint32_t Residency::depth(const PrefixMatch& match, RankSlot slot) const {
    const std::uint32_t h = state_->holder(slot);
    if (h == kMaxHolders) return 0;
    for (std::uint32_t i = 0; i < match.level_count; ++i) {
        if (state_->contains(match.levels[i].set, h)) return match.levels[i].depth;
    }
    return 0;
}

std::size_t Residency::holders(const PrefixMatch& match, std::span<Holder> out,
                               std::uint64_t salt) const {
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < match.level_count; ++i) {
        std::uint16_t single = 0;
        const auto members = state_->members(match.levels[i].set, single);
        for (std::size_t k = 0; k < members.size(); ++k) {
            if (count == out.size()) return count;
            const RankSlot slot = state_->slot_of[members[(k + salt) % members.size()]];
            const auto seen = out.first(count);
            if (std::any_of(seen.begin(), seen.end(),
                            [&](const Holder& o) { return o.slot == slot; })) {
                continue;
            }
            out[count++] = {slot, match.levels[i].depth};
        }
    }
    return count;
}

PrefixMatch Residency::match(std::span<const BlockHash> chain) const {
    PrefixMatch match;
    if (chain.empty()) return match;
    const State& s = *state_;
    // A wall after the end stands for "absent".
    State::Known known;
    const auto end = static_cast<std::uint32_t>(chain.size());
    known.at[0] = 0;
    known.set[0] = s.lookup(chain[0]);
    if (known.set[0] == 0) return match;
    known.at[1] = end;
    known.set[1] = 0;
    known.count = 2;
    const std::size_t deepest =
        s.boundary(chain, known, [&](std::size_t i) { return known.set[i] != 0; });
    known.count = deepest + 1;
    // Each level's set reaches from its depth up to where another set begins; supersets lie before.
    for (;;) {
        const std::uint32_t set = known.set[known.count - 1];
        const std::uint32_t depth = known.at[known.count - 1] + 1;
        if (match.level_count + 1 == PrefixMatch::kMaxLevels && set != known.set[0]) {
            // Out of levels: the last one is the shallowest set, the shared beginning of prompts.
            const std::size_t i = s.boundary(
                chain, known, [&](std::size_t k) { return known.set[k] == known.set[0]; });
            match.levels[match.level_count++] = {known.at[i] + 1, known.set[0]};
            return match;
        }
        match.levels[match.level_count++] = {depth, set};
        if (set == known.set[0]) return match;
        const std::size_t i =
            s.boundary(chain, known, [&](std::size_t k) { return known.set[k] != set; });
        if (known.set[i] == set) return match;
        known.count = i + 1;
    }
}

bool Residency::holds(RankSlot slot, BlockHash block) const {
    const std::uint32_t h = state_->holder(slot);
    return h != kMaxHolders && state_->contains(state_->lookup(block), h);
}
std::uint64_t Residency::blocks_of(RankSlot slot) const {
    const std::uint32_t h = state_->holder(slot);
    return h == kMaxHolders ? 0 : state_->blocks_by[h];
}

void Residency::maintain(TimePoint now, std::uint32_t budget) {
    State& s = *state_;
    State::Change last;
    for (std::uint32_t i = 0; i < budget && !s.expected.empty() && s.expected.front().until <= now;
         ++i) {
        const Expected e = s.expected.front();
        s.expected.pop_front();
        const std::uint64_t key = State::pending_key(e.block, e.holder);
        const auto it = s.pending.find(key);
        if (it == s.pending.end() || it->second != e.until) continue;  // stored, or expected anew
        s.pending.erase(it);
        if (s.slot_of[e.holder] == kNoSlot) continue;  // its rank is gone
        s.drop(e.block, e.holder, last);
        ++s.counters.expired;
    }
    s.sweep(budget);
}

void Residency::reserve(std::uint64_t blocks) {
    const std::uint64_t size = blocks * 5 / 4 / (kShards * kWays) + 2;
    for (Shard& shard : state_->shards) {
        if (size > shard.size) state_->grow(shard, size);
    }
}

ResidencyStats Residency::stats() const {
    ResidencyStats out = state_->counters;
    out.blocks = state_->blocks;
    out.sets = state_->live_sets;
    out.bytes = state_->bytes();
    out.speculative = state_->pending.size();
    return out;
}

}  // namespace nereid::router
