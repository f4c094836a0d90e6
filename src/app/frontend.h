// Frontend: what `nereid serve` and `nereid gateway` share: one loop per core, signals, reload,
// graceful stop.
//
// The calling thread runs loop 0, which also owns signals and, in `serve`, the engine children; the
// other loops have threads of their own. SIGTERM and SIGINT: the gateway drains, then the
// engines, then run() returns 0; a second one ends at once with 1. SIGHUP: `reload` is called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gateway/gateway.h"
#include "io/config.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/real_process.h"
#include "ops/log.h"

namespace nereid::app {

class EngineSet;

struct ServiceOptions {
    std::int64_t loops = 0;
    void bind(io::ConfigBinder& b);  // "service.*"
};

class Frontend {
  public:
    explicit Frontend(const ServiceOptions& options);
    ~Frontend();  // gateways and workers are gone by then
    Frontend(const Frontend&) = delete;
    Frontend& operator=(const Frontend&) = delete;

    io::RealLoop& loop() { return main_; }
    io::RealNetwork& network() { return *networks_[0]; }
    std::vector<gateway::ShardContext> shards();
    // kConflict when another process listens there. Loops share a port (SO_REUSEPORT), so binding
    // it would succeed beside another service of the same user, and take half of its connections.
    Result<void> check_port_is_free(const gateway::GatewayOptions& options);

    struct Parts {
        gateway::Gateway* gateway = nullptr;
        EngineSet* engines = nullptr;          // may be null
        std::function<Result<void>()> reload;  // on loop 0; an error is logged
        ops::Logger* log = nullptr;
    };
    // Blocks; returns an exit code.
    int run(Parts parts);
    // On loop 0: run() returns `code` soon, without draining.
    void fail(int code);

  private:
    void on_signal(int number);
    io::Task<void> stop_engines();

    io::RealLoop main_;
    io::SignalWatch signals_;  // from the start: what is made before run() is cleaned up after it
    io::LoopThreads others_;
    std::vector<std::unique_ptr<io::RealNetwork>> networks_;
    std::vector<std::unique_ptr<io::RealProcessLauncher>> launchers_;  // each for its loop's thread
    Parts parts_;
    bool stopping_ = false;
    int code_ = 0;
};

// "http://127.0.0.1:8080" for an endpoint as it was bound (a wildcard address becomes loopback: it
// is for copy and paste).
std::string url_of(const io::Endpoint& at, bool tls);
// A request to paste, for `model` at `url`.
std::string example_request(const std::string& url, const std::string& model);

}  // namespace nereid::app
