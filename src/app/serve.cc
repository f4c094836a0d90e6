#include "app/serve.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

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
    return options;
}

// The child reads the engine's knobs from a file, so that a new knob needs no second list.
Result<std::vector<std::string>> child_command(const ServeOptions& options,
                                               const RuntimeFolder& folder,
                                               const std::string& socket) {
    EngineOptions engine = options.engine;
    // An empty one means something for DeepInfer (see open_text).
    if (engine.kind != "deepinfer") engine.model = engine.model_path();
    TRY(const std::string file,
        folder.write("worker.toml",
                     io::config_toml([&engine](io::ConfigBinder& b) { engine.bind(b); })));
    return std::vector<std::string>{"/proc/self/exe", "worker", "--config", file,
                                    "--socket",       socket};
}

void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
}

// Tells people when the engine is there, and ends a service whose engine can never start.
class Announcer {
  public:
    Announcer(Frontend& frontend, std::string url, std::string model)
        : frontend_(frontend), url_(std::move(url)), model_(std::move(model)) {}
    void operator()(const pools::WorkerStatus& status) {
        if (status.state == pools::WorkerState::kReady && !std::exchange(was_ready_, true)) {
            say(fmt::format("nereid: ready, {} answers. Try:\n\n{}\n", model_,
                            example_request(url_, "default")));
        }
        if (status.state == pools::WorkerState::kFailed && !was_ready_) {
            frontend_.fail(cli::report({Code::kConfig, status.last_error}));
        }
    }

  private:
    Frontend& frontend_;
    std::string url_, model_;
    bool was_ready_ = false;
};

gateway::ModelEntry model_entry(const ServeOptions& options, text::TextModel text,
                                pools::LocalWorker& worker, std::int64_t created) {
    gateway::ModelEntry entry;
    entry.id = options.engine.model_name();
    if (entry.id != "default") entry.aliases = {"default"};
    entry.created = created;
    entry.text = std::move(text);
    entry.worker = [&worker](io::Loop& loop) { return worker.handle_for(loop); };
    return entry;
}

Result<void> reload(const cli::Invocation& invocation, ServeOptions& running,
                    gateway::Gateway& gateway, ops::Logger& log) {
    TRY(auto fresh, load(invocation));
    const auto keys = io::restart_needed([&running](io::ConfigBinder& b) { running.bind(b); },
                                         [&fresh](io::ConfigBinder& b) { fresh.bind(b); });
    TRY_VOID(gateway.reload(fresh.gateway));
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

    options.worker.socket_path = folder.path() + "/worker.sock";
    TRY(options.worker.argv, child_command(options, folder, options.worker.socket_path));
    io::RealProcessLauncher launcher(frontend.loop());
    const auto worker = pools::make_local_worker(frontend.loop(), frontend.network(), launcher, log,
                                                 metrics, options.worker);

    TRY(const auto state, StateHolder::open(options.gateway.state));
    TRY_VOID(frontend.check_port_is_free(options.gateway));
    std::vector<gateway::ModelEntry> models;
    models.push_back(
        model_entry(options, std::move(text), *worker, frontend.loop().wall_now().seconds()));
    const std::string name = models[0].id;
    TRY(const auto gateway, gateway::make_gateway(frontend.shards(), options.gateway,
                                                  std::move(models), log, metrics, state->state()));
    frontend.loop().spawn(state->keep_clean(frontend.loop(), log));
    TRY(const auto at, gateway->start());
    const std::string url = url_of(at, !options.gateway.tls_cert.empty());
    say(fmt::format("nereid: listening on {}; {} is loading", url, name));
    worker->on_state(Announcer(frontend, url, name));
    worker->start();
    return frontend.run({.gateway = gateway.get(),
                         .worker = worker.get(),
                         .reload = [&] { return reload(invocation, options, *gateway, log); },
                         .log = &log});
}

}  // namespace

void ServeOptions::bind(io::ConfigBinder& b) {
    gateway.bind(b);
    engine.bind(b);
    worker.bind(b);
    service.bind(b);
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
