// EngineHost: serves one Engine to one client over engine-wire v1. It is the body of `nereid worker`.
//
// One thread, one loop: read commands, apply, step, write one frame, yield; so a cancel that has arrived is applied
// before the next step. While the client does not read (its socket is full) no step is made: backpressure, bounded
// by one frame. When the client's connection ends, every request of it is aborted; the host accepts the next client.
// A frame that fails to decode closes the connection (counted). step() failing ends the host with that error: the
// process exits and is restarted by its supervisor.
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/engine.h"
#include "io/loop.h"
#include "io/stream.h"
#include "ops/log.h"

namespace nereid::engine {

struct HostCounters { std::uint64_t connections = 0, bad_messages = 0, steps = 0, commands = 0; };

class EngineHost {
  public:
    EngineHost(io::Loop& loop, Engine& engine, ops::Logger& log);
    ~EngineHost();
    // Serves clients of `listener`, one at a time (a second one waits). Returns when the engine fails, or ok after stop().
    io::Task<Result<void>> run(std::unique_ptr<io::Listener> listener);
    void stop();
    const HostCounters& counters() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nereid::engine
