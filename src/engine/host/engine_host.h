// EngineHost: serves one Engine to one client over engine-wire v1. It is the body of `nereid
// worker`.
//
// One thread, one loop: read commands, apply, step, write one frame, yield; so a cancel that has
// arrived is applied before the next step. While the client does not read (its socket is full) no
// step is made: backpressure, bounded by one frame. When the client's connection ends, every
// request of it is aborted; the host accepts the next client. A message that fails to decode, or
// that a client may not send, closes the connection (counted). step() failing ends the host with
// that error: the process exits and is restarted by its supervisor.
//
// Ownership: loop, engine and log outlive the host. The host outlives the task of run(). A loop
// that is destroyed first takes the task with it; the host must then not be used again.
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/engine.h"
#include "io/loop.h"
#include "io/stream.h"
#include "ops/log.h"

namespace nereid::engine {

struct HostCounters {
    std::uint64_t connections = 0;
    std::uint64_t refused = 0;  // greetings of a version that we do not speak
    std::uint64_t bad_messages = 0;
    std::uint64_t greeting_timeouts = 0;
    std::uint64_t steps = 0;
    std::uint64_t commands = 0;
    std::uint64_t orphans = 0;  // requests aborted because their client went away
};

class EngineHost {
  public:
    EngineHost(io::Loop& loop, Engine& engine, ops::Logger& log);
    ~EngineHost();
    // Serves clients of `listener`, one at a time (a second one waits). Returns when the engine
    // fails, or ok after stop(). A client that says nothing for 10 s is dropped, so that it does
    // not block the next one.
    io::Task<Result<void>> run(std::unique_ptr<io::Listener> listener);
    // On the loop. The client's connection is closed and its requests are aborted; run() then
    // returns.
    void stop();
    const HostCounters& counters() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nereid::engine
