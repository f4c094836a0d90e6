// `nereid worker`: one engine behind engine-wire on a Unix socket. `nereid serve` starts it; by
// hand it is for debugging. Exit codes: 0 told to stop, 1 the engine broke, 2 the configuration or
// a file must be mended (one line on stderr).
#pragma once

#include <span>
#include <string>

#include "app/engine_setup.h"
#include "io/config.h"

namespace nereid::app {

struct WorkerOptions {
    std::string socket;
    EngineOptions engine;
    void bind(io::ConfigBinder& b);
};

int worker(std::span<const std::string> args);  // blocks; an exit code

}  // namespace nereid::app
