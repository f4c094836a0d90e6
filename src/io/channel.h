// Channel<T>: a queue with one consumer that waits, on one loop. The way from callbacks and other requests into a
// coroutine.
//
// push() and close() on the loop's thread only (from elsewhere: loop.post). The queue is bounded by `capacity`;
// push() returns false when it is full and the item is dropped: the caller decides what that means.
// pop() returns the next item; after close() the rest of the queue, then kCancelled; kDeadlineExceeded when the
// deadline passes first (the channel stays usable). Only one pop at a time.
#pragma once

#include <coroutine>
#include <cstddef>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "io/loop.h"

namespace nereid::io {

template <class T>
class Channel {
  public:
    Channel(Loop& loop, std::size_t capacity) : loop_(loop), capacity_(capacity) {}
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel() { if (timer_ != 0) loop_.cancel(timer_); }

    bool push(T item) {
        if (closed_ || queue_.size() >= capacity_) return false;
        queue_.push_back(std::move(item));
        wake();
        return true;
    }
    void close() {
        closed_ = true;
        wake();
    }
    bool closed() const { return closed_; }
    std::size_t size() const { return queue_.size(); }

    struct Pop {
        Channel& ch;
        TimePoint deadline;
        bool await_ready() const { return !ch.queue_.empty() || ch.closed_; }
        void await_suspend(std::coroutine_handle<> h) {
            CHECK(!ch.waiter_);
            ch.waiter_ = h;
            ch.timed_out_ = false;
            if (deadline != TimePoint::never()) {
                ch.timer_ = ch.loop_.arm(deadline, [c = &ch] {
                    c->timer_ = 0;
                    c->timed_out_ = true;
                    if (c->waiter_) std::exchange(c->waiter_, {}).resume();
                });
            }
        }
        Result<T> await_resume() {
            if (ch.timer_ != 0) ch.loop_.cancel(std::exchange(ch.timer_, 0));
            if (!ch.queue_.empty()) {
                T item = std::move(ch.queue_.front());
                ch.queue_.pop_front();
                return item;
            }
            if (ch.closed_) return Error{Code::kCancelled, "channel closed"};
            CHECK(ch.timed_out_);
            return Error{Code::kDeadlineExceeded, "nothing arrived before the deadline"};
        }
        ~Pop() {
            // The awaiting coroutine was destroyed while suspended.
            if (ch.waiter_) { ch.waiter_ = {}; if (ch.timer_ != 0) ch.loop_.cancel(std::exchange(ch.timer_, 0)); }
        }
    };
    Pop pop(TimePoint deadline = TimePoint::never()) { return Pop{*this, deadline}; }

  private:
    void wake() {
        if (!waiter_) return;
        // Resumed from the loop, never from inside push: the pusher's state is then consistent.
        if (wake_posted_) return;
        wake_posted_ = true;
        loop_.post([this, alive = std::weak_ptr<int>(alive_)] {
            if (alive.expired()) return;
            wake_posted_ = false;
            if (waiter_ && (!queue_.empty() || closed_)) std::exchange(waiter_, {}).resume();
        });
    }

    Loop& loop_;
    std::size_t capacity_;
    std::deque<T> queue_;
    std::coroutine_handle<> waiter_;
    Loop::TimerId timer_ = 0;
    bool closed_ = false;
    bool timed_out_ = false;
    bool wake_posted_ = false;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace nereid::io
