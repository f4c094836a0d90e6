// What a run measured. Times in milliseconds, rates per second of simulated time within the
// measured window; requests are counted by their arrival in it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "report/statistics.h"

namespace nereid::sim {

struct PoolResult {
    std::uint32_t units = 0, ranks = 0;
    std::uint64_t steps = 0;
    double efficiency = 0;    // DESIGN §8: Σ T_balanced / Σ T_actual over busy steps
    double busy = 0;          // part of the window in which units stepped
    double useful = 0;        // part of the ranks' time that was their own work (busy less barrier)
    double barrier_idle = 0;  // part of busy step time that ranks waited for the slowest
    double kv_balance = 0;    // mean over max of KV tokens per rank, steps weighted equally
    double step_ms = 0;       // mean
    double requests_per_rank = 0, kv_per_rank = 0;  // means over steps
    double tokens_per_second = 0;                   // computed in prefill, or generated
    std::uint64_t preempted = 0;
};

struct RunResult {
    std::string policy;
    std::uint64_t arrived = 0, finished = 0, rejected = 0, failed = 0, unfinished = 0;
    std::uint64_t good = 0;                         // finished within the SLO
    std::uint64_t missed_ttft = 0, missed_itl = 0;  // of the finished; both may be missed
    double offered_per_second = 0, goodput_per_second = 0;
    double good_tokens_per_second = 0;  // prompt + output tokens of good requests
    double offered_tokens_per_second = 0;
    double attainment = 0;  // good / arrived
    report::Summary ttft_ms, itl_ms, e2e_ms, queue_ms;
    double prompt_tokens_per_second = 0, output_tokens_per_second = 0;
    double hit_share = 0;  // of prompt tokens restored instead of computed
    PoolResult prefill, decode, unified;
    std::uint64_t migrations = 0;
    double migrations_per_step = 0;  // per unit and step
    double migrated_bytes = 0;
    std::uint64_t refused = 0, forwarded = 0, retried = 0, lost_to_faults = 0;
    double cost_fit_error = 0;  // of the decode fit, relative, moving mean; 0 without a fit
    std::uint64_t events = 0;
    std::uint64_t hash = 0;  // of the whole run: equal for equal seed, spec and build
    double simulated_seconds = 0;

    // One per measured request that finished, in order of their ends; only with
    // ClusterSpec::record.
    struct Record {
        std::uint64_t id = 0;  // of the workload: order of arrival
        double arrival_ms = 0, ttft_ms = 0, itl_ms = 0;
    };
    std::vector<Record> records;

    // For reports; thinned.
    std::vector<double> ttft_samples, itl_samples;
    struct Line {
        std::string name;
        std::vector<std::pair<double, double>> points;  // second, value
    };
    std::vector<Line> lines;                      // efficiency, step time, queues over time
    std::vector<std::vector<double>> kv_by_rank;  // [rank][sample], first decode unit, share of max
    std::vector<std::vector<double>> queue_by_rank;  // [rank][sample], prefill queue in tokens
    double sample_seconds = 0;                       // between columns
};

Json to_json(const RunResult& result);

}  // namespace nereid::sim
