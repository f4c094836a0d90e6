// GroupEngine: the ranks of a DeepInfer group as one Engine. It starts a Python agent per rank
// (python/nereid_deepinfer), greets each over engine-wire, places requests, merges frames and
// watches the ranks. EngineHost serves it: together they are `nereid worker --engine deepinfer`.
//
// The group is the unit of failure: when a rank dies, closes its socket, sends what is no message,
// or says nothing for `progress_timeout`, the next step() fails. The process then ends, which kills
// all ranks, and its supervisor (pools/local) starts a whole group again.
//
// One loop; start() must have returned ok before the engine is used. Loop, network, launcher and
// log outlive it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/deepinfer/group_plan.h"
#include "engine/engine.h"
#include "io/loop.h"
#include "io/process.h"
#include "io/stream.h"
#include "ops/log.h"

namespace nereid::engine::deepinfer {

struct GroupOptions {
    std::string config;          // the group's TOML file (docs/ops/deepinfer.md)
    std::string python;          // an interpreter of 3.11 or newer; reads the configuration
    std::string package_folder;  // that holds nereid_deepinfer; empty: Python finds it itself
    std::string socket_prefix;   // in a private folder; the ranks' sockets are PREFIXrank.sock
    Duration start_timeout{1'800'000'000'000};  // from spawn to the last greeting: weights load
    Duration progress_timeout{60'000'000'000};  // a rank that is silent this long is stuck
};

struct GroupCounters {
    std::uint64_t frames = 0;
    std::uint64_t pings = 0;
    std::uint64_t unsendable = 0;  // commands larger than a message may be
};

class GroupEngine final : public Engine {
  public:
    GroupEngine(io::Loop& loop, io::Network& network, io::ProcessLauncher& launcher,
                ops::Logger& log, GroupOptions options);
    ~GroupEngine() override;  // kills the ranks

    // Once. kConfig for what a restart cannot mend (a rank ended with 2, ranks that differ),
    // kUnavailable for the rest.
    io::Task<Result<void>> start();

    const model::EngineInfo& info() const override;
    void submit(model::Command command, TimePoint now) override;
    bool has_work() const override { return false; }  // the ranks work; see set_waker
    bool has_output() const override;
    TimePoint wake_at() const override;  // the next look at the ranks' progress
    void set_waker(std::function<void()> wake) override;
    Result<model::StepFrame> step(TimePoint now) override;

    const GroupCounters& counters() const;
    std::vector<int> pids() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nereid::engine::deepinfer
