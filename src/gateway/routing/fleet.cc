#include "gateway/routing/fleet.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "io/disk.h"
#include "router/cost/engine_cost.h"

namespace nereid::gateway {
namespace {

using router::Outcome;
using router::Stage;
using router::WorkerState;

constexpr Duration kDigestEvery = 100ms;
constexpr Duration kBalanceEvery = 1s;
constexpr std::uint64_t kRefitEvery = 16;  // observations
constexpr std::size_t kMaxCostFile = 1 << 20;

router::ViewOptions view_options(const Fleet::Options& o) {
    router::ViewOptions out{.self = router::GatewayId{o.shard + 1},
                            .block_tokens = o.block_tokens,
                            .slow_start = o.routing.slow_start};
    if (!o.events) out.residency.speculative_ttl = o.routing.affinity;
    out.residency.max_bytes = 64u << 20u;
    return out;
}

}  // namespace

void RoutingOptions::bind(io::ConfigBinder& b) {
    const auto names = router::stage_policy_names();
    std::vector<std::string_view> choices;
    for (const std::string_view name : names) {
        if (name.ends_with("+fetch")) continue;  // backends here do not fetch from each other
        if (router::make_stage_policy(name, Stage::kUnified).ok()) choices.push_back(name);
    }
    b.knob("router.policy", policy,
           {.choices = choices,
            .doc = "How a backend is chosen: ours (`unified-cost`), or as other routers do."});
    b.knob("router.retry_ratio", retry_ratio,
           {.min = 0,
            .max = 1,
            .doc = "Requests tried once elsewhere when they fail before the first byte, as a share "
                   "of all."});
    b.knob("router.retry_burst", retry_burst,
           {.unit = "requests", .min = 0, .max = 1e6, .doc = "Retries saved up at most."});
    b.knob("router.slow_start", slow_start,
           {.min = 0,
            .max = 3600,
            .doc = "How long a backend that joins gets less than its share; 0: at once all."});
    b.knob("router.affinity", affinity,
           {.min = 0,
            .max = 86'400,
            .doc = "How long a prompt is assumed to be in the cache of the backend it went to."});
    b.knob("router.cost", cost,
           {.doc = "File with the engine's own model of its costs, where the online fit begins: "
                   "cost.json of a DeepInfer group's report_folder. Empty: built-in values."});
    b.knob("router.cost_tflops", cost_tflops,
           {.unit = "TFLOP/s",
            .min = 0,
            .max = 1e9,
            .doc = "What an engine reaches in prefill, for the FLOPs in that file; 0: measured."});
}

Result<router::CostModel> RoutingOptions::engine_cost() const {
    const auto read = [this]() -> Result<router::CostModel> {
        TRY(const std::string text, io::read_file(cost, kMaxCostFile));
        TRY(const Json source, Json::parse(text));
        return router::cost_of_engine(source, cost_tflops, router::CostModel{});
    };
    auto made = read();
    if (made.ok()) return made;
    return err(Code::kConfig, "router.cost: " + cost + ": " + made.error().message);
}

Result<void> RoutingOptions::validate() const {
    TRY(const auto made, router::make_stage_policy(policy, Stage::kUnified));
    return {};
}

RoutingProbe::RoutingProbe(ops::Registry& r)
    : chosen_(r.counter("nereid_router_chosen_total",
                        "Requests sent to a backend, retries included.", {"backend"})),
      busy_(r.counter("nereid_router_busy_total", "Answers that said \"busy\" (429, 503).",
                      {"backend"})),
      opened_(r.counter("nereid_router_breaker_opened_total", "Times a backend's breaker opened.",
                        {"backend"})),
      in_flight_(r.gauge("nereid_router_in_flight", "Requests at a backend now.", {"backend"})),
      balance_(
          r.gauge("nereid_router_balance_efficiency",
                  "Mean/max over backends of the predicted ms given to each in the last 10-20 s.",
                  {"model", "shard"})),
      retried_(r.counter("nereid_router_retries_total",
                         "Requests tried once elsewhere before their first byte.")),
      no_budget_(r.counter("nereid_router_retries_refused_total",
                           "Retries that the retry budget did not allow.")),
      nobody_(r.counter("nereid_router_nobody_total", "Requests for which no backend was there.")) {
}

RoutingProbe::Backend RoutingProbe::backend(std::string_view name) {
    return {.chosen = &chosen_.with({name}),
            .busy = &busy_.with({name}),
            .opened = &opened_.with({name}),
            .in_flight = &in_flight_.with({name})};
}

ops::Gauge& RoutingProbe::balance(std::string_view model, std::size_t shard) {
    return balance_.with({model, std::to_string(shard)});
}

Fleet::Fleet(const Options& options)
    : options_(options),
      view_(view_options(options)),
      fit_(view_.cost(Stage::kUnified)),
      prng_(options.seed),
      budget_(options.routing.retry_ratio, static_cast<double>(options.routing.retry_burst)) {
    auto made = router::make_router({.unified = options.routing.policy});
    CHECK_MSG(made.ok(), "the policy was checked at start");
    policy_ = std::move(*made);
    if (options.routing.first_cost) begin_cost(*options.routing.first_cost, TimePoint{});
}

void Fleet::begin_cost(const router::CostModel& cost, TimePoint now) {
    fit_ = router::CostFit(cost);
    learnt_ = 0;
    view_.set_cost(Stage::kUnified, cost, now);
}

std::size_t Fleet::add(std::string_view name, TimePoint now) {
    const std::size_t index = backends_.size();
    // The epoch tells a name's lives apart.
    const auto worker = view_.add_worker({.name = std::string(name),
                                          .epoch = index,
                                          .stage = Stage::kUnified,
                                          .block_tokens = options_.block_tokens},
                                         now);
    CHECK(worker.ok() && worker->value == index);
    Backend& b = backends_.emplace_back();
    b.name = name;
    b.worker = *worker;
    if (options_.probe != nullptr) b.probe = options_.probe->backend(name);
    return index;
}

void Fleet::drain(std::size_t index, TimePoint now) {
    backends_[index].draining = true;
    view_.set_state(backends_[index].worker, WorkerState::kDraining, now);
}

void Fleet::remove(std::size_t index, TimePoint now) {
    backends_[index].draining = true;
    backends_[index].removed = true;
    view_.remove_worker(backends_[index].worker, now);
}

bool Fleet::live(std::size_t index) const { return !backends_[index].draining; }

// Breakers into worker states; all open: all closed.
void Fleet::refresh(TimePoint now) {
    std::size_t admitted = 0;
    for (const Backend& b : backends_) {
        admitted += !b.draining && b.health.admits(now) ? 1 : 0;
    }
    for (const Backend& b : backends_) {
        if (b.draining) continue;
        const bool ready = admitted == 0 || b.health.admits(now);
        const WorkerState wanted = ready ? WorkerState::kReady : WorkerState::kBlocked;
        if (view_.state(b.worker) != wanted) view_.set_state(b.worker, wanted, now);
    }
    view_.tick(now);
}

Result<Fleet::Try> Fleet::choose(const router::RouteRequest& request, TimePoint now) {
    refresh(now);
    auto plan = policy_->choose(view_, request, now, prng_);
    if (!plan.ok()) {
        if (options_.probe != nullptr) options_.probe->nobody();
        return plan.error();
    }
    policy_->committed(view_, request, *plan, now);
    const router::RankSlot slot = plan->prefill->charge.slot;
    Try t;
    t.fleet_ = this;
    t.index_ = plan->prefill->rank.worker.value;
    t.uncached_ = plan->prefill->charge.prefill_tokens;
    t.cached_ = plan->cached_tokens;
    t.alone_ = view_.load(slot).requests == 0;
    t.begin_ = t.end_time_ = now;
    balance_.add(slot,
                 plan->prefill->charge.prefill_ms +
                     request.expected_output *
                         view_.cost(Stage::kUnified).decode.load_ms(1, request.prompt_tokens),
                 now);
    t.charge_ = view_.apply(plan->prefill->charge, now);
    view_.expect(*plan, request.blocks, now);
    Backend& b = backends_[t.index_];
    b.health.begin(now);
    ++b.in_flight;
    if (options_.probe != nullptr) {
        b.probe.chosen->add();
        b.probe.in_flight->add(1);
        if (now >= next_balance_) {
            next_balance_ = now + kBalanceEvery;
            slots_.clear();
            for (const Backend& x : backends_) {
                if (!x.draining) slots_.push_back(view_.slot({x.worker, 0}));
            }
            options_.probe->balance(options_.model, options_.shard)
                .set(balance_.efficiency(slots_, now));
        }
    }
    return t;
}

bool Fleet::may_retry(const Error& error) {
    const Outcome outcome = router::classify_error(error.code);
    // kConfig: it refuses our credential; no fault of its own, and others may take the request.
    const bool elsewhere =
        outcome == Outcome::kFault || outcome == Outcome::kBusy || error.code == Code::kConfig;
    if (!elsewhere) return false;
    std::size_t others = 0;
    for (const Backend& b : backends_) others += b.draining ? 0 : 1;
    if (others < 2) return false;
    const bool allowed = budget_.take();
    if (options_.probe != nullptr) {
        allowed ? options_.probe->retried() : options_.probe->no_budget();
    }
    return allowed;
}

std::optional<router::Digest> Fleet::digest(TimePoint now) {
    if (now < next_digest_) return std::nullopt;
    next_digest_ = now + kDigestEvery;
    return view_.digest(now);
}

void Fleet::report(std::size_t index, const model::Load& load, TimePoint now) {
    view_.report({backends_[index].worker, 0}, load, now, now);
}

// Measured times into the cost model: a first token only of a request that had the backend to
// itself, so that no queue is in it.
void Fleet::learn(const Try& t, TimePoint now) {
    bool seen = false;
    if (t.alone_ && t.uncached_ > 0) {
        seen = fit_.observe_prefill(t.uncached_, t.cached_, to_ms(t.first_ - t.begin_));
    }
    if (t.tokens_ > 8) {
        const router::RankSlot slot = view_.slot({t.worker(), 0});
        if (slot != router::kNoSlot) {
            const router::RankLoad load = view_.load(slot);
            seen =
                fit_.observe_decode(std::max(1.0, load.requests), load.kv_tokens,
                                    to_ms(now - t.first_) / static_cast<double>(t.tokens_ - 1)) ||
                seen;
        }
    }
    if (seen && ++learnt_ % kRefitEvery == 0) {
        view_.set_cost(Stage::kUnified, fit_.model(), now);
    }
}

void Fleet::settle(Try& t, Outcome outcome, TimePoint now) {
    Backend& b = backends_[t.index_];
    if (outcome == Outcome::kSuccess && t.tokens_ > 0) learn(t, now);
    view_.release(t.charge_, now);
    --b.in_flight;
    b.health.outcome(outcome, now);
    if (outcome == Outcome::kBusy) {
        std::size_t live_count = 0;
        for (const Backend& x : backends_) live_count += x.draining ? 0 : 1;
        const router::RankSlot slot = view_.slot({b.worker, 0});
        if (live_count > 1 && slot != router::kNoSlot) view_.mark_busy(slot, now);
    }
    if (options_.probe == nullptr) return;
    b.probe.in_flight->add(-1);
    if (outcome == Outcome::kBusy) b.probe.busy->add();
    const std::uint64_t opened = b.health.opened();
    b.probe.opened->add(opened - std::exchange(b.opened, opened));
}

// ---------------------------------------------------------------- Try

Fleet::Try::Try(Try&& o) noexcept { *this = std::move(o); }

Fleet::Try& Fleet::Try::operator=(Try&& o) noexcept {
    if (this == &o) return *this;
    end(Outcome::kClient, end_time_);
    fleet_ = std::exchange(o.fleet_, nullptr);
    index_ = o.index_;
    charge_ = std::move(o.charge_);
    uncached_ = o.uncached_;
    cached_ = o.cached_;
    alone_ = o.alone_;
    tokens_ = o.tokens_;
    begin_ = o.begin_;
    first_ = o.first_;
    end_time_ = o.end_time_;
    return *this;
}

void Fleet::Try::output(std::uint32_t tokens, TimePoint now) {
    if (fleet_ == nullptr || tokens == 0) return;
    end_time_ = now;
    if (tokens_ == 0) {
        first_ = now;
        fleet_->view_.progress_prefill(charge_, 1e18, uncached_, now);
    }
    tokens_ += tokens;
    fleet_->view_.progress_decode(charge_, static_cast<TokenCount>(tokens_), now);
}

void Fleet::Try::end(Outcome outcome, TimePoint now) {
    if (Fleet* fleet = std::exchange(fleet_, nullptr)) fleet->settle(*this, outcome, now);
}

}  // namespace nereid::gateway
