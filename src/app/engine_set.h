// EngineSet: the engine processes of `nereid serve`, all of one configuration, chosen among by
// gateway/routing. Their number follows `service.engines`, also at run time: new ones start, the
// last ones finish what they have and end.
//
// Everything on loop 0, but the handles. Each engine has its own socket in the runtime folder. With
// several and `engine.threads` = 0 they share the cores in equal parts, by the number at the start
// of each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/engine_setup.h"
#include "app/frontend.h"
#include "app/runtime_folder.h"
#include "gateway/routing/routed_worker.h"
#include "io/channel.h"
#include "io/process.h"
#include "ops/log.h"
#include "ops/metrics.h"
#include "pools/local/local_worker.h"

namespace nereid::app {

class EngineSet {
  public:
    struct Options {
        EngineOptions engine;
        pools::LocalWorkerOptions worker;  // name: of the first; the others add their number
        gateway::RoutingOptions routing;
        std::int64_t engines = 1;
    };
    // What it uses, and is outlived by.
    struct Surroundings {
        Frontend& frontend;
        const RuntimeFolder& folder;
        io::ProcessLauncher& launcher;
        ops::Logger& log;
        ops::Registry& metrics;
    };
    // kConfig: not as many DeepInfer groups as engines.
    static Result<void> validate(const EngineOptions& engine, std::int64_t engines);
    // Nothing runs yet. kIo.
    static Result<std::unique_ptr<EngineSet>> make(Options options, const Surroundings& around);

    // All of them as one, for the gateway's shards. Before start.
    std::unique_ptr<pools::WorkerHandle> handle_for(io::Loop& loop) {
        return routed_.handle_for(loop);
    }
    // `ready` when the first engine is; `hopeless` with the last error when none of those started
    // first can ever be. Each at most once; before start.
    struct Listener {
        std::function<void()> ready;
        std::function<void(const std::string& error)> hopeless;
    };
    void start(Listener listener);
    // So many from now on. kIo: not all could be added; kConfig: their number cannot change.
    Result<void> resize(std::int64_t engines);
    // No new requests; completes when all processes have ended, at the deadline the hard way.
    io::Task<void> stop(TimePoint deadline);

  private:
    EngineSet(Options options, const Surroundings& around);
    Result<void> add();
    void heard(const pools::WorkerStatus& status, bool has_failed);
    void begin_cost();
    void retire(TimePoint deadline);
    io::Task<void> end(pools::LocalWorker& worker, TimePoint deadline);

    Options options_;
    Surroundings around_;
    std::vector<std::unique_ptr<pools::LocalWorker>>
        workers_;                               // ended ones too: sessions name them
    std::vector<pools::LocalWorker*> running_;  // in order of their start
    std::size_t ending_ = 0;                    // retired, and still there
    io::Channel<char> ended_;                   // the last of those has gone
    gateway::RoutingProbe probe_;
    gateway::RoutedWorkers routed_;
    Listener listener_;
    std::size_t hopeful_ = 0;
    bool was_ready_ = false;
};

}  // namespace nereid::app
