// Clock and Loop: one thread of events. Everything that waits in Nereid waits on a Loop.
//
// Two implementations: RealLoop (io/real_loop.h: Boost.Asio on epoll, one per core) and SimLoop
// (io/sim_loop.h: single-threaded, virtual time, seeded order of ready work). A shell that is
// written against Loop, Stream, Disk, Rpc and Process alone runs in both.
//
// Threads: post() may be called from any thread; everything else only on the loop's own thread
// (CHECKed in debug). Queues: post is unbounded; callers bound what they post.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/units.h"
#include "io/task.h"

namespace nereid::io {

class Clock {
  public:
    virtual ~Clock() = default;
    virtual TimePoint now() const = 0;  // monotonic; about 25 ns
    virtual WallTime wall_now() const = 0;
};

class Loop : public Clock {
  public:
    using Fn = std::move_only_function<void()>;
    using TimerId = std::uint64_t;  // 0 is never a timer

    // Runs `fn` on the loop, after what is ready now. Any thread.
    virtual void post(Fn fn) = 0;
    // Runs `fn` at or after `at`. At most once. cancel() of a timer that has fired or is unknown
    // does nothing.
    virtual TimerId arm(TimePoint at, Fn fn) = 0;
    virtual void cancel(TimerId id) = 0;
    virtual bool on_loop_thread() const = 0;

    // Starts a task at once, on the caller's stack until its first suspension; the loop owns it
    // until it ends. Tasks that have not ended when the loop is destroyed are destroyed with it.
    // Loop thread only.
    void spawn(Task<void> task);
    // Number of spawned tasks that have not ended (tests assert 0).
    std::size_t live_tasks() const { return live_; }

    // co_await loop.sleep_until(t)
    Task<void> sleep_until(TimePoint at);
    Task<void> sleep_for(Duration d) { return sleep_until(now() + d); }
    // co_await loop.yield(): lets other ready work run.
    Task<void> yield();

  protected:
    // Implementations call it first in their destructor, while the loop still works.
    void destroy_tasks();

  private:
    struct Spawned;
    std::size_t live_ = 0;
    Spawned* tasks_ = nullptr;  // intrusive list of running root tasks
};

}  // namespace nereid::io
