#include "kv/tier/policy.h"

#include <algorithm>

#include "base/check.h"

namespace nereid::kv {
namespace {

constexpr std::size_t kWays = 8;
constexpr std::uint8_t kMaxUses = 3;
constexpr std::uint8_t kSmall = 1;
constexpr std::uint8_t kMain = 2;

std::uint32_t tenth(std::uint32_t n) { return std::max<std::uint32_t>(1, n / 10); }

}  // namespace

// ---------------------------------------------------------------- ghosts

// A name may lie in two buckets: with one, some two in a hundred names would be pushed out before
// their time, and a block forgotten in the middle of a prefix costs all behind it.
std::array<std::span<GhostNames::Entry>, 2> GhostNames::buckets(std::uint64_t name) {
    const std::uint64_t h = name * 0x9e3779b97f4a7c15ULL;
    const std::size_t count = entries_.size() / kWays;
    const auto at = [&](std::uint64_t hash) {
        return std::span(entries_).subspan(static_cast<std::size_t>(hash) % count * kWays, kWays);
    };
    return {at(h >> 32), at(h & 0xffffffff)};
}

// The entry that a new name takes: its own, a free one of the emptier bucket, or the oldest.
GhostNames::Entry& GhostNames::place_for(std::uint64_t name, std::uint32_t window) {
    Entry* best = nullptr;
    std::size_t most_free = 0;
    for (const std::span<Entry> bucket : buckets(name)) {
        std::size_t free = 0;
        Entry* mine = &bucket[0];
        for (Entry& e : bucket) {
            if (e.used && e.name == name) return e;
            const bool gone = !e.used || clock_ - e.at >= window;
            free += gone ? 1 : 0;
            if (gone || (mine->used && clock_ - e.at > clock_ - mine->at)) mine = &e;
        }
        const bool older = best == nullptr || clock_ - mine->at > clock_ - best->at;
        if (best == nullptr || free > most_free || (free == 0 && most_free == 0 && older)) {
            best = mine;
            most_free = free;
        }
    }
    return *best;
}

void GhostNames::grow(std::uint32_t window) {
    std::vector<Entry> old(std::max<std::size_t>(64, entries_.size() * 2));
    std::swap(old, entries_);
    for (const Entry& e : old) {
        if (e.used) place_for(e.name, window) = e;
    }
}

void GhostNames::insert(std::uint64_t name, std::uint32_t window) {
    while (entries_.size() < std::size_t{window} * 2 || entries_.empty()) grow(window);
    ++clock_;
    place_for(name, window) = {name, clock_, true};
}

bool GhostNames::take(std::uint64_t name, std::uint32_t window) {
    if (entries_.empty()) return false;
    for (const std::span<Entry> bucket : buckets(name)) {
        for (Entry& e : bucket) {
            if (!e.used || e.name != name) continue;
            e.used = false;
            return clock_ - e.at < window;
        }
    }
    return false;
}

// ---------------------------------------------------------------- queues

void S3Fifo::push(Queue& q, std::uint8_t number, std::uint32_t id) {
    auto& n = (*nodes_)[id];
    n.queue = number;
    n.before = q.newest;
    n.after = kNobody;
    (q.newest == kNobody ? q.oldest : (*nodes_)[q.newest].after) = id;
    q.newest = id;
    ++q.count;
}

void S3Fifo::unlink(std::uint32_t id) {
    auto& n = (*nodes_)[id];
    CHECK(n.queue == kSmall || n.queue == kMain);
    Queue& q = n.queue == kSmall ? small_ : main_;
    (n.before == kNobody ? q.oldest : (*nodes_)[n.before].after) = n.after;
    (n.after == kNobody ? q.newest : (*nodes_)[n.after].before) = n.before;
    --q.count;
    n.queue = 0;
}

std::uint32_t S3Fifo::ghost_window() const {
    const std::uint32_t n = size();
    return n - std::min(n, tenth(n));
}

void S3Fifo::insert(std::uint32_t id, std::uint64_t name) {
    (*nodes_)[id].uses = 0;
    if (ghosts_.take(name, ghost_window())) {
        push(main_, kMain, id);
    } else {
        push(small_, kSmall, id);
    }
}

void S3Fifo::touch(std::uint32_t id) {
    auto& n = (*nodes_)[id];
    n.uses = std::min<std::uint8_t>(kMaxUses, static_cast<std::uint8_t>(n.uses + 1));
}

void S3Fifo::remove(std::uint32_t id) { unlink(id); }

void S3Fifo::evict(std::uint32_t id, std::uint64_t name) {
    const bool early = (*nodes_)[id].queue == kSmall;
    const std::uint32_t window = ghost_window();
    unlink(id);
    if (early) ghosts_.insert(name, window);
}

std::optional<std::uint32_t> S3Fifo::from_small(const std::function<bool(std::uint32_t)>& may_go) {
    std::uint32_t held = 0;
    for (std::uint32_t left = small_.count; left > 0 && held < kHeldBack; --left) {
        const std::uint32_t id = small_.oldest;
        auto& n = (*nodes_)[id];
        if (n.uses > 0) {
            unlink(id);
            n.uses = 0;
            push(main_, kMain, id);
        } else if (may_go(id)) {
            return id;
        } else {
            ++held;
            unlink(id);
            push(small_, kSmall, id);
        }
    }
    return std::nullopt;
}

std::optional<std::uint32_t> S3Fifo::from_main(const std::function<bool(std::uint32_t)>& may_go) {
    // Each pass takes one use from each; what is held back only turns.
    std::uint32_t held = 0;
    for (std::uint64_t left = (kMaxUses + 1ULL) * main_.count; left > 0 && held < kHeldBack;
         --left) {
        const std::uint32_t id = main_.oldest;
        auto& n = (*nodes_)[id];
        if (n.uses == 0 && may_go(id)) return id;
        if (n.uses > 0) {
            --n.uses;
        } else {
            ++held;
        }
        unlink(id);
        push(main_, kMain, id);
    }
    return std::nullopt;
}

std::optional<std::uint32_t> S3Fifo::victim(const std::function<bool(std::uint32_t)>& may_go) {
    if (small_.count >= tenth(size()) || main_.count == 0) {
        if (const auto id = from_small(may_go)) return id;
    }
    if (const auto id = from_main(may_go)) return id;
    return from_small(may_go);  // the main queue is held back as a whole
}

}  // namespace nereid::kv
