// `nereid gateway`: the front alone, before OpenAI-compatible servers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/frontend.h"
#include "app/logging.h"
#include "app/serve.h"
#include "gateway/gateway.h"
#include "gateway/routing/fleet.h"
#include "io/config.h"

namespace nereid::app {

struct BackendOptions {
    std::vector<std::string> urls;
    std::string model_name = "default";  // what clients call it
    std::string upstream_model;          // what the servers call it; empty = as the client does
    std::int64_t context = 0;
    std::vector<std::string> events;  // "SERVER EVENTS [REPLAY]"
    std::string tokenizer;            // GGUF file
    std::int64_t block_tokens = 16;
    void bind(io::ConfigBinder& b);  // "backend.*"
};

struct GatewayMainOptions {
    gateway::GatewayOptions gateway;
    BackendOptions backend;
    gateway::RoutingOptions routing;
    ServiceOptions service;
    LogOptions log;
    void bind(io::ConfigBinder& b);
};

int gateway_main(std::span<const std::string> args);  // blocks; an exit code

}  // namespace nereid::app
