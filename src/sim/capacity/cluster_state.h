// The inside of Cluster; only its own files include this.
//
// Life of a request: arrive → (tokenise) → dispatch at its gateway: the router's plan, charges →
// prefill queue of a rank, prefix restored or fetched meanwhile → chunks in barrier steps → first
// token → KV to the decode rank → decode steps → end. A crash or preemption sends it back to
// dispatch with its generated tokens as part of the prompt. Each job ends exactly once (finish()).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "report/statistics.h"
#include "router/cost/fit.h"
#include "router/policy.h"
#include "router/quota.h"
#include "router/view.h"
#include "sim/capacity/cluster.h"
#include "sim/capacity/event_queue.h"
#include "sim/capacity/job.h"
#include "sim/capacity/tiered_cache.h"
#include "sim/capacity/unit.h"

namespace nereid::sim {

// A NIC or a PCIe link in one direction: what is sent waits for what was sent before.
struct Link {
    Nanos free_at = 0;
};

struct Cluster::State {
    enum class Kind : std::uint32_t {
        kArrival,       // a: unused
        kDispatch,      // a: job
        kStepEnd,       // a: unit, life: its step_event
        kWake,          // a: unit: a prompt's prefix is restored
        kKvArrived,     // a: job: its KV is on the decode rank
        kReportSample,  // a: gateway
        kReportArrive,
        kDigestSample,
        kDigestArrive,
        kKvEvents,
        kMigrated,  // a: job: its KV is on its new rank
        kFault,     // a: index of the fault
        kFaultKnown,
        kUnitBack,
        kRetryQueue,  // a: gateway
        kSample,      // of the time series
    };
    struct Event {
        Kind kind;
        std::uint32_t a;
        std::uint32_t life;  // of the job or unit when pushed
    };

    // A unit in its pool, as the cluster runs it.
    struct Host {
        Host(const UnitSpec& spec, const EngineModel& model, JobPool& jobs)
            : unit(spec, model, jobs) {}
        Unit unit;
        router::Stage stage{};
        std::uint32_t life = 0;  // a crash begins another
        bool up = true;
        Nanos wake_at = INT64_MAX;
        std::vector<TieredCache> caches;  // per rank; none in decode
        std::vector<Link> in, out, restore;
        std::optional<router::QuotaGate> gate;
        std::optional<router::CostFit> fit;
        std::uint64_t steps = 0;
        Nanos busy = 0;
        Nanos step_end = 0;            // of the step under way
        std::uint32_t step_event = 0;  // the one that ends it; earlier ones are stale
        std::vector<std::pair<JobId, std::uint32_t>> leaving;  // (job, life) that migrate away
        std::vector<std::uint32_t> hit_tokens, miss_tokens;
    };
    struct Gateway {
        std::unique_ptr<router::View> view;
        std::unique_ptr<router::Policy> policy;
        std::unique_ptr<router::StagePolicy> decode_only;  // when there is nothing to prefill on
        Prng prng{1};
        std::deque<JobId> queue;  // what no rank may take now
        bool retry_pending = false;
        std::vector<router::WorkerId> workers;      // of host i
        std::vector<std::uint32_t> host_of_worker;  // by WorkerId value
        std::vector<router::UnitId> units;          // of host i
        std::vector<JobId> job_of_charge;           // decode charges, by index
        std::vector<std::uint32_t> moving;          // charge indexes under migration
    };
    struct Sample {  // of all ranks at one moment, on its way to a gateway
        Nanos at;
        std::vector<std::pair<router::RankId, model::Load>> loads;
    };
    struct DigestInFlight {
        Nanos at;
        router::Digest digest;
        std::uint32_t to;
    };
    struct KvEvents {
        std::uint32_t host, life, rank;
        std::vector<std::uint64_t> chain;  // stored, from `first` on
        std::uint32_t first;
        std::vector<std::uint64_t> removed;
    };

    State(ClusterSpec s, workload::Source& source);

