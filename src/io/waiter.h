// Waiter: the place where one coroutine waits for one kind of event, with a deadline; what the
// implementations of Stream, Process and Disk are made of.
//
// A waiter is a member of an object that the waiting coroutine keeps alive (by a shared_ptr in its
// frame). It may be destroyed only when nobody waits. A coroutine that is destroyed while it waits
// unregisters by itself. Loop thread only. Cost: no allocation; one timer when there is a deadline.
#pragma once

#include <coroutine>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "io/loop.h"

namespace nereid::io {

enum class Wake : std::uint8_t { kEvent, kDeadline, kCancelled };

class Waiter {
  public:
    explicit Waiter(Loop& loop) : loop_(loop) {}
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() { CHECK_MSG(now_ == nullptr, "an object went away while a coroutine waited in it"); }

    class Awaiter {
      public:
        Awaiter(Waiter& w, TimePoint deadline) : w_(w), deadline_(deadline) {}
        Awaiter(const Awaiter&) = delete;
        Awaiter& operator=(const Awaiter&) = delete;
        ~Awaiter() { leave(); }
        bool await_ready() const { return false; }
        void await_suspend(std::coroutine_handle<> h) {
            CHECK_MSG(w_.now_ == nullptr, "two operations of a kind on one object");
            w_.now_ = this;
            waiting_ = h;
            if (deadline_ != TimePoint::never()) {
                timer_ = w_.loop_.arm(deadline_, [this] {
                    timer_ = 0;
                    w_.wake(Wake::kDeadline);
                });
            }
        }
        Wake await_resume() const { return why_; }

      private:
        friend class Waiter;
        void leave() {
            if (w_.now_ == this) w_.now_ = nullptr;
            stop_timer();
        }
        void leave_and_resume() {
            const auto h = waiting_;
            leave();
            h.resume();
        }
        void stop_timer() {
            if (timer_ != 0) w_.loop_.cancel(std::exchange(timer_, 0));
        }
        Waiter& w_;
        TimePoint deadline_;
        std::coroutine_handle<> waiting_;
        Loop::TimerId timer_ = 0;
        Wake why_ = Wake::kEvent;
        bool decided_ = false;
    };

    // co_await waiter.wait(deadline) -> why it was woken.
    Awaiter wait(TimePoint deadline = TimePoint::never()) { return Awaiter(*this, deadline); }
    bool waiting() const { return now_ != nullptr; }

    // Resumes the waiting coroutine on the caller's stack; nothing when none waits. The object that
    // holds the waiter may be gone when it returns.
    void wake(Wake why) {
        if (now_ == nullptr || now_->decided_) return;
        now_->why_ = why;
        now_->leave_and_resume();
    }
    // The same from the loop's queue: for callers that are not ready to be called back. `owner`
    // keeps this alive.
    void wake_later(Wake why, std::shared_ptr<const void> owner) {
        if (now_ == nullptr || now_->decided_) return;
        now_->why_ = why;
        now_->decided_ = true;
        now_->stop_timer();
        loop_.post([this, owner = std::move(owner)] {
            // The decided one may have been destroyed meanwhile, and another may wait.
            if (now_ != nullptr && now_->decided_) now_->leave_and_resume();
        });
    }

  private:
    Loop& loop_;
    Awaiter* now_ = nullptr;
};

}  // namespace nereid::io
