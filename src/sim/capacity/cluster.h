// Cluster: engines, network, gateways and requests in simulated time; the production router
// decides.
//
//     Cluster cluster(spec, *source);
//     TRY(RunResult r, cluster.run());
//
// Deterministic: a function of (spec, source, build). One thread; no clock, no I/O. Memory is about
// 1 KB per request in flight and 30 bytes per cached block. Cost: about 10 µs a request and 1 µs a
// step of a 32-rank unit.
//
// What is modelled and what is not: sim/README.md.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "sim/capacity/result.h"
#include "sim/capacity/spec.h"
#include "workload/request.h"

namespace nereid::sim {

class Cluster {
  public:
    // `source` must outlive the cluster and be used by nobody else.
    Cluster(ClusterSpec spec, workload::Source& source);
    ~Cluster();

    // Called now and then with the simulated second reached; false stops the run (kCancelled).
    using Progress = std::function<bool(double second, std::uint64_t finished)>;
    // kConfig: a policy name nobody knows, or a spec without ranks to run on.
    Result<RunResult> run(const Progress& progress = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nereid::sim
