// What the supervisor counts, as metrics. The engine's own load (nereid_engine_*) is exported by
// the gateway, which knows the model's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/metrics.h"
#include "pools/local/supervisor.h"

namespace nereid::pools {

class WorkerMetrics {
  public:
    WorkerMetrics(ops::Registry& registry, const std::string& worker);
    // After each event, on the link loop: raises what has grown. Some integer compares.
    void update(const Supervisor& supervisor);

  private:
    struct Line {
        ops::Counter* counter;
        std::uint64_t (*read)(const Supervisor&);
        std::uint64_t seen = 0;
    };
    std::vector<Line> lines_;
    ops::Gauge* waiting_;
    ops::Gauge* in_flight_;
};

}  // namespace nereid::pools
