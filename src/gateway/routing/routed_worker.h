// RoutedWorkers: one model served by several engines (embedded children, or workers elsewhere), as
// one pools::WorkerHandle per shard. Prompts are known by their tokens here, prefixes by their
// block keys, and engines report their load with every step.
//
// A request that an engine gives back before its first token (refused, or the engine died) is tried
// once on another, within the retry budget. Workers restart by themselves (pools/local); one that
// restarts or has failed gets nothing new while another is there.
//
// Engines may join and leave at run time: add(), and whoever owns one drains it, which is heard
// here by its state.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gateway/routing/fleet.h"
#include "pools/worker.h"

namespace nereid::gateway {

class RoutedWorkers {
  public:
    using MakeHandle = std::function<std::unique_ptr<pools::WorkerHandle>(io::Loop&)>;
    // One `make` per engine; all have the same model.
    RoutedWorkers(RoutingOptions options, std::string model, std::vector<MakeHandle> make,
                  RoutingProbe& probe);

    // A shard's handle of all of them. Before the gateway starts, on the thread that makes it.
    std::unique_ptr<pools::WorkerHandle> handle_for(io::Loop& loop);
    // Another engine, from soon on. Any time after the shards are made; on the thread that made
    // them, where `make` is called once per shard (a handle is then used on its own loop only).
    void add(const MakeHandle& make);
    // Fleet::begin_cost of every shard, from soon on. As add().
    void begin_cost(const router::CostModel& cost);

  private:
    class Handle;
    struct Peers;
    RoutingOptions options_;
    std::string model_;
    std::vector<MakeHandle> make_;
    RoutingProbe& probe_;
    std::shared_ptr<Peers> peers_;
};

}  // namespace nereid::gateway
