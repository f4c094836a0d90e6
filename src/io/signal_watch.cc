#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/real_loop.h"

namespace nereid::io {

namespace {

// A signal handler reaches only globals. Bit n: signal n has arrived.
std::atomic<std::uint64_t> arrived{0};
std::atomic<int> bell{-1};  // eventfd of the one SignalWatch
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

void on_signal(int number) {
    const int saved = errno;
    arrived.fetch_or(std::uint64_t{1} << number);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = write(bell.load(), &one, sizeof one);
    errno = saved;
}

}  // namespace

struct SignalWatch::State {
    int fd = -1;
    std::function<void(int)> fn;
    std::vector<std::pair<int, struct sigaction>> former;
    std::unique_ptr<FdWatch> watch;

    void take() {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto n = read(fd, &count, sizeof count);
        const std::uint64_t bits = arrived.exchange(0);
        const auto call = fn;  // it may destroy the watch
        for (int number = 1; number < 64; ++number) {
            if ((bits >> number & 1) != 0) call(number);
        }
    }
};

SignalWatch::SignalWatch(RealLoop& loop, std::initializer_list<int> numbers,
                         std::function<void(int)> fn)
    : state_(std::make_unique<State>()) {
    CHECK_MSG(bell.load() < 0, "one SignalWatch per process");
    state_->fn = std::move(fn);
    state_->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK(state_->fd >= 0);
    arrived.store(0);
    bell.store(state_->fd);
    state_->watch = std::make_unique<FdWatch>(loop, state_->fd, EPOLLIN,
                                              [s = state_.get()](std::uint32_t) { s->take(); });
    const auto set = [this](int number, void (*handler)(int)) {
        struct sigaction action{};
        struct sigaction former{};
        action.sa_handler = handler;
        action.sa_flags = SA_RESTART;
        sigemptyset(&action.sa_mask);
        CHECK(sigaction(number, &action, &former) == 0);
        state_->former.emplace_back(number, former);
    };
    set(SIGPIPE, SIG_IGN);
    for (const int number : numbers) set(number, on_signal);
}

SignalWatch::~SignalWatch() {
    for (const auto& [number, former] : state_->former) sigaction(number, &former, nullptr);
    state_->watch.reset();
    bell.store(-1);
    close(state_->fd);
}

}  // namespace nereid::io
