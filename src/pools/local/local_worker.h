// LocalWorker: an engine in a supervised child process on this machine (DESIGN §5: "a crash in
// native kernels is a restart and not an outage").
//
// States (WorkerState) and events: see pools/README.md. The supervisor's decisions are pure
// (supervisor.h): it takes {started, greeted, frame, exited, timer, submit, abort} and returns
// {start, kill, connect, send, deliver, arm}.
//
// Liveness is progress: while requests are in flight a frame or a pong must arrive within
// `progress_timeout`, else the child is killed and restarted. Restart back-off: 100 ms doubling to
// 10 s, reset after 60 s of health. A child that dies before its greeting with exit code 2
// (configuration error, e.g. a bad model file) is not restarted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/config.h"
#include "io/loop.h"
#include "io/process.h"
#include "io/stream.h"
#include "ops/log.h"
#include "ops/metrics.h"
#include "pools/worker.h"

namespace nereid::pools {

struct LocalWorkerOptions {
    std::string name = "local";
    std::vector<std::string>
        argv;                      // the child: {"/proc/self/exe", "worker", "--socket", PATH, ...}
    std::string socket_path;       // where the child listens; in a private folder (0700)
    std::int64_t queue_max = 256;  // requests waiting here or in the engine without output
    Duration start_timeout = 120s;  // from spawn to greeting
    Duration progress_timeout = 60s;
    void bind(io::ConfigBinder& b);  // "worker.*"
};

class LocalWorker {
  public:
    virtual ~LocalWorker() = default;  // kills the child
    // A handle for `loop`. The worker must outlive its handles' sessions. Call before start or on
    // the link loop.
    virtual std::unique_ptr<WorkerHandle> handle_for(io::Loop& loop) = 0;
    // `fn` is called on the link loop when the state or the greeting changes; it must not call
    // back. One; before start.
    virtual void on_state(std::function<void(const WorkerStatus&)> fn) = 0;
    virtual void start() = 0;
    // No new requests; completes when the running ones have ended or at the deadline (the rest gets
    // kWorkerLost); then the child is told to end.
    virtual io::Task<void> drain(TimePoint deadline) = 0;
    virtual const WorkerStatus& status() const = 0;
};

std::unique_ptr<LocalWorker> make_local_worker(io::Loop& link_loop, io::Network& network,
                                               io::ProcessLauncher& launcher, ops::Logger& log,
                                               ops::Registry& metrics, LocalWorkerOptions options);

}  // namespace nereid::pools
