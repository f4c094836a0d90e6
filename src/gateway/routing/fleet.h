// Fleet: the backends of one model on one shard, chosen among by the router's policies. It holds
// the shard's View, policy, breakers and retry budget, and turns outcomes into marks. No I/O: the
// shells (routed_text, routed_worker) ask, send, and say how it went.
//
// Shards share the truth loosely: each broadcasts its charges (router::Digest), as several gateways
// do.
//
// Breakers: all open means that nobody may be asked, which helps no one; then all are asked as if
// closed (fail open). A backend alone is never marked busy, for the same reason: its own 429 says
// it better.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "io/config.h"
#include "ops/metrics.h"
#include "router/balance.h"
#include "router/cost/fit.h"
#include "router/health.h"
#include "router/policy.h"
#include "router/view.h"

namespace nereid::gateway {

struct RoutingOptions {
    std::string policy = "unified-cost";
    double retry_ratio = 0.1;       // retries per request, in the long run
    std::int64_t retry_burst = 10;  // saved up at most
    Duration slow_start = 10s;
    Duration affinity = 120s;  // how long a prompt is assumed to stay in a backend's cache
    std::string cost = {};     // file: an engine's own cost model (router/cost/engine_cost.h)
    double cost_tflops = 0;    // that it reaches in prefill; 0 = unknown
    std::optional<router::CostModel> first_cost = {};  // no knob: where a fleet's cost model begins
    void bind(io::ConfigBinder& b);                    // "router.*"
    Result<void> validate() const;                     // kConfig: no such policy
    // Reads the file `cost`. kConfig with the file's name.
    Result<router::CostModel> engine_cost() const;
};

// The metrics of all fleets of one process.
class RoutingProbe {
  public:
    explicit RoutingProbe(ops::Registry& registry);
    struct Backend {
        ops::Counter* chosen = nullptr;
        ops::Counter* busy = nullptr;
        ops::Counter* opened = nullptr;
        ops::Gauge* in_flight = nullptr;
    };
    Backend backend(std::string_view name);
    ops::Gauge& balance(std::string_view model, std::size_t shard);
    void retried() { retried_.add(); }
    void no_budget() { no_budget_.add(); }
    void nobody() { nobody_.add(); }

  private:
    ops::Family<ops::Counter>& chosen_;
    ops::Family<ops::Counter>& busy_;
    ops::Family<ops::Counter>& opened_;
    ops::Family<ops::Gauge>& in_flight_;
    ops::Family<ops::Gauge>& balance_;
    ops::Counter& retried_;
    ops::Counter& no_budget_;
    ops::Counter& nobody_;
};

class Fleet {
  public:
    struct Options {
        RoutingOptions routing;
        std::string model;
        std::size_t shard = 0;
        TokenCount block_tokens = 128;
        bool events =
            false;  // backends tell what they hold: what is only assumed is soon forgotten
        std::uint64_t seed = 1;
        RoutingProbe* probe = nullptr;
    };
    explicit Fleet(const Options& options);

    // A backend joins under a name that no live one has; its id stays its index for ever.
    std::size_t add(std::string_view name, TimePoint now);
    void drain(std::size_t index, TimePoint now);          // no new work
    void remove(std::size_t index, TimePoint now);         // gone; what runs there may still end
    std::size_t size() const { return backends_.size(); }  // removed ones included
    std::uint32_t in_flight(std::size_t index) const { return backends_[index].in_flight; }
    bool live(std::size_t index) const;

    // One try of one request at one backend, from the choice to its end. Destroyed without end():
    // the client has gone, which says nothing of the backend. Outlived by the fleet.
    class Try {
      public:
        Try() = default;
        Try(Try&& o) noexcept;
        Try& operator=(Try&& o) noexcept;
        Try(const Try&) = delete;
        Try& operator=(const Try&) = delete;
        ~Try() { end(router::Outcome::kClient, end_time_); }

        std::size_t backend() const { return index_; }
        router::WorkerId worker() const { return {index_}; }
        // `tokens` more of output came; the first call is the first token.
        void output(std::uint32_t tokens, TimePoint now);
        void end(router::Outcome outcome, TimePoint now);

      private:
        friend class Fleet;
        Fleet* fleet_ = nullptr;
        std::size_t index_ = 0;
        router::ChargeHandle charge_;
        TokenCount uncached_ = 0;
        TokenCount cached_ = 0;
        bool alone_ = false;  // nothing else ran there when it was chosen
        std::uint64_t tokens_ = 0;
        TimePoint begin_, first_, end_time_;
    };
    // Chooses, books and counts. kOverloaded, kUnavailable as router::StagePolicy::pick.
    Result<Try> choose(const router::RouteRequest& request, TimePoint now);

    // Once per request, before its first try.
    void request() { budget_.request(); }
    // May a request that failed so before its first byte be tried once elsewhere? Takes from the
    // budget.
    bool may_retry(const Error& error);

    // Other shards' charges.
    std::optional<router::Digest> digest(TimePoint now);  // at most every 100 ms; only when asked
    void fold(const router::Digest& digest, TimePoint now) { view_.fold(digest, now, now); }
    // What a backend's KV events say.
    void stored(std::size_t index, router::BlockHash parent,
                std::span<const router::BlockHash> blocks, TimePoint now) {
        view_.stored({backends_[index].worker, 0}, parent, blocks, now);
    }
    void evicted(std::size_t index, std::span<const router::BlockHash> blocks, TimePoint now) {
        view_.removed({backends_[index].worker, 0}, blocks, now);
    }
    void cleared(std::size_t index, TimePoint now) {
        view_.cleared({backends_[index].worker, 0}, now);
    }
    void report(std::size_t index, const model::Load& load, TimePoint now);
    // What work costs, as far as is known before anything was measured; the fit begins again there.
    void begin_cost(const router::CostModel& cost, TimePoint now);
    const router::View& view() const { return view_; }
    router::Health::State health(std::size_t index, TimePoint now) const {
        return backends_[index].health.state(now);
    }

  private:
    struct Backend {
        std::string name;
        router::WorkerId worker;
        router::Health health{router::HealthOptions{}};
        bool draining = false;
        bool removed = false;
        std::uint32_t in_flight = 0;
        std::uint64_t opened = 0;
        RoutingProbe::Backend probe;
    };
    void refresh(TimePoint now);
    void settle(Try& t, router::Outcome outcome, TimePoint now);
    void learn(const Try& t, TimePoint now);

    Options options_;
    router::View view_;
    std::unique_ptr<router::Policy> policy_;
    router::CostFit fit_;
    std::uint64_t learnt_ = 0;
    Prng prng_;
    router::RetryBudget budget_;
    std::deque<Backend> backends_;
    router::WindowBalance balance_;
    std::vector<router::RankSlot> slots_;
    TimePoint next_digest_{}, next_balance_{};
};

}  // namespace nereid::gateway
