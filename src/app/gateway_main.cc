#include "app/gateway_main.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "app/state_setup.h"
#include "cli/command.h"
#include "engine/openai/base_url.h"
#include "engine/openai/text_backend.h"
#include "gateway/routing/routed_text.h"
#include "io/zmtp.h"
#include "ops/metrics.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid gateway: the front alone, before OpenAI-compatible servers\n\n"
    "usage: nereid gateway --backend URL [--backend URL ...] [--model-name NAME] [OPTIONS]\n\n"
    "The servers' API key, if they want one, is read from the environment: "
    "NEREID_BACKEND_API_KEY.\n"
    "  --config FILE        TOML file with the options below (SIGHUP reads it again)\n"
    "  --listen HOST:PORT   short for --gateway.host and --gateway.port\n\n";

const Aliases& aliases() {
    static const Aliases all = [] {
        Aliases out{{"backend", "backend.urls"},
                    {"model-name", "backend.model_name"},
                    {"upstream-model", "backend.upstream_model"}};
        for (const auto& alias : serve_aliases()) {
            if (alias.second.starts_with("gateway.")) out.push_back(alias);
        }
        return out;
    }();
    return all;
}

Result<GatewayMainOptions> load(const cli::Invocation& invocation) {
    GatewayMainOptions options;
    TRY_VOID(io::load_config([&options](io::ConfigBinder& b) { options.bind(b); },
                             {invocation.config_path, invocation.knobs, aliases()}));
    TRY_VOID(options.gateway.validate());
    if (options.backend.urls.empty()) {
        return err(Code::kConfig,
                   "there is no server to stand in front of. Mend: --backend http://HOST:PORT (key "
                   "backend.urls).");
    }
    for (const auto& url : options.backend.urls) TRY_VOID(engine::openai::parse_base_url(url));
    TRY_VOID(options.routing.validate());
    if (!options.routing.cost.empty()) {
        TRY(options.routing.first_cost, options.routing.engine_cost());
    }
    return options;
}

// "http://a:8000 tcp://a:5557 tcp://a:5558": a server, where it publishes, where it replays.
Result<gateway::KvSources::One> parse_source(const std::string& text) {
    std::istringstream words(text);
    gateway::KvSources::One out;
    std::string events;
    std::string replay;
    std::string more;
    words >> out.server >> events >> replay >> more;
    if (events.empty() || !more.empty())
        return err(Code::kConfig, "backend.events: '" + text +
                                      "' is not \"SERVER EVENTS [REPLAY]\". Mend: like "
                                      "\"http://a:8000 tcp://a:5557 tcp://a:5558\".");
    const auto endpoint = [](const std::string& word) -> Result<io::Endpoint> {
        auto parsed = io::zmtp::parse_endpoint(word);
        if (!parsed.ok()) return err(Code::kConfig, "backend.events: " + parsed.error().message);
        return parsed;
    };
    TRY(out.events, endpoint(events));
    if (!replay.empty()) {
        TRY(out.replay, endpoint(replay));
    }
    return out;
}

Result<gateway::KvSources> kv_sources(const BackendOptions& options) {
    gateway::KvSources out;
    out.block_tokens = static_cast<TokenCount>(options.block_tokens);
    for (const std::string& text : options.events) {
        TRY(auto one, parse_source(text));
        out.all.push_back(std::move(one));
    }
    if (out.all.empty()) return out;
    if (options.tokenizer.empty())
        return err(Code::kConfig,
                   "backend.events needs the model's tokenizer, since events name tokens. Mend: "
                   "backend.tokenizer = a GGUF file or a folder with tokenizer.json of the same "
                   "model.");
    TRY(out.text, text::open_text_model(options.tokenizer));
    return out;
}

// All servers as one backend per shard, chosen by the router.
std::unique_ptr<gateway::RoutedText> routed_servers(const GatewayMainOptions& options,
                                                    gateway::RoutingProbe& probe,
                                                    gateway::KvSources sources,
                                                    gateway::KvFeedProbe& feed_probe) {
    engine::openai::TextBackendOptions upstream;
    upstream.model = options.backend.upstream_model;
    upstream.event_timeout = options.gateway.upstream_timeout;
    if (const char* key = std::getenv("NEREID_BACKEND_API_KEY")) upstream.api_key = key;
    const auto make = [upstream](const gateway::ShardContext& shard, const std::string& url) {
        auto one = upstream;
        one.base_urls = {url};
        auto backend = engine::openai::make_text_backend(*shard.loop, *shard.network, one);
        CHECK_MSG(backend.ok(), "the base urls were read at start");
        return std::move(*backend);
    };
    return std::make_unique<gateway::RoutedText>(options.routing, options.backend.model_name,
                                                 options.backend.urls, make, probe,
                                                 std::move(sources), &feed_probe);
}

