// RealLoop: the loop of production, one thread, epoll; and LoopThreads, one loop per core.
//
// Why not Asio's io_context: its reactor hides EPOLLRDHUP, so a client that goes away while we
// compute could only be found by polling; and each of its waits costs an epoll_ctl and a recv that
// fails (README.md has the figures). Here a descriptor is registered once, edge-triggered, and a
// wait is a pointer store. Files that use a loop do not see the difference, and compile 10 s
// faster.
//
// One turn: what epoll reports, then due timers, then what had been posted until then. Posted work
// never starves I/O, and I/O that never blocks (a peer that floods) is cut by a budget per callback
// (take_budget).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "io/loop.h"
#include "io/timer_heap.h"

struct epoll_event;

namespace nereid::io {

class FdWatch;

class RealLoop final : public Loop {
  public:
    // Belongs to the thread that makes it until another calls run().
    RealLoop();
    // Destroys what was spawned and drops what was posted. Streams and the like must be gone or
    // owned by those.
    ~RealLoop() override;
    RealLoop(const RealLoop&) = delete;
    RealLoop& operator=(const RealLoop&) = delete;

    TimePoint now() const override;  // CLOCK_MONOTONIC
    WallTime wall_now() const override;
    void post(Fn fn) override;
    TimerId arm(TimePoint at, Fn fn) override;
    void cancel(TimerId id) override;
    bool on_loop_thread() const override;

    // Runs until stop(); blocks. The calling thread is the loop's from then on. May be called again
    // after stop().
    void run();
    // run() returns after the current turn. Any thread. Sticky: a stop() before run() makes run()
    // return at once.
    void stop();
    // Turns until `done` (asked after each turn) or `limit`. For tests and for short-lived
    // programs. True when done.
    bool run_until(const std::function<bool()>& done, Duration limit);

    // For code that tries a system call before it waits: true at most kBudget times per callback,
    // then false: the caller has to go through post() so that others get a turn.
    bool take_budget() {
        if (budget_ == 0) return false;
        --budget_;
        return true;
    }

    std::size_t timers() const { return timers_.size(); }

  private:
    friend class FdWatch;
    static constexpr int kBudget = 64;

    void adopt_thread();
    void turn(TimePoint wake_by);
    void drain_inbox();
    void run_ready();
    void poll(Duration timeout);

    int epoll_ = -1;
    int wakeup_ = -1;  // eventfd
    std::atomic<const void*> owner_{nullptr};
    std::atomic<bool> stopping_{false};
    int budget_ = kBudget;

    TimerHeap timers_;
    std::deque<Fn> ready_;
    std::mutex inbox_mutex_;
    std::vector<Fn> inbox_;  // guarded by inbox_mutex_

    // Events of the running epoll batch that are not yet dispatched: a watch that goes away is
    // taken out of them.
    std::span<epoll_event> batch_;
};

// A descriptor on a RealLoop, edge-triggered: `on_events` gets EPOLL* bits and may destroy the
// watch. The descriptor is not owned and must be non-blocking and stay open. For the real
// implementations and for drivers that bring a socket of their own (libpq, hiredis).
class FdWatch {
  public:
    using OnEvents = std::move_only_function<void(std::uint32_t)>;
    // EPOLLET is always set. CHECKs that the kernel takes the descriptor.
    FdWatch(RealLoop& loop, int fd, std::uint32_t events, OnEvents on_events);
    ~FdWatch();
    FdWatch(const FdWatch&) = delete;
    FdWatch& operator=(const FdWatch&) = delete;

  private:
    friend class RealLoop;
    RealLoop& loop_;
    int fd_;
    std::unique_ptr<OnEvents>
        on_events_;  // outlives a watch that is destroyed inside its own callback
    bool* destroyed_ = nullptr;
};

// Calls `fn(number)` on the loop for each arrival of one of `numbers`, and ignores SIGPIPE. One per
// process; arrivals of the same number may be merged. The former dispositions come back when it is
// destroyed.
class SignalWatch {
  public:
    SignalWatch(RealLoop& loop, std::initializer_list<int> numbers, std::function<void(int)> fn);
    ~SignalWatch();
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// `count` loops, each run by a thread of its own named nereid-loop-<i>. What is put on a loop has
// to be put there with post(), and has to be gone (also by a post) before the destructor, which
// stops and joins all threads.
class LoopThreads {
  public:
    explicit LoopThreads(std::size_t count);
    ~LoopThreads();
    LoopThreads(const LoopThreads&) = delete;
    LoopThreads& operator=(const LoopThreads&) = delete;

    std::size_t size() const { return loops_.size(); }
    RealLoop& loop(std::size_t i) { return *loops_[i]; }
    // Runs `fn` on loop i's thread and waits until it has returned. Not from a loop's thread.
    void run_on(std::size_t i, std::move_only_function<void()> fn);

  private:
    std::vector<std::unique_ptr<RealLoop>> loops_;
    std::vector<std::thread> threads_;
};

}  // namespace nereid::io
