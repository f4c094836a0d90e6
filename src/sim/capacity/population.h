// ClosedPopulation: a constant number of requests, each replaced by a new one the moment it ends.
// The decode studies' workload: balance at a given occupancy, without the noise of arrivals.
#pragma once

#include <memory>

#include "workload/generators.h"
#include "workload/request.h"

namespace nereid::sim {

struct PopulationSpec {
    std::uint64_t requests = 12'672;
    workload::LengthSpec input = {.mean = 3500, .sigma = 1.3, .min = 16, .max = 131'072};
    workload::LengthSpec output = {.mean = 1000, .sigma = 1.1, .min = 1, .max = 32'768};
    // The first ones are found in the middle of their lives: part of their output is already KV.
    bool aged = true;
    std::uint64_t seed = 1;
};
std::unique_ptr<workload::Source> closed_population(const PopulationSpec& spec);

}  // namespace nereid::sim
