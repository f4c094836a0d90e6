// Where the gateway keeps what outlives a request: opens the database that `gateway.state` names,
// gives it a thread, and clears out what has expired.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "gateway/gateway.h"
#include "io/real_loop.h"
#include "ops/log.h"

namespace nereid::app {

// Destroyed after the gateway and before its loops.
class StateHolder {
  public:
    // "memory", a file, or postgres://... kConfig with the mend, kUnavailable. Blocks.
    static Result<std::unique_ptr<StateHolder>> open(const std::string& where);

    gateway::State state() const { return state_; }
    // A task for a loop of the gateway's: deletes what has expired, every minute.
    io::Task<void> keep_clean(io::Loop& loop, ops::Logger& log);

  private:
    StateHolder() : thread_(1), helper_(1) {}
    io::LoopThreads thread_;
    io::LoopThreads helper_;  // for the gateway's long computations
    gateway::State state_;
};

}  // namespace nereid::app
