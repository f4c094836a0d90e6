// TimerHeap: timers of one loop, in a binary heap that knows where each entry is, so that cancel()
// removes it at once.
//
// A server arms a deadline for nearly every wait and cancels nearly all of them long before they
// are due: a lazily cancelled heap would fill with corpses, a wheel needs a tick. Here arm and
// cancel are O(log n), in practice a step or two, since a new deadline is later than most. Equal
// times fire in the order of `tie` (the simulator draws it), then in the order in which they were
// armed. `tag` names who armed it, so that all of one owner can be cancelled (O(n)). Not
// thread-safe; the functions are run by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/units.h"

namespace nereid::io {

class TimerHeap {
  public:
    using Fn = std::move_only_function<void()>;
    using Id = std::uint64_t;  // slot in the low half, generation in the high half; never 0

    Id arm(TimePoint at, Fn fn, std::uint64_t tie = 0, std::uint64_t tag = 0) {
        std::uint32_t slot = 0;
        if (free_.empty()) {
            slot = static_cast<std::uint32_t>(slots_.size());
            slots_.emplace_back();
        } else {
            slot = free_.back();
            free_.pop_back();
        }
        slots_[slot].fn = std::move(fn);
        slots_[slot].tag = tag;
        slots_[slot].armed = true;
        heap_.push_back({at, tie, next_sequence_++, slot});
        sift_up(heap_.size() - 1);
        return (static_cast<Id>(slots_[slot].generation) << 32) | slot;
    }

    // Does nothing for a timer that has fired, was cancelled or never was. The function is
    // destroyed before it returns.
    void cancel(Id id) {
        const auto slot = static_cast<std::uint32_t>(id);
        if (slot >= slots_.size() || !slots_[slot].armed) return;
        if (slots_[slot].generation != static_cast<std::uint32_t>(id >> 32)) return;
        // Its destructor may arm and cancel: it runs when our state is whole again.
        const Fn doomed = release(slot);
    }

    void cancel_all(std::uint64_t tag) {
        for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
            if (slots_[slot].armed && slots_[slot].tag == tag) static_cast<void>(release(slot));
        }
    }

    bool empty() const { return heap_.empty(); }
    std::size_t size() const { return heap_.size(); }
    // never() when there is no timer.
    TimePoint next_at() const { return heap_.empty() ? TimePoint::never() : heap_[0].at; }

    // Precondition: not empty.
    std::uint64_t next_tag() const { return slots_[heap_[0].slot].tag; }
    // Precondition: not empty. Removes the earliest and returns its function.
    Fn pop() { return release(heap_[0].slot); }

  private:
    struct Entry {
        TimePoint at;
        std::uint64_t tie;
        std::uint64_t sequence;
        std::uint32_t slot;
        bool before(const Entry& o) const {
            if (at != o.at) return at < o.at;
            return tie != o.tie ? tie < o.tie : sequence < o.sequence;
        }
    };
    struct Slot {
        Fn fn;
        std::uint64_t tag = 0;
        bool armed = false;
        std::size_t position = 0;      // index in heap_
        std::uint32_t generation = 1;  // never 0, so an id is never 0
    };

    Fn release(std::uint32_t slot) {
        const std::size_t at = slots_[slot].position;
        const Entry last = heap_.back();
        heap_.pop_back();
        if (at < heap_.size()) {
            place(at, last);
            sift_up(at);
            sift_down(slots_[last.slot].position);
        }
        slots_[slot].armed = false;
        if (++slots_[slot].generation == 0) slots_[slot].generation = 1;
        free_.push_back(slot);
        return std::exchange(slots_[slot].fn, Fn{});
    }
    void place(std::size_t at, const Entry& e) {
        heap_[at] = e;
        slots_[e.slot].position = at;
    }
    void sift_up(std::size_t at) {
        const Entry e = heap_[at];
        while (at > 0 && e.before(heap_[(at - 1) / 2])) {
            place(at, heap_[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        place(at, e);
    }
    void sift_down(std::size_t at) {
        const Entry e = heap_[at];
        for (;;) {
            std::size_t child = 2 * at + 1;
            if (child >= heap_.size()) break;
            if (child + 1 < heap_.size() && heap_[child + 1].before(heap_[child])) ++child;
            if (!heap_[child].before(e)) break;
            place(at, heap_[child]);
            at = child;
        }
        place(at, e);
    }

    std::vector<Entry> heap_;
    std::vector<Slot> slots_;
    std::vector<std::uint32_t> free_;
    std::uint64_t next_sequence_ = 0;
};

}  // namespace nereid::io
