// SimProcessLauncher: children that are coroutines on the same simulated process' loop, found by
// argv[0].
//
//     launcher.program("/bin/worker", [](SimChild& child) -> Task<ExitStatus> {
//         child.print("ready");
//         co_await child.loop().sleep_for(5s);
//         co_return ExitStatus{.code = 1};
//     });
// SIGKILL, and any other signal that the child has not trapped, ends it with that signal at the
// loop's next turn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "io/channel.h"
#include "io/process.h"

namespace nereid::io {

// The world as a scripted child sees it. Lives as long as its coroutine.
class SimChild {
  public:
    SimChild(Loop& loop, const ProcessSpec& spec) : loop_(loop), spec_(spec), signals_(loop, 64) {}
    Loop& loop() { return loop_; }
    const ProcessSpec& spec() const { return spec_; }
    void print(std::string_view line, bool is_stderr = false) {
        if (spec_.on_line && !silent_) spec_.on_line(line, is_stderr);
    }
    // From now on `number` comes through signals() instead of ending the child.
    void trap(int number) { trapped_.insert(number); }
    Channel<int>& signals() { return signals_; }

  private:
    friend class SimProcessLauncher;
    friend struct SimRunning;
    Loop& loop_;
    const ProcessSpec& spec_;
    Channel<int> signals_;
    std::set<int> trapped_;
    bool silent_ = false;  // the parent's Process object has gone
};

using SimProgram = std::function<Task<ExitStatus>(SimChild&)>;

class SimProcessLauncher final : public ProcessLauncher {
  public:
    explicit SimProcessLauncher(Loop& loop) : loop_(loop) {}
    void program(std::string path, SimProgram script) {
        programs_[std::move(path)] = std::move(script);
    }
    // The next `count` calls of start() are refused with kIo.
    void fail_starts(int count) { failures_ = count; }
    std::uint64_t starts() const { return starts_; }
    int live() const { return *live_; }

    Result<std::unique_ptr<Process>> start(ProcessSpec spec) override;

  private:
    Loop& loop_;
    std::map<std::string, SimProgram> programs_;
    int failures_ = 0;
    std::uint64_t starts_ = 0;
    std::shared_ptr<int> live_ = std::make_shared<int>(0);
};

}  // namespace nereid::io
