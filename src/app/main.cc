#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/cache_command.h"
#include "app/config_command.h"
#include "app/experts_command.h"
#include "app/gateway_main.h"
#include "app/serve.h"
#include "app/sim_command.h"
#include "app/worker.h"
#include "cli/chat.h"
#include "cli/command.h"
#include "cli/keys.h"

namespace {

using Args = std::span<const std::string>;

int print_version(Args) {
    std::puts(nereid::cli::version().c_str());
    return nereid::cli::kOk;
}

int chat(Args args) {
    const char* key = std::getenv("NEREID_API_KEY");
    return nereid::cli::chat(args, key == nullptr ? "" : key);
}

}  // namespace

int main(int argc, char** argv) {
    const nereid::cli::Command commands[] = {
        {"serve", "gateway and engine on this machine", nereid::app::serve},
        {"gateway", "the front alone, before OpenAI-compatible servers", nereid::app::gateway_main},
        {"worker", "one engine behind a Unix socket (serve starts it by itself)",
         nereid::app::worker},
        {"cache", "the KV cache node of this machine: serve, stats, ls, scrub, verify",
         nereid::app::cache_command},
        {"experts", "placement of experts for a running group", nereid::app::experts_command},
        {"chat", "talk to a running service from a terminal", chat},
        {"keys", "make API keys", nereid::cli::keys},
        {"config", "every knob as a page, or the effective ones as a file",
         nereid::app::config_command},
        {"sim", "simulate clusters: run, compare, plan", nereid::app::sim_command},
        {"version", "print the version", print_version},
    };
    return nereid::cli::dispatch(commands, std::vector<std::string>(argv + 1, argv + argc));
}
