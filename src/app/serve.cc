#include "app/serve.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "app/engine_set.h"
#include "app/runtime_folder.h"
#include "app/state_setup.h"
#include "cli/command.h"
#include "io/real_process.h"
#include "ops/metrics.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid serve: gateway and engine on this machine\n\n"
    "usage: nereid serve [--model PATH] [--port N] [--config FILE] [OPTIONS]\n\n"
    "  --config FILE        TOML file with the options below (SIGHUP reads it again)\n"
    "  --listen HOST:PORT   short for --gateway.host and --gateway.port\n\n";

Result<ServeOptions> load(const cli::Invocation& invocation) {
    ServeOptions options;
    TRY_VOID(io::load_config([&options](io::ConfigBinder& b) { options.bind(b); },
                             {invocation.config_path, invocation.knobs, serve_aliases()}));
    TRY_VOID(options.gateway.validate());
    TRY_VOID(options.routing.validate());
    TRY_VOID(EngineSet::validate(options.engine, options.engines));
    return options;
}

void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
}

gateway::ModelEntry model_entry(const ServeOptions& options, text::TextModel text,
                                EngineSet& engines, std::int64_t created) {
    gateway::ModelEntry entry;
    entry.id = options.engine.model_name();
    if (entry.id != "default") entry.aliases = {"default"};
    entry.created = created;
    entry.text = std::move(text);
    entry.worker = [&engines](io::Loop& loop) { return engines.handle_for(loop); };
    return entry;
}

Result<void> reload(const cli::Invocation& invocation, ServeOptions& running,
                    gateway::Gateway& gateway, EngineSet& engines, ops::Logger& log) {
    TRY(auto fresh, load(invocation));
    const auto keys = io::restart_needed([&running](io::ConfigBinder& b) { running.bind(b); },
                                         [&fresh](io::ConfigBinder& b) { fresh.bind(b); });
    TRY_VOID(gateway.reload(fresh.gateway));
    TRY_VOID(engines.resize(fresh.engines));
    running.engines = fresh.engines;
    for (const auto& key : keys)
        log.warn("this key changes at the next start only", {{"key", key}});
    log.set_level(fresh.log.parsed());
    running.gateway = fresh.gateway;
    running.log = fresh.log;
    return {};
}

Result<int> serve(const cli::Invocation& invocation) {
    TRY(auto options, load(invocation));
    // Files first: their faults are told at once, not by a child.
    TRY(auto text, open_text(options.engine));
    Frontend frontend(options.service);
    TRY(const auto folder, RuntimeFolder::create());
    ProcessLog process_log(options.log, frontend.loop());
    ops::Logger& log = process_log.logger();
    ops::Registry metrics;

    EngineOptions engine = options.engine;
    TRY(const auto cache, CacheNode::start(options.cache, engine, folder.path(), metrics, log));
    io::RealProcessLauncher launcher(frontend.loop());
    TRY(const auto engines, EngineSet::make({.engine = std::move(engine),
                                             .worker = options.worker,
                                             .routing = options.routing,
                                             .engines = options.engines},
                                            {.frontend = frontend,
                                             .folder = folder,
                                             .launcher = launcher,
                                             .log = log,
                                             .metrics = metrics}));

    TRY(const auto state, StateHolder::open(options.gateway.state));
    TRY_VOID(frontend.check_port_is_free(options.gateway));
    std::vector<gateway::ModelEntry> models;
    models.push_back(
        model_entry(options, std::move(text), *engines, frontend.loop().wall_now().seconds()));
    const std::string name = models[0].id;
    TRY(const auto gateway, gateway::make_gateway(frontend.shards(), options.gateway,
                                                  std::move(models), log, metrics, state->state()));
    frontend.loop().spawn(state->keep_clean(frontend.loop(), log));
    TRY(const auto at, gateway->start());
    const std::string url = url_of(at, !options.gateway.tls_cert.empty());
    say(fmt::format("nereid: listening on {}; {} is loading", url, name));
    engines->start({.ready =
                        [&] {
                            say(fmt::format("nereid: ready, {} answers. Try:\n\n{}\n", name,
                                            example_request(url, "default")));
                        },
                    .hopeless =
                        [&](const std::string& error) {
                            frontend.fail(cli::report({Code::kConfig, error}));
                        }});
    return frontend.run(
        {.gateway = gateway.get(),
         .engines = engines.get(),
         .reload = [&] { return reload(invocation, options, *gateway, *engines, log); },
         .log = &log});
}

}  // namespace

void ServeOptions::bind(io::ConfigBinder& b) {
    gateway.bind(b);
    engine.bind(b);
    cache.bind(b);
    worker.bind(b);
    service.bind(b);
    b.knob("service.engines", engines,
           {.unit = "processes",
            .min = 1,
            .max = 64,
            .reload = true,
            .doc = "Engine processes, each with the model in memory; "
                   "`router.policy` chooses among them. At a reload new ones start, and the last "
                   "ones finish what they have and end."});
    routing.bind(b);
    log.bind(b);
}

const Aliases& serve_aliases() {
    static const Aliases aliases = {{"model", "engine.model"},
                                    {"host", "gateway.host"},
                                    {"port", "gateway.port"},
                                    {"api-keys", "gateway.api_keys"},
                                    {"allow-open-network", "gateway.allow_open_network"},
                                    {"tls-cert", "gateway.tls_cert"},
                                    {"tls-key", "gateway.tls_key"},
                                    {"parallel", "engine.parallel"},
                                    {"threads", "engine.threads"},
                                    {"engine", "engine.kind"},
                                    {"script", "engine.script"},
                                    {"state", "gateway.state"}};
    return aliases;
}

int serve(std::span<const std::string> args) {
    auto invocation = cli::parse_invocation(args);
    if (!invocation.ok()) return cli::report(invocation.error());
    if (invocation->help) {
        ServeOptions options;
        const std::string help =
            std::string(kUsage) +
            io::config_help([&options](io::ConfigBinder& b) { options.bind(b); }, serve_aliases());
        std::fputs(help.c_str(), stdout);
        return cli::kOk;
    }
    const auto code = serve(*invocation);
    return code.ok() ? *code : cli::report(code.error());
}

}  // namespace nereid::app
