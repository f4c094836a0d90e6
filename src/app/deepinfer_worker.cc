#include "app/deepinfer_worker.h"

#include <csignal>
#include <filesystem>
#include <utility>

#include "app/logging.h"
#include "engine/deepinfer/group_engine.h"
#include "engine/host/engine_host.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/real_process.h"

namespace nereid::app {

namespace {

io::Task<Result<void>> start_and_host(engine::deepinfer::GroupEngine& group,
                                      engine::EngineHost& host, io::Network& network,
                                      const std::string& socket) {
    CO_TRY_VOID(co_await group.start());
    // The socket appears when the group is ready: who connects is greeted at once.
    CO_TRY(auto listener, network.listen({.host = {}, .port = 0, .unix_path = socket}));
    co_return co_await host.run(std::move(listener));
}

io::Task<void> until_end(engine::deepinfer::GroupEngine& group, engine::EngineHost& host,
                         io::Network& network, const std::string& socket, io::RealLoop& loop,
                         Result<void>& result) {
    result = co_await start_and_host(group, host, network, socket);
    loop.stop();
}

}  // namespace

Result<void> run_deepinfer_worker(const EngineOptions& options, const std::string& socket) {
    if (options.deepinfer.empty())
        return err(Code::kConfig,
                   "engine.deepinfer is empty. Mend: name the TOML file of the group "
                   "(docs/ops/deepinfer.md).");
    io::RealLoop loop;
    io::RealNetwork network(loop);
    io::RealProcessLauncher launcher(loop);
    ProcessLog log({}, loop);
    engine::deepinfer::GroupOptions group_options;
    group_options.config = std::filesystem::absolute(options.deepinfer).string();
    group_options.python = options.deepinfer_python;
    group_options.package_folder = options.deepinfer_package;
    // Several groups of one service share its folder.
    group_options.socket_prefix =
        std::filesystem::absolute(socket).replace_extension("rank-").string();
    group_options.progress_timeout = options.deepinfer_progress_timeout;
    engine::deepinfer::GroupEngine group(loop, network, launcher, log.logger(), group_options);
    engine::EngineHost host(loop, group, log.logger());
    bool stopping = false;
    const io::SignalWatch watch(loop, {SIGTERM, SIGINT}, [&](int) {
        stopping = true;
        host.stop();
        loop.stop();
    });
    Result<void> result;
    loop.spawn(until_end(group, host, network, socket, loop, result));
    loop.run();
    if (stopping) return {};
    return result;
}

}  // namespace nereid::app
