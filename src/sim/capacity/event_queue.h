// EventQueue: the simulator's future, in a total order.
//
// Events are ordered by (time, order of pushing): two events of one nanosecond run in the order in
// which they were scheduled, so a run is a function of its seed alone. Times are integer
// nanoseconds from the start of the run. A 4-ary heap of 32-byte entries; push and pop cost
// O(log n), about 40 ns at 100 k pending events.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace nereid::sim {

using Nanos = std::int64_t;  // simulated time, or a length of it

inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

constexpr double to_millis(Nanos t) { return static_cast<double>(t) / 1e6; }
// Rounds half up; the only way a cost in milliseconds becomes time.
inline Nanos from_millis(double ms) { return static_cast<Nanos>(std::floor(ms * 1e6 + 0.5)); }
inline Nanos scaled(Nanos t, double by) { return by == 1 ? t : from_millis(to_millis(t) * by); }

template <class Payload>
class EventQueue {
  public:
    struct Entry {
        Nanos at;
        std::uint64_t order;
        Payload payload;
    };

    bool empty() const { return heap_.empty(); }
    std::size_t size() const { return heap_.size(); }
    Nanos next_time() const { return heap_.front().at; }
    std::uint64_t pushed() const { return next_order_; }

    void push(Nanos at, Payload payload) {
        heap_.push_back({at, next_order_++, payload});
        sift_up(heap_.size() - 1);
    }

    // Precondition: not empty.
    Entry pop() {
        CHECK(!heap_.empty());
        const Entry top = heap_.front();
        heap_.front() = heap_.back();
        heap_.pop_back();
        if (!heap_.empty()) sift_down(0);
        return top;
    }

  private:
    static constexpr std::size_t kArity = 4;

    static bool before(const Entry& a, const Entry& b) {
        return a.at != b.at ? a.at < b.at : a.order < b.order;
    }

    void sift_up(std::size_t i) {
        const Entry moving = heap_[i];
        while (i > 0) {
            const std::size_t parent = (i - 1) / kArity;
            if (!before(moving, heap_[parent])) break;
            heap_[i] = heap_[parent];
            i = parent;
        }
        heap_[i] = moving;
    }

    void sift_down(std::size_t i) {
        const Entry moving = heap_[i];
        for (;;) {
            const std::size_t first = i * kArity + 1;
            if (first >= heap_.size()) break;
            const std::size_t last = first + kArity < heap_.size() ? first + kArity : heap_.size();
            std::size_t best = first;
            for (std::size_t k = first + 1; k < last; ++k)
                if (before(heap_[k], heap_[best])) best = k;
            if (!before(heap_[best], moving)) break;
            heap_[i] = heap_[best];
            i = best;
        }
        heap_[i] = moving;
    }

    std::vector<Entry> heap_;
    std::uint64_t next_order_ = 0;
};

}  // namespace nereid::sim
