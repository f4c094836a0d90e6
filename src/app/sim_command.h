// `nereid sim`: capacity and policy simulations from a scenario file.
#pragma once

#include <span>
#include <string>

namespace nereid::app {

// run | compare | plan; an exit code. Blocks for the run's length; progress goes to stderr.
int sim_command(std::span<const std::string> args);

}  // namespace nereid::app
