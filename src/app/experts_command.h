// `nereid experts`: plans of expert placement for a running group, from the loads that its ranks
// report into a folder (docs/ops/deepinfer.md).
#pragma once

#include <span>
#include <string>

#include "io/config.h"

namespace nereid::app {

void bind_experts(io::ConfigBinder& b);                  // "experts.*", for docs/config.md
int experts_command(std::span<const std::string> args);  // an exit code

}  // namespace nereid::app
