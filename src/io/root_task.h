// RootTask: a Task<void> that its owner starts and that is destroyed with its owner, where
// Loop::spawn gives the task to the loop. Signal: one coroutine waits for notify() or a deadline.
//
// Loop thread only. A RootTask may be reset while its task waits, not while the task runs.
#pragma once

#include <coroutine>
#include <utility>

#include "base/check.h"
#include "io/loop.h"
#include "io/task.h"

namespace nereid::io {

class RootTask {
  public:
    RootTask() = default;
    RootTask(const RootTask&) = delete;
    RootTask& operator=(const RootTask&) = delete;
    ~RootTask() { reset(); }

    // Runs `task` on the caller's stack until it first waits.
    void start(Task<void> task) {
        reset();
        h_ = run(std::move(task)).h;
        h_.resume();
    }
    bool running() const { return h_ && !h_.done(); }
    void reset() {
        if (h_) std::exchange(h_, {}).destroy();
    }

  private:
    struct Root {
        struct promise_type {
            Root get_return_object() {
                return {std::coroutine_handle<promise_type>::from_promise(*this)};
            }
            std::suspend_always initial_suspend() const noexcept { return {}; }
            std::suspend_always final_suspend() const noexcept { return {}; }
            void return_void() const {}
            [[noreturn]] void unhandled_exception() const noexcept {
                check_failed("io/root_task.h", 0, "no exception leaves a coroutine", {});
            }
        };
        std::coroutine_handle<promise_type> h;
    };
    static Root run(Task<void> task) { co_await std::move(task); }

    std::coroutine_handle<Root::promise_type> h_;
};

class Signal {
  public:
    explicit Signal(Loop& loop) : loop_(loop) {}
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    ~Signal() { disarm(); }

    // Resumes the waiter, if any, on the caller's stack; otherwise remembered for the next wait.
    void notify() {
        notified_ = true;
        resume();
    }

    class Wait {
      public:
        Wait(Signal& s, TimePoint d) : signal_(s), deadline_(d) {}
        Wait(const Wait&) = delete;
        Wait& operator=(const Wait&) = delete;
        ~Wait() {  // also of a coroutine that is destroyed while it waits
            if (!waiting_) return;
            signal_.waiter_ = {};
            signal_.disarm();
        }
        bool await_ready() const { return signal_.notified_; }
        void await_suspend(std::coroutine_handle<> h) {
            CHECK(!signal_.waiter_);
            signal_.waiter_ = h;
            waiting_ = true;
            if (deadline_ == TimePoint::never()) return;
            signal_.timer_ = signal_.loop_.arm(deadline_, [s = &signal_] {
                s->timer_ = 0;
                s->resume();
            });
        }
        bool await_resume() {
            waiting_ = false;
            signal_.disarm();
            return std::exchange(signal_.notified_, false);
        }

      private:
        Signal& signal_;
        TimePoint deadline_;
        bool waiting_ = false;
    };
    // true: notified; false: the deadline passed. One waiter. The signal must outlive the wait.
    Wait wait(TimePoint deadline = TimePoint::never()) { return Wait(*this, deadline); }

  private:
    void resume() {
        if (waiter_) std::exchange(waiter_, {}).resume();
    }
    void disarm() {
        if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
    }
    Loop& loop_;
    std::coroutine_handle<> waiter_;
    Loop::TimerId timer_ = 0;
    bool notified_ = false;
};

}  // namespace nereid::io
