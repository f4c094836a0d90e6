// The real ProcessLauncher: vfork + execve on a RealLoop, the child watched through a pidfd (no
// SIGCHLD handler).
//
// The child dies with the *thread* that started it (PDEATHSIG is per thread): start() on a loop
// whose thread lives as long as the process. Its standard input is /dev/null; signal dispositions
// and mask are the defaults. signal() goes to the child alone; the destructor kills its whole
// process group, and blocks until the child is reaped (milliseconds). wait() completes after the
// child has ended and what it had written was given to on_line (at most 1 MiB more when a
// grandchild keeps writing). Cost: vfork does not copy page tables, so it is quick however large we
// are (about 1 ms).
#pragma once

#include <memory>

#include "io/process.h"
#include "io/real_loop.h"

namespace nereid::io {

class RealProcessLauncher final : public ProcessLauncher {
  public:
    explicit RealProcessLauncher(RealLoop& loop) : loop_(loop) {}
    Result<std::unique_ptr<Process>> start(ProcessSpec spec) override;

  private:
    RealLoop& loop_;
};

}  // namespace nereid::io