gateway::ModelEntry model_entry(const GatewayMainOptions& options, gateway::RoutedText& servers,
                                std::int64_t created) {
    gateway::ModelEntry entry;
    entry.id = options.backend.model_name;
    if (entry.id != "default") entry.aliases = {"default"};
    entry.created = created;
    entry.context_tokens = static_cast<TokenCount>(options.backend.context);
    entry.text_backend = [&servers](const gateway::ShardContext& shard) {
        return servers.backend_for(shard);
    };
    return entry;
}

Result<void> reload(const cli::Invocation& invocation, GatewayMainOptions& running,
                    gateway::Gateway& gateway, gateway::RoutedText& servers, ops::Logger& log) {
    TRY(auto fresh, load(invocation));
    const auto keys = io::restart_needed([&running](io::ConfigBinder& b) { running.bind(b); },
                                         [&fresh](io::ConfigBinder& b) { fresh.bind(b); });
    TRY_VOID(gateway.reload(fresh.gateway));
    if (fresh.backend.urls != running.backend.urls) servers.set_urls(fresh.backend.urls);
    running.backend.urls = fresh.backend.urls;
    for (const auto& key : keys)
        log.warn("this key changes at the next start only", {{"key", key}});
    log.set_level(fresh.log.parsed());
    running.gateway = fresh.gateway;
    running.log = fresh.log;
    return {};
}

Result<int> run(const cli::Invocation& invocation) {
    TRY(auto options, load(invocation));
    TRY(auto sources, kv_sources(options.backend));
    Frontend frontend(options.service);
    ProcessLog process_log(options.log, frontend.loop());
    ops::Logger& log = process_log.logger();
    ops::Registry metrics;
    TRY(const auto state, StateHolder::open(options.gateway.state));
    TRY_VOID(frontend.check_port_is_free(options.gateway));
    std::vector<gateway::ModelEntry> models;
    gateway::RoutingProbe routing_probe(metrics);
    for (const auto& source : sources.all) {
        if (std::ranges::find(options.backend.urls, source.server) == options.backend.urls.end())
            log.warn("backend.events names a server that backend.urls does not",
                     {{"server", source.server}});
    }
    gateway::KvFeedProbe feed_probe(metrics);
    const auto servers = routed_servers(options, routing_probe, std::move(sources), feed_probe);
    models.push_back(model_entry(options, *servers, frontend.loop().wall_now().seconds()));
    TRY(const auto gateway, gateway::make_gateway(frontend.shards(), options.gateway,
                                                  std::move(models), log, metrics, state->state()));
    frontend.loop().spawn(state->keep_clean(frontend.loop(), log));
    TRY(const auto at, gateway->start());
    const std::string url = url_of(at, !options.gateway.tls_cert.empty());
    const std::string text = fmt::format("nereid: listening on {} before {}. Try:\n\n{}\n\n", url,
                                         fmt::join(options.backend.urls, ", "),
                                         example_request(url, options.backend.model_name));
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    return frontend.run(
        {.gateway = gateway.get(),
         .engines = nullptr,
         .reload = [&] { return reload(invocation, options, *gateway, *servers, log); },
         .log = &log});
}

}  // namespace

void BackendOptions::bind(io::ConfigBinder& b) {
    b.knob("backend.urls", urls,
           {.reload = true,
            .doc = "Base URLs of OpenAI-compatible servers. `router.policy` chooses among them; "
                   "at a reload new ones join and missing ones finish what they have."});
    b.knob("backend.model_name", model_name, {.doc = "What clients call the model."});
    b.knob("backend.upstream_model", upstream_model,
           {.doc = "What the servers call it; empty: as the client does."});
    b.knob("backend.context", context,
           {.unit = "tokens",
            .min = 0,
            .max = 1e7,
            .doc = "The model's context, for /v1/models; 0: not told."});
    b.knob(
        "backend.events", events,
        {.doc = "KV events of servers (vLLM, SGLang), each \"SERVER EVENTS [REPLAY]\": a url of "
                "backend.urls, its ZeroMQ publisher, its replay socket. They say who holds which "
                "prompts."});
    b.knob("backend.tokenizer", tokenizer,
           {.doc = "GGUF file of the servers' model, or its folder with a tokenizer.json, with "
                   "backend.events: its vocabulary and template (weights are not read)."});
    b.knob("backend.block_tokens", block_tokens,
           {.unit = "tokens",
            .min = 1,
            .max = 4096,
            .doc = "Block size of the servers' KV cache, with backend.events."});
}

void GatewayMainOptions::bind(io::ConfigBinder& b) {
    gateway.bind(b);
    backend.bind(b);
    routing.bind(b);
    service.bind(b);
    log.bind(b);
}

int gateway_main(std::span<const std::string> args) {
    auto invocation = cli::parse_invocation(args);
    if (!invocation.ok()) return cli::report(invocation.error());
    if (invocation->help) {
        GatewayMainOptions options;
        const std::string help =
            std::string(kUsage) +
            io::config_help([&options](io::ConfigBinder& b) { options.bind(b); }, aliases());
        std::fputs(help.c_str(), stdout);
        return cli::kOk;
    }
    const auto code = run(*invocation);
    return code.ok() ? *code : cli::report(code.error());
}

}  // namespace nereid::app
