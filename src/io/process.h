// Process: start, watch and signal a child process.
//
// The child gets PDEATHSIG=SIGKILL (it never outlives us), its own process group, closed file
// descriptors but those listed, and its standard output and error as lines through `on_line`. All
// calls on the loop's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/loop.h"

namespace nereid::io {

inline constexpr std::size_t kMaxProcessLine = 64 << 10;  // bytes

struct ProcessSpec {
    std::vector<std::string> argv;                               // argv[0] is a path
    std::vector<std::pair<std::string, std::string>> env_extra;  // added to ours
    std::vector<int> inherit_fds;
    std::function<void(std::string_view line, bool is_stderr)>
        on_line;  // lines over kMaxProcessLine are cut
};
struct ExitStatus {
    int code = 0;                   // exit code, when not signalled
    int signal = 0;                 // 0 = exited by itself
    std::string to_string() const;  // "exit 1", "killed by SIGKILL"
};

class Process {
  public:
    virtual ~Process() = default;  // kills (SIGKILL) and reaps a child that still lives
    virtual int pid() const = 0;
    virtual Task<ExitStatus> wait() = 0;  // once
    virtual void signal(int number) = 0;
};

class ProcessLauncher {
  public:
    virtual ~ProcessLauncher() = default;
    // kIo with the path and the reason when it cannot be executed.
    virtual Result<std::unique_ptr<Process>> start(ProcessSpec spec) = 0;
};

}  // namespace nereid::io
