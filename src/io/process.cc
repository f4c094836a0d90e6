#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <expected>
#include <optional>
#include <utility>
#include <linux/close_range.h>

#include <fmt/format.h>

#include "base/check.h"
#include "io/line_splitter.h"
#include "io/real_process.h"
#include "io/socket.h"
#include "io/waiter.h"

namespace nereid::io {

std::string ExitStatus::to_string() const {
    if (signal == 0) return fmt::format("exit {}", code);
    const char* name = sigabbrev_np(signal);
    return name != nullptr ? fmt::format("killed by SIG{}", name)
                           : fmt::format("killed by signal {}", signal);
}

namespace {

constexpr std::size_t kMaxDrain = 1 << 20;  // after the child's end

void close_fd(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
}

// Everything that the child touches between vfork and execve is made before: it may only call
// async-signal-safe functions, and it shares our memory.
struct Launch {
    std::vector<std::string> env_store;
    std::vector<char*> argv;
    std::vector<char*> envp;
    std::vector<int> inherit;
    int null_fd = -1;
    int out_fd = -1;
    int err_fd = -1;
    pid_t parent = 0;
    int report_fd = -1;  // closed by execve; takes the errno of a failure

    explicit Launch(ProcessSpec& spec) : inherit(spec.inherit_fds), parent(getpid()) {
        for (auto& arg : spec.argv) argv.push_back(arg.data());
        argv.push_back(nullptr);
        const auto replaced = [&spec](std::string_view entry) {
            for (const auto& [name, value] : spec.env_extra) {
                if (entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
                    return true;
            }
            return false;
        };
        for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
            if (!replaced(*e)) env_store.emplace_back(*e);
        }
        for (const auto& [name, value] : spec.env_extra) env_store.push_back(name + "=" + value);
        for (auto& entry : env_store) envp.push_back(entry.data());
        envp.push_back(nullptr);
    }
    ~Launch() {
        close_fd(null_fd);
        close_fd(out_fd);
        close_fd(err_fd);
        close_fd(report_fd);
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
};

[[noreturn]] void fail_child(Launch& l) {
    const int number = errno == 0 ? EIO : errno;
    [[maybe_unused]] const auto n = write(l.report_fd, &number, sizeof number);
    _exit(127);
}

[[noreturn]] void become_child(Launch& l) {
    struct sigaction normal{};
    normal.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; ++number)
        sigaction(number, &normal, nullptr);  // some refuse; fine
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_child(l);
    if (getppid() != l.parent) _exit(127);  // it died before the prctl
    if (dup2(l.null_fd, 0) < 0 || dup2(l.out_fd, 1) < 0 || dup2(l.err_fd, 2) < 0) fail_child(l);
    if (syscall(SYS_close_range, 3U, UINT_MAX, CLOSE_RANGE_CLOEXEC) != 0) fail_child(l);
    for (const int fd : l.inherit) {
        if (fcntl(fd, F_SETFD, 0) != 0) fail_child(l);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(l.argv[0], l.argv.data(), l.envp.data());
    fail_child(l);
}

// The child's pid, or the errno that kept it from running.
std::expected<pid_t, int> launch(Launch& l, int report_read_fd) {
    // A handler of ours must not run in the child, which shares our memory until execve.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    const pid_t pid = vfork();
#pragma clang diagnostic pop
    if (pid == 0) become_child(l);
    const int fork_error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) return std::unexpected(fork_error);
    // By a pipe and not by the shared memory: ThreadSanitizer turns vfork into fork.
    close_fd(l.report_fd);
    int failure = 0;
    std::ptrdiff_t n = 0;
    do {
        n = read(report_read_fd, &failure, sizeof failure);
    } while (n < 0 && errno == EINTR);
    if (n == 0) return pid;
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return std::unexpected(failure);
}

// One of the child's outputs.
class Output {
  public:
    Output(RealLoop& loop, int fd, LineSplitter::OnLine on_line)
        : loop_(loop),
          fd_(fd),
          lines_(kMaxProcessLine,
                 [this, on_line = std::move(on_line)](std::string_view line) {
                     if (!stopped_) on_line(line);
                 }),
          watch_(std::in_place, loop, fd, EPOLLIN, [this](std::uint32_t) { read_some(); }) {}
    ~Output() { stop(); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    // What is there already, at most kMaxDrain; then no more.
    void drain() {
        for (std::size_t total = 0; total < kMaxDrain;) {
            const auto n = read_block();
            if (n <= 0) break;
            total += static_cast<std::size_t>(n);
        }
        end();
    }
    // No more calls of on_line.
    void stop() {
        stopped_ = true;
        watch_.reset();
        close_fd(fd_);
    }
    // Stops it and deletes it from the loop's queue: on_line, which may be running, may destroy the
    // Process.
    static void retire(std::unique_ptr<Output> o) {
        if (!o) return;
        o->stop();
        RealLoop& loop = o->loop_;
        loop.post([doomed = std::move(o)] {});
    }

  private:
    // Bytes, 0 at the end, -1 when there is nothing now, or no more is wanted.
    std::ptrdiff_t read_block() {
        std::array<char, 16384> block;
        if (fd_ < 0) return -1;
        for (;;) {
            const auto n = ::read(fd_, block.data(), block.size());
            if (n < 0 && errno == EINTR) continue;
            if (n > 0) lines_.add({block.data(), static_cast<std::size_t>(n)});
            return n;
        }
    }
    // A child that floods is read in turns: the rest is posted (and the pipe holds the child back).
    void read_some() {
        while (loop_.take_budget()) {
            const auto n = read_block();
            if (n > 0) continue;
            if (n == 0) end();
            return;
        }
        loop_.post([this, alive = std::weak_ptr(alive_)] {
            if (!alive.expired()) read_some();
        });
    }
    void end() {
        if (stopped_) return;
        lines_.finish();
        stop();
    }
    RealLoop& loop_;
    int fd_;
    bool stopped_ = false;
    LineSplitter lines_;
    std::optional<FdWatch> watch_;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

// Shared by the Process and a coroutine that waits for its end.
struct Child {
    Child(RealLoop& l, pid_t p, int pfd) : loop(l), pid(p), pidfd(pfd), waiter(l) {}
    ~Child() {
        watch.reset();
        close_fd(pidfd);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    RealLoop& loop;
    pid_t pid;
    int pidfd;
    Waiter waiter;
    std::optional<FdWatch> watch;
    std::unique_ptr<Output> out;
    std::unique_ptr<Output> err;
    std::optional<ExitStatus> status;

    // True when the child has been reaped. Its group goes first, while the pid is still taken and
    // the group's number cannot be another's.
    bool reap(int flags) {
        kill(-pid, SIGKILL);
        int raw = 0;
        pid_t got = 0;
        do {
            got = waitpid(pid, &raw, flags);
        } while (got < 0 && errno == EINTR);
        if (got != pid) return false;
        status = WIFSIGNALED(raw) ? ExitStatus{.code = 0, .signal = WTERMSIG(raw)}
                                  : ExitStatus{.code = WEXITSTATUS(raw), .signal = 0};
        return true;
    }
};

void on_exit(const std::shared_ptr<Child>& c) {
    if (c->status || !c->reap(WNOHANG)) return;
    c->watch.reset();
    if (c->out) c->out->drain();
    if (c->err) c->err->drain();
    c->waiter.wake(Wake::kEvent);
}

Task<ExitStatus> wait_for(std::shared_ptr<Child> c) {
    while (!c->status) {
        if (co_await c->waiter.wait() == Wake::kCancelled) break;
    }
    co_return c->status.value_or(ExitStatus{.code = 0, .signal = SIGKILL});
}

class RealProcess final : public Process {
  public:
    explicit RealProcess(std::shared_ptr<Child> c) : c_(std::move(c)) {}
    ~RealProcess() override {
        c_->watch.reset();
        Output::retire(std::move(c_->out));
        Output::retire(std::move(c_->err));
        if (!c_->status) {
            kill(c_->pid, SIGKILL);
            c_->reap(0);
        }
        c_->waiter.wake_later(Wake::kCancelled, c_);
    }
    int pid() const override { return c_->pid; }
    Task<ExitStatus> wait() override { return wait_for(c_); }
    void signal(int number) override {
        if (!c_->status) kill(c_->pid, number);  // not reaped: the pid is still this child's
    }

  private:
    std::shared_ptr<Child> c_;
};

struct Pipe {
    int read_end = -1;
    int write_end = -1;
    ~Pipe() {
        close_fd(read_end);
        close_fd(write_end);
    }
    bool open(bool blocking = false) {
        std::array<int, 2> fds{};
        if (pipe2(fds.data(), O_CLOEXEC) != 0) return false;
        read_end = fds[0];
        write_end = fds[1];
        if (!blocking) fcntl(read_end, F_SETFL, O_NONBLOCK);
        return true;
    }
};

}  // namespace

Result<std::unique_ptr<Process>> RealProcessLauncher::start(ProcessSpec spec) {
    CHECK(loop_.on_loop_thread());
    CHECK(!spec.argv.empty());
    const std::string path = spec.argv[0];
    const auto failed = [&path](int number) {
        return Error{Code::kIo, fmt::format("cannot start {}: {}", path, errno_text(number))};
    };
    Launch l(spec);
    Pipe out;
    Pipe err;
    Pipe report;
    l.null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (l.null_fd < 0 || !out.open() || !err.open() || !report.open(true)) return failed(errno);
    l.out_fd = std::exchange(out.write_end, -1);
    l.err_fd = std::exchange(err.write_end, -1);
    l.report_fd = std::exchange(report.write_end, -1);
    const auto launched = launch(l, report.read_end);
    if (!launched) return failed(launched.error());
    const pid_t pid = *launched;
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) {
        const int number = errno;
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        return failed(number);
    }
    auto child = std::make_shared<Child>(loop_, pid, pidfd);
    const auto lines = [on_line = std::move(spec.on_line)](bool is_stderr) -> LineSplitter::OnLine {
        return [on_line, is_stderr](std::string_view line) {
            if (on_line) on_line(line, is_stderr);
        };
    };
    child->out = std::make_unique<Output>(loop_, std::exchange(out.read_end, -1), lines(false));
    child->err = std::make_unique<Output>(loop_, std::exchange(err.read_end, -1), lines(true));
    child->watch.emplace(loop_, pidfd, EPOLLIN, [weak = std::weak_ptr(child)](std::uint32_t) {
        if (const auto c = weak.lock()) on_exit(c);
    });
    return std::make_unique<RealProcess>(std::move(child));
}

}  // namespace nereid::io
