#include "io/sim_process.h"

#include <csignal>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "io/root_task.h"
#include "io/waiter.h"

namespace nereid::io {

// Shared by the Process object, the loop's queue and whoever waits.
struct SimRunning : std::enable_shared_from_this<SimRunning> {
    SimRunning(Loop& l, ProcessSpec s, SimProgram p, int number, std::shared_ptr<int> count)
        : loop(l),
          spec(std::move(s)),
          program(std::move(p)),
          pid(number),
          live(std::move(count)),
          waiter(l),
          child(l, spec) {
        ++*live;
    }
    Loop& loop;
    ProcessSpec spec;
    SimProgram program;  // its captures are the coroutine's
    int pid;
    std::shared_ptr<int> live;
    Waiter waiter;
    SimChild child;
    std::optional<ExitStatus> status;
    RootTask task;

    // The task is destroyed here, never inside itself: only from the loop's queue.
    void end(ExitStatus how) {
        if (status) return;
        status = how;
        --*live;
        task.reset();
        waiter.wake(Wake::kEvent);
    }
    void signal(int number) {
        if (status) return;
        if (number != SIGKILL && child.trapped_.contains(number)) {
            child.signals_.push(number);
            return;
        }
        loop.post(
            [self = shared_from_this(), number] { self->end({.code = 0, .signal = number}); });
    }
    static Task<void> run(SimRunning& r) {
        const ExitStatus how = co_await r.program(r.child);
        r.loop.post([self = r.shared_from_this(), how] { self->end(how); });
    }
    void silence() { child.silent_ = true; }
};

namespace {

Task<ExitStatus> wait_for(std::shared_ptr<SimRunning> r) {
    while (!r->status) co_await r->waiter.wait();
    co_return *r->status;
}

class SimProcess final : public Process {
  public:
    explicit SimProcess(std::shared_ptr<SimRunning> r) : r_(std::move(r)) {}
    ~SimProcess() override {
        r_->silence();
        r_->signal(SIGKILL);
    }
    int pid() const override { return r_->pid; }
    Task<ExitStatus> wait() override { return wait_for(r_); }
    void signal(int number) override { r_->signal(number); }

  private:
    std::shared_ptr<SimRunning> r_;
};

}  // namespace

Result<std::unique_ptr<Process>> SimProcessLauncher::start(ProcessSpec spec) {
    CHECK(!spec.argv.empty());
    const std::string path = spec.argv[0];
    if (failures_ > 0) {
        --failures_;
        return Error{Code::kIo,
                     fmt::format("cannot start {}: Resource temporarily unavailable", path)};
    }
    const auto it = programs_.find(path);
    if (it == programs_.end()) {
        return Error{Code::kIo, fmt::format("cannot start {}: No such file or directory", path)};
    }
    const int pid = 1000 + static_cast<int>(++starts_);
    auto running = std::make_shared<SimRunning>(loop_, std::move(spec), it->second, pid, live_);
    // A child starts when its parent has returned to the loop, as a real one does in effect.
    loop_.post([running] {
        if (!running->status) running->task.start(SimRunning::run(*running));
    });
    return std::make_unique<SimProcess>(std::move(running));
}

}  // namespace nereid::io