    // ---- cluster.cc: the loop and a request's way
    Result<RunResult> run(const Progress& progress);
    void handle(const Event& event);
    void push(Nanos at, Kind kind, std::uint32_t a, std::uint32_t life = 0) {
        queue.push(at, {kind, a, life});
    }
    void schedule_arrival();
    void on_arrival();
    void try_step(std::uint32_t host);
    void on_step_end(std::uint32_t host);
    void end_step_at(std::uint32_t host, Nanos at);
    std::uint32_t neighbours_stepping(std::uint32_t host) const;
    void stretch_neighbours(std::uint32_t host, bool begun);
    double stretch(std::uint32_t neighbours) const {
        return 1 + (spec.neighbour_slowdown - 1) * neighbours;
    }
    void prompt_done(std::uint32_t host, JobId id);
    void begin_decode(JobId id);
    void restart(JobId id);
    enum class End { kFinished, kRejected, kFailed };
    void finish(JobId id, End how);
    void on_fault(std::uint32_t index);
    void on_fault_known(const Fault& fault);
    std::uint32_t host_of(const Fault& fault) const;
    void on_unit_back(const Fault& fault);
    Nanos transfer(Link& from, Link& to, double bytes, Nanos may_begin);
    void mix(std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; }

    // ---- cluster_gateway.cc: views, routing, reports
    Result<void> make_gateways();
    void add_host_to_views(std::uint32_t host);
    void dispatch(JobId id);
    bool place(JobId id, Gateway& gateway, const router::Plan& plan);
    Result<router::Plan> plan_for(Gateway& gateway, const router::RouteRequest& request);
    void send_to_prefill(JobId id);
    void restore_prefix(JobId id);
    void computed_prompt(std::uint32_t host, JobId id);  // cache and KV events
    void deliver(const KvEvents& events);
    void release_prefill(JobId id);
    void release_all(JobId id);
    void wake_queue(std::uint32_t gateway);
    void on_retry_queue(std::uint32_t gateway);
    Sample sample_loads(const Gateway& gateway) const;
    void on_report_sample(std::uint32_t gateway);
    void on_digest_sample(std::uint32_t gateway);
    void apply_sample(Gateway& gateway, const Sample& sample);
    void migrate(std::uint32_t host);
    void move_leaving(std::uint32_t host);
    void observe_step(std::uint32_t host);

    // ---- cluster_result.cc
    void begin_measuring();
    void take_sample();
    RunResult result() const;
    PoolResult pool_result(router::Stage stage) const;

    TimePoint time() const { return TimePoint{Duration{now}}; }
    bool measured(const Job& job) const { return job.arrival >= spec.warmup; }

    ClusterSpec spec;
    workload::Source& source;
    JobPool jobs;
    EventQueue<Event> queue;
    Nanos now = 0;
    std::vector<std::unique_ptr<Host>> hosts;  // prefill units, then decode, then unified
    std::vector<Gateway> gateways;
    TokenCount block_tokens = 128;
    Nanos next_arrival_event = INT64_MAX;
    std::uint64_t hash = 0xcbf29ce484222325u;

    std::deque<Sample> samples;  // per gateway order is kept: equal delays
    std::deque<std::uint32_t> sample_targets;
    std::deque<DigestInFlight> digests;
    std::deque<KvEvents> kv_events;

    // Results.
    RunResult r;
    bool measuring = false;
    Nanos measure_from = 0, measure_to = 0;
    std::vector<double> ttft, itl, e2e, queue_wait;
    double prompt_tokens = 0, hit_tokens = 0, output_tokens = 0, offered_tokens = 0,
           good_tokens = 0;
    struct Track {
        double actual = 0, balanced = 0;
        std::uint64_t steps = 0;
    };
    std::vector<Track> last_track;
    std::vector<report::Series> efficiency_series, queue_series;
    std::vector<std::uint64_t> scratch_stored, scratch_removed;
};

}  // namespace nereid::sim
