#include "app/frontend.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include "app/engine_set.h"
#include "cli/command.h"

namespace nereid::app {

namespace {

// After the streams have ended engines have nothing to do; they get this long to exit by
// themselves.
constexpr Duration kEngineGrace = 5s;

std::size_t count_of(std::int64_t loops) {
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    return loops > 0 ? static_cast<std::size_t>(loops) : cores;
}

}  // namespace

void ServiceOptions::bind(io::ConfigBinder& b) {
    b.knob("service.loops", loops,
           {.unit = "threads",
            .min = 0,
            .max = 1024,
            .doc = "Event loops of the front; 0: one per core."});
}

Frontend::Frontend(const ServiceOptions& options)
    : signals_(main_, {SIGTERM, SIGINT, SIGHUP}, [this](int number) { on_signal(number); }),
      others_(count_of(options.loops) - 1) {
    networks_.push_back(std::make_unique<io::RealNetwork>(main_));
    launchers_.push_back(std::make_unique<io::RealProcessLauncher>(main_));
    for (std::size_t i = 0; i < others_.size(); ++i) {
        others_.run_on(i, [this, i] {
            networks_.push_back(std::make_unique<io::RealNetwork>(others_.loop(i)));
        });
        launchers_.push_back(std::make_unique<io::RealProcessLauncher>(others_.loop(i)));
    }
}

Frontend::~Frontend() {
    for (std::size_t i = 0; i < others_.size(); ++i) {
        others_.run_on(i, [this, i] { networks_[i + 1].reset(); });
    }
}

std::vector<gateway::ShardContext> Frontend::shards() {
    std::vector<gateway::ShardContext> out{{&main_, networks_[0].get(), launchers_[0].get()}};
    for (std::size_t i = 0; i < others_.size(); ++i)
        out.push_back({&others_.loop(i), networks_[i + 1].get(), launchers_[i + 1].get()});
    return out;
}

Result<void> Frontend::check_port_is_free(const gateway::GatewayOptions& options) {
    if (options.port == 0) return {};
    io::Endpoint at;
    at.host = options.host;
    at.port = static_cast<std::uint16_t>(options.port);
    TRY(const auto listener, network().listen(at));
    listener->close();
    return {};
}

int Frontend::run(Parts parts) {
    parts_ = std::move(parts);
    main_.run();
    return code_;
}

void Frontend::fail(int code) {
    code_ = code;
    main_.stop();
}

void Frontend::on_signal(int number) {
    if (number == SIGHUP) {
        if (stopping_) return;
        const auto reloaded = parts_.reload();
        if (reloaded.ok()) {
            parts_.log->info("reloaded");
        } else {
            parts_.log->error("reload failed; the old configuration stays",
                              {{"error", reloaded.error().message}});
        }
        return;
    }
    if (std::exchange(stopping_, true)) {
        parts_.log->warn("second signal: stopping at once");
        fail(cli::kFailed);
        return;
    }
    parts_.log->info("stopping: streams may finish", {{"signal", number}});
    parts_.gateway->drain([this] { main_.spawn(stop_engines()); });
}

io::Task<void> Frontend::stop_engines() {
    if (parts_.engines != nullptr) co_await parts_.engines->stop(main_.now() + kEngineGrace);
    main_.stop();
}

std::string url_of(const io::Endpoint& at, bool tls) {
    std::string host = at.host;
    if (host.empty() || host == "0.0.0.0" || host == "::") host = "127.0.0.1";
    if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
    return fmt::format("{}://{}:{}", tls ? "https" : "http", host, at.port);
}

std::string example_request(const std::string& url, const std::string& model) {
    return fmt::format(
        "curl -N {}/v1/chat/completions -H 'content-type: application/json' \\\n"
        "  -d "
        "'{{\"model\":\"{}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Name "
        "three sea nymphs.\"}}]}}'",
        url, model);
}

}  // namespace nereid::app
