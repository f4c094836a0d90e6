// HTML pages of simulations: one run, or several side by side.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/capacity/result.h"
#include "sim/scenario.h"

namespace nereid::sim {

struct LabelledRun {
    std::string label;
    RunResult result;
};

// Self-contained page: what was run, headline figures, time series, heat maps, distributions.
// `command` and `toml` are shown folded, so that the page says how to make it again.
std::string run_page(const Scenario& scenario, const RunResult& result, const std::string& command,
                     const std::string& toml);
// The same scenario under several policies or loads.
std::string comparison_page(const Scenario& scenario, std::span<const LabelledRun> runs,
                            const std::string& command, const std::string& toml);

// A few lines for a terminal.
std::string run_text(const RunResult& result);
std::string comparison_text(std::span<const LabelledRun> runs);

}  // namespace nereid::sim
