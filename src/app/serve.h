// `nereid serve`: the embedded default on one machine. Gateway and loops in this process, each
// engine in a supervised child (`nereid worker`), all from one configuration.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/cache_node.h"
#include "app/engine_setup.h"
#include "app/frontend.h"
#include "app/logging.h"
#include "gateway/gateway.h"
#include "gateway/routing/fleet.h"
#include "io/config.h"
#include "pools/local/local_worker.h"

namespace nereid::app {

struct ServeOptions {
    gateway::GatewayOptions gateway;
    EngineOptions engine;
    CacheNodeOptions cache;
    pools::LocalWorkerOptions worker;
    ServiceOptions service;
    std::int64_t engines = 1;
    gateway::RoutingOptions routing;
    LogOptions log;
    void bind(io::ConfigBinder& b);
};

// Short names for the commonest knobs, of serve and gateway.
using Aliases = std::vector<std::pair<std::string, std::string>>;
const Aliases& serve_aliases();

int serve(std::span<const std::string> args);  // blocks until the service has stopped; an exit code

}  // namespace nereid::app
