// Task<T>: a lazy coroutine with one awaiter, for the I/O shells. Decision rooms do not use it.
//
// A Task starts when it is awaited (or given to Loop::spawn) and resumes its awaiter by symmetric
// transfer, so that long chains do not grow the stack. A Task runs on one loop only; nothing here
// is thread-safe. Our code throws nothing: an exception that leaves a coroutine is a bug and aborts
// the process. Destroying a Task that is suspended destroys its frame; whatever it awaits must
// tolerate that (Stream, Channel and timers do: they unregister in the awaiter's destructor).
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"

namespace nereid::io {

template <class T>
class Task;

namespace detail {

struct PromiseBase {
    std::coroutine_handle<> continuation = std::noop_coroutine();
    struct Final {
        bool await_ready() const noexcept { return false; }
        template <class P>
        std::coroutine_handle<> await_suspend(std::coroutine_handle<P> h) const noexcept {
            return h.promise().continuation;
        }
        void await_resume() const noexcept {}
    };
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    [[noreturn]] void unhandled_exception() const noexcept {
        check_failed("io/task.h", 0, "no exception leaves a coroutine", {});
    }
};

template <class T>
struct Promise : PromiseBase {
    std::optional<T> value;
    Task<T> get_return_object();
    template <class U>
    void return_value(U&& v) {
        value.emplace(std::forward<U>(v));
    }
    T take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
    Task<void> get_return_object();
    void return_void() const {}
    void take() const {}
};

}  // namespace detail

template <class T = void>
class [[nodiscard]] Task {
  public:
    using promise_type = detail::Promise<T>;
    using Handle = std::coroutine_handle<promise_type>;

    Task() = default;
    explicit Task(Handle h) : h_(h) {}
    Task(Task&& o) noexcept : h_(std::exchange(o.h_, {})) {}
    Task& operator=(Task&& o) noexcept {
        if (this != &o) {
            reset();
            h_ = std::exchange(o.h_, {});
        }
        return *this;
    }
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    ~Task() { reset(); }

    bool valid() const { return static_cast<bool>(h_); }
    Handle release() { return std::exchange(h_, {}); }

    auto operator co_await() && noexcept {
        struct Awaiter {
            Handle h;
            bool await_ready() const noexcept { return !h || h.done(); }
            std::coroutine_handle<> await_suspend(std::coroutine_handle<> c) noexcept {
                h.promise().continuation = c;
                return h;
            }
            T await_resume() { return h.promise().take(); }
        };
        return Awaiter{h_};
    }

  private:
    void reset() {
        if (h_) h_.destroy();
        h_ = {};
    }
    Handle h_;
};

namespace detail {
template <class T>
Task<T> Promise<T>::get_return_object() {
    return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
    return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}
}  // namespace detail

}  // namespace nereid::io
