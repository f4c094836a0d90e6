#include "sim/capacity/tiered_cache.h"

#include "base/check.h"

namespace nereid::sim {

TieredCache::TieredCache(std::array<std::uint64_t, kTiers> capacity)
    : capacity_(capacity), table_(16, 0) {
    while (first_tier_ + 1 < kTiers && capacity_[first_tier_] == 0) ++first_tier_;
}

std::size_t TieredCache::home(Id id) const {
    // Fibonacci hashing; ids of one chain may be consecutive numbers.
    return static_cast<std::size_t>((id * 0x9e3779b97f4a7c15u) >> 20) & (table_.size() - 1);
}

std::uint32_t TieredCache::find(Id id) const {
    for (std::size_t i = home(id);; i = (i + 1) & (table_.size() - 1)) {
        const std::uint32_t e = table_[i];
        if (e == 0) return kNone;
        if (entries_[e - 1].id == id) return e - 1;
    }
}

void TieredCache::grow() {
    table_.assign(table_.size() * 2, 0);
    for (const List& list : lists_)
        for (std::uint32_t e = list.head; e != kNone; e = entries_[e].next)
            index_insert(entries_[e].id, e);
}

void TieredCache::index_insert(Id id, std::uint32_t entry) {
    std::size_t i = home(id);
    while (table_[i] != 0) i = (i + 1) & (table_.size() - 1);
    table_[i] = entry + 1;
}

// Knuth, The Art of Computer Programming 3, 6.4 R: shifts back what the gap would hide.
void TieredCache::index_erase(Id id) {
    const std::size_t mask = table_.size() - 1;
    std::size_t gap = home(id);
    while (entries_[table_[gap] - 1].id != id) gap = (gap + 1) & mask;
    for (std::size_t i = (gap + 1) & mask; table_[i] != 0; i = (i + 1) & mask) {
        const std::size_t h = home(entries_[table_[i] - 1].id);
        if (((i - h) & mask) < ((i - gap) & mask)) continue;
        table_[gap] = table_[i];
        gap = i;
    }
    table_[gap] = 0;
}

void TieredCache::unlink(std::uint32_t e) {
    Entry& x = entries_[e];
    List& list = lists_[x.tier];
    (x.previous == kNone ? list.head : entries_[x.previous].next) = x.next;
    (x.next == kNone ? list.tail : entries_[x.next].previous) = x.previous;
    --list.size;
}

void TieredCache::push_front(std::uint32_t e, std::uint32_t tier) {
    Entry& x = entries_[e];
    List& list = lists_[tier];
    x.tier = tier;
    x.previous = kNone;
    x.next = list.head;
    (list.head == kNone ? list.tail : entries_[list.head].previous) = e;
    list.head = e;
    ++list.size;
}

void TieredCache::overflow(std::vector<Id>& removed) {
    for (std::uint32_t tier = first_tier_; tier < kTiers; ++tier) {
        while (lists_[tier].size > capacity_[tier]) {
            const std::uint32_t e = lists_[tier].tail;
            unlink(e);
            std::uint32_t below = tier + 1;
            while (below < kTiers && capacity_[below] == 0) ++below;
            if (below < kTiers) {
                push_front(e, below);
                continue;
            }
            removed.push_back(entries_[e].id);
            index_erase(entries_[e].id);
            free_.push_back(e);
            --live_;
        }
    }
}

TieredCache::Hit TieredCache::match(std::span<const Id> chain) const {
    Hit hit;
    for (const Id id : chain) {
        const std::uint32_t e = find(id);
        if (e == kNone) break;
        ++hit.blocks;
        ++hit.by_tier[entries_[e].tier];
    }
    return hit;
}

void TieredCache::use(std::span<const Id> chain, std::vector<Id>& stored,
                      std::vector<Id>& removed) {
    if (capacity() == 0) return;
    for (std::size_t i = chain.size(); i-- > 0;) {
        std::uint32_t e = find(chain[i]);
        if (e != kNone) {
            unlink(e);
        } else {
            if ((live_ + 1) * 2 > table_.size()) grow();
            if (free_.empty()) {
                e = static_cast<std::uint32_t>(entries_.size());
                entries_.emplace_back();
            } else {
                e = free_.back();
                free_.pop_back();
            }
            entries_[e].id = chain[i];
            index_insert(chain[i], e);
            ++live_;
            stored.push_back(chain[i]);
        }
        push_front(e, first_tier_);
    }
    overflow(removed);
}

void TieredCache::clear() {
    entries_.clear();
    free_.clear();
    lists_ = {};
    table_.assign(16, 0);
    live_ = 0;
}

}  // namespace nereid::sim
