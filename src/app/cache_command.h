// `nereid cache`: the KV cache node as a process, and the tools for a running one.
#pragma once

#include <span>
#include <string>

#include "io/config.h"

namespace nereid::app {

void bind_cache(io::ConfigBinder& b);                  // its knobs, for `nereid config`
int cache_command(std::span<const std::string> args);  // an exit code

}  // namespace nereid::app
