#include "gateway/gateway.h"

#include <atomic>
#include <future>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "gateway/core.h"
#include "gateway/shard.h"
#include "io/disk.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kMaxKeyFile = 16 << 20;

// Runs `fn` on the loop and waits for it. For start, reload and the end, never on the path of a
// request.
void run_on(io::Loop& loop, std::move_only_function<void()> fn) {
    if (loop.on_loop_thread()) return fn();
    std::promise<void> done;
    loop.post([&] {
        fn();
        done.set_value();
    });
    done.get_future().wait();
}

Result<std::shared_ptr<const KeyTable>> load_keys(const std::string& path,
                                                  const KeyTable* previous) {
    if (path.empty()) return std::shared_ptr<const KeyTable>();
    auto text = io::read_file(path, kMaxKeyFile);
    if (!text.ok()) {
        return err(Code::kConfig, fmt::format("gateway.api_keys: {}: {}. Mend: give a readable "
                                              "file; `nereid keys new` makes its lines.",
                                              path, text.error().message));
    }
    return KeyTable::parse(*text, path, previous);
}

Result<void> check_models(const std::vector<ModelEntry>& models) {
    if (models.empty())
        return err(Code::kConfig, "the gateway has no model to serve. Mend: name one.");
    std::set<std::string_view> names;
    for (const ModelEntry& m : models) {
        if (static_cast<bool>(m.worker) == static_cast<bool>(m.text_backend)) {
            return err(Code::kConfig,
                       fmt::format("model \"{}\" needs either a worker or a text backend", m.id));
        }
        bool fresh = names.insert(m.id).second;
        for (const std::string& alias : m.aliases) fresh = names.insert(alias).second && fresh;
        if (!fresh)
            return err(Code::kConfig, fmt::format("model \"{}\": its name or an alias is taken by "
                                                  "another model. Mend: names must differ.",
                                                  m.id));
    }
    return {};
}

class GatewayImpl final : public Gateway {
  public:
    GatewayImpl(std::vector<ShardContext> contexts, GatewayOptions options,
                std::vector<ModelEntry> models, ops::Logger& log, ops::Registry& metrics,
                std::shared_ptr<const KeyTable> keys, State state)
        : contexts_(std::move(contexts)),
          models_(std::move(models)),
          options_(std::move(options)),
          keys_(std::move(keys)),
          core_(options_.queue_max, log, metrics, std::move(state)) {}

    ~GatewayImpl() override {
        for (auto& shard : shards_) run_on(shard->loop(), [&] { shard.reset(); });
    }

    Result<io::Endpoint> start() override {
        TRY_VOID(core_.access_log.open(options_.access_log));
        TRY_VOID(open_tls());
        warn_if_open();
        const auto settings = snapshot();
        io::Endpoint at{.host = options_.host,
                        .port = static_cast<std::uint16_t>(options_.port),
                        .unix_path = {}};
        for (std::size_t i = 0; i < contexts_.size(); ++i) {
            std::unique_ptr<GatewayShard> shard;
            Result<io::Endpoint> bound{at};
            run_on(*contexts_[i].loop, [&] { bound = start_shard(i, at, settings, shard); });
            if (shard) shards_.push_back(std::move(shard));  // null when it could not bind
            if (!bound.ok()) return bound;
            at.port = bound->port;  // with port 0 the first shard's choice is everybody's
        }
        return at;
    }

    Result<void> reload(const GatewayOptions& options) override {
        TRY_VOID(options.validate());
        TRY(auto keys, load_keys(options.api_keys, keys_.get()));
        TRY_VOID(core_.access_log.reopen());
        if (core_.tls) TRY_VOID(core_.tls->reload(contexts_[0].loop->wall_now()));
        options_ = options;
        keys_ = std::move(keys);
        core_.admission.set_queue_max(options_.queue_max);
        for (auto& shard : shards_) {
            run_on(shard->loop(), [&] { shard->apply(snapshot()); });
        }
        return {};
    }

    void drain(std::function<void()> done) override {
        core_.admission.start_drain();
        const auto left = std::make_shared<std::atomic<std::size_t>>(shards_.size());
        const auto one_done = [left, first = contexts_[0].loop, done = std::move(done)] {
            if (left->fetch_sub(1) == 1) first->post(done);
        };
        for (auto& shard : shards_) {
            run_on(shard->loop(),
                   [&] { shard->drain(shard->loop().now() + options_.drain_timeout, one_done); });
        }
    }

  private:
    Result<void> open_tls() {
        if (options_.tls_cert.empty()) return {};
        io::TlsServerOptions files{.certificate_file = options_.tls_cert,
                                   .key_file = options_.tls_key};
        TRY(core_.tls, io::TlsServer::create(std::move(files), contexts_[0].loop->wall_now()));
        return {};
    }

    void warn_if_open() const {
        if (keys_ || is_loopback(options_.host)) return;
        core_.log.warn(
            "OPEN TO THE NETWORK WITHOUT API KEYS: anybody who reaches this port may use the model",
            {{"host", options_.host}, {"mend", "--api-keys FILE"}});
    }

    // A copy per shard, so that requests do not share a reference count between cores.
    std::shared_ptr<const Settings> snapshot() const {
        return std::make_shared<const Settings>(Settings{options_, keys_});
    }

    Result<io::Endpoint> start_shard(std::size_t i, const io::Endpoint& at,
                                     std::shared_ptr<const Settings> settings,
                                     std::unique_ptr<GatewayShard>& out) {
        TRY(auto listener, contexts_[i].network->listen(at, contexts_.size() > 1));
        const io::Endpoint bound = listener->local();
        const bool tls = core_.tls != nullptr;
        if (tls) listener = core_.tls->wrap(*contexts_[i].loop, std::move(listener));
        out = std::make_unique<GatewayShard>(core_, contexts_[i], i, std::move(settings), models_);
        out->serve(std::move(listener), tls);
        if (i == 0) out->resume();
        return bound;
    }

    std::vector<ShardContext> contexts_;
    std::vector<ModelEntry> models_;
    GatewayOptions options_;
    std::shared_ptr<const KeyTable> keys_;
    Core core_;
    std::vector<std::unique_ptr<GatewayShard>> shards_;  // the first to go
};

}  // namespace

Result<std::unique_ptr<Gateway>> make_gateway(std::vector<ShardContext> shards,
                                              GatewayOptions options,
                                              std::vector<ModelEntry> models, ops::Logger& log,
                                              ops::Registry& metrics, State state) {
    TRY_VOID(options.validate());
    TRY_VOID(check_models(models));
    TRY(auto keys, load_keys(options.api_keys, nullptr));
    if (!state.records) {
        TRY(auto database, store::open_sqlite(":memory:"));
        state.records = std::make_shared<store::Records>(std::move(database), *shards[0].loop);
    }
    return std::unique_ptr<Gateway>(
        std::make_unique<GatewayImpl>(std::move(shards), std::move(options), std::move(models), log,
                                      metrics, std::move(keys), std::move(state)));
}

}  // namespace nereid::gateway
