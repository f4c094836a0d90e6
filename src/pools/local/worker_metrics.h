// What the supervisor counts, as metrics. The engine's own load (nereid_engine_*) is exported by
// the gateway, which knows the model's name.
#pragma once

#include <array>
#include <string>

#include "ops/metrics.h"
#include "pools/local/supervisor.h"

namespace nereid::pools {

class WorkerMetrics {
  public:
    WorkerMetrics(ops::Registry& registry, const std::string& worker);
    void update(
        const Supervisor& supervisor);  // on the link loop, after each event; some integer compares

  private:
    struct Line;
    void raise(ops::Counter& counter, std::uint64_t& seen, std::uint64_t now);
};

}  // namespace nereid::pools
