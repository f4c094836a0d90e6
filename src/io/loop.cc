#include "io/loop.h"

#include <memory>
#include <utility>

#include "base/check.h"

namespace nereid::io {

// The root coroutine of a spawned task: its promise is the node in the loop's list. It starts at
// once and its frame goes when it ends, so that nobody has to collect it.
struct Loop::Spawned {
    Loop& loop;
    Spawned* previous = nullptr;
    Spawned* next = nullptr;
    std::coroutine_handle<> frame;

    explicit Spawned(Loop& l) : loop(l), next(l.tasks_) {
        if (next != nullptr) next->previous = this;
        loop.tasks_ = this;
        ++loop.live_;
    }
    ~Spawned() {
        (previous != nullptr ? previous->next : loop.tasks_) = next;
        if (next != nullptr) next->previous = previous;
        --loop.live_;
    }
    Spawned(const Spawned&) = delete;
    Spawned& operator=(const Spawned&) = delete;

    struct Root;
    static Root run(Loop& loop, Task<void> task);
};

struct Loop::Spawned::Root {
    struct promise_type : Spawned {
        promise_type(Loop& l, Task<void>&) : Spawned(l) {}
        Root get_return_object() {
            frame = std::coroutine_handle<promise_type>::from_promise(*this);
            return {};
        }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const {}
        [[noreturn]] void unhandled_exception() const noexcept {
            check_failed(__FILE__, __LINE__, "no exception leaves a task", {});
        }
    };
};

Loop::Spawned::Root Loop::Spawned::run(Loop&, Task<void> task) { co_await std::move(task); }

void Loop::spawn(Task<void> task) {
    CHECK(on_loop_thread());
    CHECK_MSG(task.valid(), "spawn of a task that was moved from");
    Spawned::run(*this, std::move(task));
}

void Loop::destroy_tasks() {
    // Newest first: what a task uses was usually there before it. A task's destructors may spawn,
    // hence the loop.
    while (tasks_ != nullptr) tasks_->frame.destroy();
}

namespace {

// Both awaiters unregister in their destructor: the coroutine may be destroyed while it waits.
struct Sleep {
    Loop& loop;
    TimePoint at;
    Loop::TimerId timer = 0;

    Sleep(Loop& l, TimePoint t) : loop(l), at(t) {}
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;
    ~Sleep() {
        if (timer != 0) loop.cancel(timer);
    }
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> h) {
        if (at == TimePoint::never()) return;  // only destruction ends it
        timer = loop.arm(at, [this, h] {
            timer = 0;
            h.resume();
        });
    }
    void await_resume() const {}
};

struct Yield {
    Loop& loop;
    std::shared_ptr<std::coroutine_handle<>> waiter;

    explicit Yield(Loop& l) : loop(l) {}
    Yield(const Yield&) = delete;
    Yield& operator=(const Yield&) = delete;
    ~Yield() {
        if (waiter) *waiter = {};
    }
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> h) {
        waiter = std::make_shared<std::coroutine_handle<>>(h);
        loop.post([w = waiter] {
            if (*w) std::exchange(*w, {}).resume();
        });
    }
    void await_resume() const {}
};

}  // namespace

Task<void> Loop::sleep_until(TimePoint at) { co_await Sleep(*this, at); }
Task<void> Loop::yield() { co_await Yield(*this); }

}  // namespace nereid::io
