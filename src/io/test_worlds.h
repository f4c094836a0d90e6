// The worlds in which io's tests run the same body: a loop and a network, real or simulated.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/sim_loop.h"
#include "io/sim_network.h"

namespace nereid::io {

struct RealWorld {
    RealLoop loop;
    bool run_until(const std::function<bool()>& done) { return loop.run_until(done, 20s); }
};

struct TcpWorld : RealWorld {
    RealNetwork net{loop};
    Network& network() { return net; }
    Endpoint listen_at() { return {.host = "127.0.0.1", .port = 0, .unix_path = {}}; }
};

struct UnixWorld : RealWorld {
    RealNetwork net{loop};
    int next = 0;
    Network& network() { return net; }
    Endpoint listen_at() {
        return {.host = {},
                .port = 0,
                .unix_path = testing::TempDir() + "nereid-io-" + std::to_string(getpid()) + "-" +
                             std::to_string(next++)};
    }
};

struct SimWorld {
    SimScheduler scheduler{7};
    SimLoop loop{scheduler};
    SimNetwork net{scheduler, {}};
    SimHost host{net, "10.0.0.1", loop};
    bool run_until(const std::function<bool()>& done) {
        return scheduler.run_until(done, 1h) == SimEnd::kDone;
    }
    Network& network() { return host; }
    Endpoint listen_at() { return {.host = "10.0.0.1", .port = 0, .unix_path = {}}; }
};

using LoopWorlds = testing::Types<RealWorld, SimWorld>;
using NetworkWorlds = testing::Types<TcpWorld, UnixWorld, SimWorld>;

// Runs the coroutine function `f` to its end on the world's loop.
template <class World, class F>
void run_in(World& world, F f) {
    bool done = false;
    const auto body = [](F& fn, bool& flag) -> Task<void> {
        co_await fn();
        flag = true;
    };
    world.loop.spawn(body(f, done));
    ASSERT_TRUE(world.run_until([&] { return done; }));
}

}  // namespace nereid::io
