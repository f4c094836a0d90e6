#include "io/real_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace nereid::io {

namespace {

// A distinct address per thread: cheaper to compare than a thread id.
const void* this_thread() {
    static thread_local const char here = 0;
    return &here;
}

Duration read_clock(clockid_t which) {
    timespec t{};
    clock_gettime(which, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

}  // namespace

RealLoop::RealLoop() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wakeup_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK_MSG(epoll_ >= 0 && wakeup_ >= 0,
              "no descriptors left for an event loop: raise `ulimit -n`");
    epoll_event e{};
    e.events = EPOLLIN | EPOLLET;
    e.data.ptr = nullptr;  // nullptr = the wakeup
    CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, wakeup_, &e) == 0);
    adopt_thread();
}

RealLoop::~RealLoop() {
    adopt_thread();
    destroy_tasks();
    // What was posted may own things whose destructors post or arm again.
    for (;;) {
        drain_inbox();
        if (ready_.empty() && timers_.empty()) break;
        auto doomed = std::exchange(ready_, {});
        if (!timers_.empty()) doomed.push_back(timers_.pop());
    }
    close(wakeup_);
    close(epoll_);
}

TimePoint RealLoop::now() const { return {read_clock(CLOCK_MONOTONIC)}; }
WallTime RealLoop::wall_now() const { return {read_clock(CLOCK_REALTIME)}; }

void RealLoop::adopt_thread() { owner_.store(this_thread(), std::memory_order_relaxed); }
bool RealLoop::on_loop_thread() const {
    return owner_.load(std::memory_order_relaxed) == this_thread();
}

void RealLoop::post(Fn fn) {
    if (on_loop_thread()) {
        ready_.push_back(std::move(fn));
        return;
    }
    bool was_empty = false;
    {
        const std::lock_guard lock(inbox_mutex_);
        was_empty = inbox_.empty();
        inbox_.push_back(std::move(fn));
    }
    if (was_empty) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto n = write(wakeup_, &one, sizeof one);  // full = awake anyway
    }
}

Loop::TimerId RealLoop::arm(TimePoint at, Fn fn) {
    CHECK(on_loop_thread());
    return timers_.arm(at, std::move(fn));
}

void RealLoop::cancel(TimerId id) {
    CHECK(on_loop_thread());
    timers_.cancel(id);
}

void RealLoop::run() {
    adopt_thread();
    while (!stopping_.load(std::memory_order_acquire)) turn(TimePoint::never());
    stopping_.store(false, std::memory_order_relaxed);
}

void RealLoop::stop() {
    stopping_.store(true, std::memory_order_release);
    post([] {});
}

bool RealLoop::run_until(const std::function<bool()>& done, Duration limit) {
    adopt_thread();
    const TimePoint end = now() + limit;
    for (;;) {
        if (done()) return true;
        if (now() >= end) return false;
        turn(end);
    }
}

// I/O first, so that the caller looks at its condition before the next wait.
void RealLoop::turn(TimePoint wake_by) {
    drain_inbox();
    Duration timeout{0};
    if (ready_.empty() && !stopping_.load(std::memory_order_acquire)) {
        const TimePoint next = std::min(timers_.next_at(), wake_by);
        timeout = next == TimePoint::never() ? Duration{-1} : std::max(next - now(), Duration{0});
    }
    poll(timeout);
    if (!timers_.empty()) {
        const TimePoint t = now();
        // Bounded by what is there now: a timer that arms a due timer again must not keep I/O out.
        for (std::size_t left = timers_.size(); left > 0 && timers_.next_at() <= t; --left) {
            budget_ = kBudget;
            timers_.pop()();
        }
    }
    run_ready();
}

void RealLoop::drain_inbox() {
    std::vector<Fn> arrived;
    {
        const std::lock_guard lock(inbox_mutex_);
        arrived.swap(inbox_);
    }
    for (auto& fn : arrived) ready_.push_back(std::move(fn));
}

void RealLoop::run_ready() {
    for (std::size_t left = ready_.size(); left > 0; --left) {
        Fn fn = std::move(ready_.front());
        ready_.pop_front();
        budget_ = kBudget;
        fn();
    }
}

// `timeout` -1 = for ever. Nanosecond timeouts: token pacing and deadlines are not rounded up to a
// millisecond.
void RealLoop::poll(Duration timeout) {
    std::array<epoll_event, 128> events;
    timespec t{};
    if (timeout > Duration{0}) {
        t.tv_sec = timeout / 1s;
        t.tv_nsec = (timeout % 1s).count();
    }
    const int n = epoll_pwait2(epoll_, events.data(), events.size(),
                               timeout < Duration{0} ? nullptr : &t, nullptr);
    if (n < 0) {
        CHECK_MSG(errno == EINTR, "epoll_pwait2 refused (it needs Linux 5.11)");
        return;
    }
    for (int i = 0; i < n; ++i) {
        const epoll_event& e = events[static_cast<std::size_t>(i)];
        batch_ = std::span(events).subspan(static_cast<std::size_t>(i) + 1,
                                           static_cast<std::size_t>(n - i - 1));
        if (e.events == 0) continue;  // its watch has gone
        if (e.data.ptr == nullptr) {
            std::uint64_t count = 0;
            [[maybe_unused]] const auto got = read(wakeup_, &count, sizeof count);
            continue;  // the inbox is looked at in every turn
        }
        auto* watch = static_cast<FdWatch*>(e.data.ptr);
        bool destroyed = false;
        watch->destroyed_ = &destroyed;
        const auto on_events = watch->on_events_.get();
        budget_ = kBudget;
        (*on_events)(e.events);
        if (destroyed) {
            delete on_events;
        } else {
            watch->destroyed_ = nullptr;
        }
    }
    batch_ = {};
}

FdWatch::FdWatch(RealLoop& loop, int fd, std::uint32_t events, OnEvents on_events)
    : loop_(loop), fd_(fd), on_events_(std::make_unique<OnEvents>(std::move(on_events))) {
    CHECK(loop_.on_loop_thread());
    epoll_event e{};
    e.events = events | EPOLLET;
    e.data.ptr = this;
    CHECK_MSG(epoll_ctl(loop_.epoll_, EPOLL_CTL_ADD, fd_, &e) == 0,
              "epoll refused a descriptor: bad one, or fs.epoll.max_user_watches is reached");
}

FdWatch::~FdWatch() {
    CHECK(loop_.on_loop_thread());
    epoll_ctl(loop_.epoll_, EPOLL_CTL_DEL, fd_, nullptr);
    for (epoll_event& e : loop_.batch_) {
        if (e.data.ptr == this) e.events = 0;
    }
    if (destroyed_ != nullptr) {
        *destroyed_ = true;
        [[maybe_unused]] auto* running = on_events_.release();  // poll() deletes it
    }
}

}  // namespace nereid::io
