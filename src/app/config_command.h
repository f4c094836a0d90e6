// `nereid config`: the knobs as a page of documentation, or the effective configuration of `nereid
// serve` as a file.
#pragma once

#include <span>
#include <string>

namespace nereid::app {

int config_command(std::span<const std::string> args);  // an exit code

}  // namespace nereid::app
