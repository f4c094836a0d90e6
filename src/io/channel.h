// Channel<T>: a queue with one consumer that waits, on one loop. The way from callbacks and other
// requests into a coroutine.
//
// push() and close() on the loop's thread only (from elsewhere: loop.post). The queue is bounded by
// `capacity`; push() returns false when it is full or closed and the item is dropped: the caller
// decides what that means. pop() returns the next item; after close() the rest of the queue, then
// kCancelled; kDeadlineExceeded when the deadline passes first (the channel stays usable). Only one
// pop at a time. The consumer is resumed from the loop, never from inside push(): the pusher's
// state is then consistent. Destroying the channel closes it; a consumer that waits in it gets
// kCancelled.
#pragma once

#include <coroutine>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "io/loop.h"
#include "io/waiter.h"

namespace nereid::io {

template <class T>
class Channel {
    struct State {
        explicit State(Loop& l) : loop(l), waiter(l) {}
        Loop& loop;
        std::deque<T> queue;
        Waiter waiter;
        bool closed = false;
    };

  public:
    Channel(Loop& loop, std::size_t capacity)
        : state_(std::make_shared<State>(loop)), capacity_(capacity) {}
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel() { close(); }

    bool push(T item) {
        CHECK(state_->loop.on_loop_thread());
        if (state_->closed || state_->queue.size() >= capacity_) return false;
        state_->queue.push_back(std::move(item));
        state_->waiter.wake_later(Wake::kEvent, state_);
        return true;
    }
    void close() {
        state_->closed = true;
        state_->waiter.wake_later(Wake::kEvent, state_);
    }
    bool closed() const { return state_->closed; }
    std::size_t size() const { return state_->queue.size(); }

    class Pop {
      public:
        Pop(std::shared_ptr<State> state, TimePoint deadline)
            : state_(std::move(state)), deadline_(deadline) {}
        bool await_ready() const { return !state_->queue.empty() || state_->closed; }
        void await_suspend(std::coroutine_handle<> h) {
            wait_.emplace(state_->waiter, deadline_);
            wait_->await_suspend(h);
        }
        Result<T> await_resume() {
            if (!state_->queue.empty()) {
                Result<T> item(std::move(state_->queue.front()));
                state_->queue.pop_front();
                return item;
            }
            if (state_->closed) return Error{Code::kCancelled, "channel closed"};
            CHECK(wait_ && wait_->await_resume() == Wake::kDeadline);
            return Error{Code::kDeadlineExceeded, "nothing arrived before the deadline"};
        }

      private:
        std::shared_ptr<State> state_;
        TimePoint deadline_;
        std::optional<Waiter::Awaiter> wait_;  // gone before the state that it points into
    };
    // co_await channel.pop(deadline) -> Result<T>
    Pop pop(TimePoint deadline = TimePoint::never()) { return Pop(state_, deadline); }

  private:
    std::shared_ptr<State> state_;
    std::size_t capacity_;
};

}  // namespace nereid::io
