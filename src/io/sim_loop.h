// SimScheduler and SimLoop: any number of loops in one thread under virtual time. Each SimLoop
// stands for one process (or one core) of a simulated cluster.
//
// Order: what was posted to one loop runs in the order of the posts, as on a real one; which loop
// runs next, and which of several timers due at one instant fires first, is drawn from the seed.
// Time moves only when nothing is ready. The same seed and the same program give the same trace
// hash: a bug report is `commit + seed`.
//
// Killing a process = destroying its objects and its SimLoop between two steps, or from a callback
// of another loop by victim.run_as([&] { ... }). Not thread-safe; nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "io/loop.h"
#include "io/timer_heap.h"

namespace nereid::io {

class SimLoop;

enum class SimEnd : std::uint8_t {
    kDone,     // the condition holds
    kLimit,    // virtual time is up
    kStalled,  // nothing is ready and no timer is armed: what is waited for can never come (a
               // deadlock)
};

class SimScheduler {
  public:
    explicit SimScheduler(std::uint64_t seed);
    ~SimScheduler();  // its loops are gone by then
    SimScheduler(const SimScheduler&) = delete;
    SimScheduler& operator=(const SimScheduler&) = delete;

    TimePoint now() const { return now_; }
    // One callback, or one move of the clock. False when there is nothing to do.
    bool step();
    // Until `done` (asked after each step), or until `limit` of virtual time has passed, or nothing
    // is left.
    SimEnd run_until(const std::function<bool()>& done, Duration limit);
    // Until nothing is ready and no timer is armed (kStalled, the aim here), at most `limit`
    // (kLimit).
    SimEnd run_until_idle(Duration limit = 24h);
    // Exactly `d` of virtual time, whether anything happens or not.
    void run_for(Duration d);

    // An independent stream of random numbers for a part of the simulated world.
    Prng fork_rng() { return rng_.fork(); }
    // Everything that was run so far, in order, with its time; and what was noted.
    std::uint64_t trace_hash() const { return trace_; }
    void note(std::string_view what);
    std::uint64_t steps() const { return steps_; }

    // For the other parts of the simulated world: runs `fn` on a loop at a time; nothing when that
    // loop has gone.
    void at(std::uint64_t loop_id, TimePoint when, Loop::Fn fn);

  private:
    friend class SimLoop;
    struct Lane {
        std::deque<Loop::Fn> ready;
    };
    std::uint64_t add_lane();
    void remove_lane(std::uint64_t id);
    void post(std::uint64_t id, Loop::Fn fn);
    void run(std::uint64_t id, Loop::Fn& fn, char kind);
    void mix(std::uint64_t v);

    TimePoint now_{};
    Prng rng_;
    TimerHeap timers_;  // tag = lane
    std::map<std::uint64_t, Lane> lanes_;
    std::vector<std::uint64_t>
        ready_lanes_;  // those whose queue is not empty, in no particular order
    std::uint64_t next_lane_ = 1;
    std::uint64_t running_ = 0;  // lane of the running callback, 0 between steps
    std::uint64_t trace_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t steps_at_this_time_ = 0;
};

class SimLoop final : public Loop {
  public:
    explicit SimLoop(SimScheduler& scheduler);
    // Destroys its tasks, drops its posts and timers. Not from one of its own callbacks.
    ~SimLoop() override;
    SimLoop(const SimLoop&) = delete;
    SimLoop& operator=(const SimLoop&) = delete;

    TimePoint now() const override { return scheduler_.now(); }
    WallTime wall_now() const override;  // 2026-01-01T00:00:00Z + now()
    void post(Fn fn) override { scheduler_.post(id_, std::move(fn)); }
    TimerId arm(TimePoint at, Fn fn) override;
    void cancel(TimerId id) override { scheduler_.timers_.cancel(id); }
    // True between steps and in callbacks of this loop: code of one simulated process that touches
    // another is found.
    bool on_loop_thread() const override {
        return scheduler_.running_ == 0 || scheduler_.running_ == id_;
    }

    // Calls `fn` now as if it were a callback of this loop (not this loop's end: its destructor
    // does that by itself).
    void run_as(const std::function<void()>& fn);
    SimScheduler& scheduler() { return scheduler_; }
    std::uint64_t id() const { return id_; }

  private:
    SimScheduler& scheduler_;
    std::uint64_t id_;
};

}  // namespace nereid::io
