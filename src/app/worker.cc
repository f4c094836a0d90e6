#include "app/worker.h"

#include <csignal>
#include <cstdio>

#include "app/deepinfer_worker.h"
#include "app/logging.h"
#include "app/serve.h"
#include "cli/command.h"
#include "engine/host/engine_host.h"
#include "io/real_loop.h"
#include "io/real_network.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid worker: one engine behind engine-wire (nereid serve starts it by itself)\n\n"
    "usage: nereid worker --socket PATH [--model PATH] [OPTIONS]\n\n";

const Aliases kAliases = {
    {"socket", "worker.socket"}, {"model", "engine.model"}, {"engine", "engine.kind"}};

io::Task<void> host_until_end(engine::EngineHost& host, std::unique_ptr<io::Listener> listener,
                              io::RealLoop& loop, Result<void>& result) {
    result = co_await host.run(std::move(listener));
    loop.stop();
}

Result<void> run(const WorkerOptions& options) {
    if (options.socket.empty())
        return err(Code::kConfig,
                   "--socket is missing. Mend: give the path of the Unix socket to listen on.");
    if (options.engine.kind == "deepinfer")
        return run_deepinfer_worker(options.engine, options.socket);
    io::RealLoop loop;
    io::RealNetwork network(loop);
    ProcessLog log({}, loop);
    TRY(const auto engine, make_engine(options.engine, loop));
    TRY(auto listener, network.listen({.host = {}, .port = 0, .unix_path = options.socket}));
    engine::EngineHost host(loop, *engine, log.logger());
    const io::SignalWatch watch(loop, {SIGTERM, SIGINT}, [&host](int) { host.stop(); });
    Result<void> result;
    loop.spawn(host_until_end(host, std::move(listener), loop, result));
    loop.run();
    return result;
}

}  // namespace

void WorkerOptions::bind(io::ConfigBinder& b) {
    b.knob("worker.socket", socket, {.doc = "Unix socket to listen on."});
    engine.bind(b);
}

int worker(std::span<const std::string> args) {
    WorkerOptions options;
    const auto bind = [&options](io::ConfigBinder& b) { options.bind(b); };
    auto invocation = cli::parse_invocation(args);
    if (!invocation.ok()) return cli::report(invocation.error());
    if (invocation->help) {
        const std::string help = std::string(kUsage) + io::config_help(bind, kAliases);
        std::fputs(help.c_str(), stdout);
        return cli::kOk;
    }
    const auto loaded =
        io::load_config(bind, {invocation->config_path, invocation->knobs, kAliases});
    if (!loaded.ok()) return cli::report(loaded.error());
    const auto result = run(options);
    return result.ok() ? cli::kOk : cli::report(result.error());
}

}  // namespace nereid::app
