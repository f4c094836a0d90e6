// Subtask: a Task<void> that runs beside the coroutine that started it, which may wait for its end,
// and that anybody on the loop may cut short. How a request is ended from outside: cancel()
// destroys the frames of the request where they wait, and with them its Session or its upstream
// connection, so that there is one way to abort and it cannot be forgotten.
//
// Loop thread only. cancel() and the destructor not from the task's own stack (post them).
#pragma once

#include <coroutine>
#include <utility>

#include "base/check.h"
#include "io/task.h"

namespace nereid::gateway {

class Subtask {
  public:
    Subtask() = default;
    Subtask(const Subtask&) = delete;
    Subtask& operator=(const Subtask&) = delete;
    ~Subtask() { destroy(); }

    // Runs `task` on the caller's stack until it first waits. Precondition: not running.
    void start(io::Task<void> task) {
        CHECK(!running());
        destroy();
        cancelled_ = false;
        h_ = task.release();
        h_.resume();
    }
    bool running() const { return h_ && !h_.done(); }

    // Resumes the joiner on the caller's stack. Does nothing when the task has ended.
    void cancel() {
        if (!running()) return;
        destroy();
        cancelled_ = true;
        if (joiner_) std::exchange(joiner_, {}).resume();
    }

    struct Join {
        Subtask& task;
        explicit Join(Subtask& t) : task(t) {}
        Join(const Join&) = delete;
        Join& operator=(const Join&) = delete;
        ~Join() {
            if (!task.joiner_) return;
            task.joiner_ = {};
            if (task.running()) task.h_.promise().continuation = std::noop_coroutine();
        }
        bool await_ready() const { return !task.running(); }
        void await_suspend(std::coroutine_handle<> h) {
            CHECK(!task.joiner_);
            task.joiner_ = h;
            task.h_.promise().continuation = h;
        }
        bool await_resume() {
            task.joiner_ = {};
            return !task.cancelled_;
        }
    };
    // true: the task ended by itself; false: it was cancelled. One joiner at a time.
    Join join() { return Join(*this); }

  private:
    void destroy() {
        if (h_) std::exchange(h_, {}).destroy();
    }
    io::Task<void>::Handle h_;
    std::coroutine_handle<> joiner_;
    bool cancelled_ = false;
};

}  // namespace nereid::gateway
