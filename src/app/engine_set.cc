#include "app/engine_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "io/config.h"

namespace nereid::app {

namespace {

// Beyond a deadline: for the processes to be killed and seen to be gone.
constexpr Duration kKillGrace = 2s;

}  // namespace

Result<void> EngineSet::validate(const EngineOptions& engine, std::int64_t engines) {
    if (engine.kind != "deepinfer") return {};
    const std::size_t groups = engine.deepinfer_groups().size();
    if (groups == 0 || static_cast<std::int64_t>(groups) == engines) return {};
    return err(Code::kConfig,
               fmt::format("service.engines is {}, and engine.deepinfer names {} group(s): a group "
                           "is one engine, whatever its ranks, with devices and a port of its own. "
                           "Mend: service.engines = {}.",
                           engines, groups, groups));
}

EngineSet::EngineSet(Options options, const Surroundings& around)
    : options_(std::move(options)),
      around_(around),
      ended_(around.frontend.loop(), 1),
      probe_(around.metrics),
      routed_(options_.routing, options_.engine.model_name(), {}, probe_) {}

Result<std::unique_ptr<EngineSet>> EngineSet::make(Options options, const Surroundings& around) {
    std::unique_ptr<EngineSet> set(new EngineSet(std::move(options), around));
    for (std::int64_t i = 0; i < set->options_.engines; ++i) TRY_VOID(set->add());
    return set;
}

// The child reads the engine's knobs from a file, so that a new knob needs no second list.
Result<void> EngineSet::add() {
    const std::size_t number = workers_.size();
    EngineOptions engine = options_.engine;
    // An empty one means something for DeepInfer (see open_text).
    if (engine.kind != "deepinfer") {
        engine.model = engine.model_path();
    } else if (const auto groups = engine.deepinfer_groups(); number < groups.size()) {
        engine.deepinfer = groups[number];
    }
    if (engine.threads == 0 && options_.engines > 1) {
        const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
        engine.threads = std::max<std::int64_t>(1, cores / options_.engines);
    }
    TRY(const std::string file,
        around_.folder.write(fmt::format("worker{}.toml", number),
                             io::config_toml([&engine](io::ConfigBinder& b) { engine.bind(b); })));
    pools::LocalWorkerOptions worker = options_.worker;
    if (number > 0) worker.name += fmt::format("-{}", number + 1);
    worker.socket_path = fmt::format("{}/worker{}.sock", around_.folder.path(), number);
    worker.argv = {"/proc/self/exe", "worker", "--config", file, "--socket", worker.socket_path};
    workers_.push_back(pools::make_local_worker(around_.frontend.loop(), around_.frontend.network(),
                                                around_.launcher, around_.log, around_.metrics,
                                                std::move(worker)));
    pools::LocalWorker* added = workers_.back().get();
    running_.push_back(added);
    added->on_state([this, failed = false](const pools::WorkerStatus& status) mutable {
        // A state may be told again: an engine gives up hope once.
        const bool fails = status.state == pools::WorkerState::kFailed;
        heard(status, fails && !std::exchange(failed, fails));
    });
    routed_.add([added](io::Loop& loop) { return added->handle_for(loop); });
    return {};
}

void EngineSet::heard(const pools::WorkerStatus& status, bool has_failed) {
    if (was_ready_) return;
    if (status.state == pools::WorkerState::kReady) {
        was_ready_ = true;
        begin_cost();
        listener_.ready();
    } else if (has_failed && --hopeful_ == 0) {
        listener_.hopeless(status.last_error);
    }
}

// An engine writes it before it greets.
void EngineSet::begin_cost() {
    if (options_.routing.cost.empty()) return;
    const auto cost = options_.routing.engine_cost();
    if (!cost.ok())
        return around_.log.warn("built-in costs are used", {{"error", cost.error().message}});
    around_.log.info("the router's costs begin with the engine's own",
                     {{"prefill_token_us", cost->prefill.per_token_ms * 1e3},
                      {"prefill_token_context_ps", cost->prefill.per_token_context_ms * 1e9},
                      {"decode_fixed_ms", cost->decode.fixed_ms},
                      {"decode_request_us", cost->decode.per_request_ms * 1e3}});
    routed_.begin_cost(*cost);
}

void EngineSet::start(Listener listener) {
    listener_ = std::move(listener);
    hopeful_ = running_.size();
    for (pools::LocalWorker* worker : running_) worker->start();
}

Result<void> EngineSet::resize(std::int64_t engines) {
    if (options_.engine.kind == "deepinfer" && engines != options_.engines)
        return err(Code::kConfig, "DeepInfer groups join and leave at the next start only.");
    options_.engines = engines;
    while (static_cast<std::int64_t>(running_.size()) < engines) {
        TRY_VOID(add());
        ++hopeful_;
        running_.back()->start();
    }
    while (static_cast<std::int64_t>(running_.size()) > engines) {
        // However long its streams take: nothing is lost by a smaller number.
        retire(TimePoint::never());
    }
    return {};
}

// The one that was started last.
void EngineSet::retire(TimePoint deadline) {
    pools::LocalWorker& worker = *running_.back();
    running_.pop_back();
    ++ending_;
    around_.frontend.loop().spawn(end(worker, deadline));
}

io::Task<void> EngineSet::end(pools::LocalWorker& worker, TimePoint deadline) {
    co_await worker.drain(deadline);
    if (--ending_ == 0) ended_.push(0);
}

io::Task<void> EngineSet::stop(TimePoint deadline) {
    while (!running_.empty()) retire(deadline);
    // Whatever has not ended then is killed with this set.
    while (ending_ > 0) {
        const auto all = co_await ended_.pop(deadline + kKillGrace);
        if (!all.ok()) co_return;
    }
}

}  // namespace nereid::app
