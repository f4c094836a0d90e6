// Scenario: a simulation as a TOML file (docs/formats/scenario.md) or as knobs on a command line.
//
// bind() declares every knob once; check() turns the values into what the simulator takes.
// Durations are written "150ms", sizes "64GiB", as in all of Nereid's configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/config.h"
#include "sim/capacity/spec.h"
#include "workload/request.h"
#include "workload/trace.h"

namespace nereid::sim {

struct Scenario {
    // [run]
    std::string name = "scenario";
    Duration warmup = 60s, end = 600s, drain = 120s;
    std::int64_t seed = 1;
    bool record = false;

    // [workload]
    std::string workload = "synthetic";
    std::string trace;  // file
    std::int64_t copies = 1, repeats = 1;
    double speed = 1;
    Duration jitter = 3s, copy_offset = 30s;
    double rate = 10;
    std::string arrivals = "poisson";
    double burstiness = 3;
    double input_mean = 4000, input_sigma = 1.3, output_mean = 300, output_sigma = 0.9;
    std::int64_t input_max = 131'072, output_max = 32'768;
    std::int64_t prefixes = 0, block_tokens = 128;
    double prefix_mean = 1500;
    std::int64_t population = 12'672;

    // [engine]
    std::string engine = "v3-h800";
    double moe_imbalance_prefill = 1, moe_imbalance_decode = 1;
    double tokens_per_step = 0;  // 0: the model's own
    std::string cost_file;       // an engine's own cost model (router/cost/engine_cost.h)
    double cost_tflops = 0;
    // Fitted values in place of the model's; negative: the model's own.
    double prefill_fixed_ms = -1, prefill_token_us = -1, prefill_pair_ns = -1;
    double decode_fixed_ms = -1, decode_request_ms = -1, decode_kv_token_ns = -1;
    double neighbour_slowdown = 1;

    // [prefill] [decode] [unified]
    struct Pool {
        std::int64_t units = 0, ranks = 32;
        std::int64_t token_budget = 16'384;
        Duration cost_budget{0};
        std::int64_t kv_capacity = 0, max_running = 0;
        std::int64_t vote_all = 0, vote_any = 0;
        Duration decode_gap{0};
        double burst_factor = 1;
    } prefill, decode, unified;

    // [cache] [network]
    std::int64_t hbm_tokens = 0, dram_tokens = 0, ssd_tokens = 0;
    io::SizeBytes dram_rate{25'000'000'000}, ssd_rate{5'000'000'000};  // per second
    io::SizeBytes network_rate{50'000'000'000};
    Duration network_latency = 50us;
    double handoff_overlap = 0.9;

    // [gateways]
    std::int64_t gateways = 1;
    Duration report_interval = 100ms, report_delay{0}, digest_interval{0}, digest_delay{0};
    Duration event_delay{0};
    double tokenise_us_per_token = 0;
    std::int64_t queue_max = 100'000;

    // [router]
    std::string policy = "nereid", prefill_policy = "buckets", decode_policy = "two-term",
                unified_policy = "unified-cost";
    bool echo = true, fit = true, late_binding = false, reject_late = false;
    Duration quota = 4s;
    std::int64_t expected_output = 256, reserve_output = 1024;
    std::int64_t migrate_every = 0, migrate_count = 1;
    Duration migrate_pause = 5ms;

    // [slo]
    Duration slo_ttft = 2s, slo_itl = 60ms;
    Duration slo_ttft_per_ktoken{0};

    // [faults]
    std::vector<std::string> faults;  // "decode/0@600s detected=1s back=60s"

    void bind(io::ConfigBinder& b);
    // kConfig names the key and the mend. Reads the file of engine.cost.
    Result<ClusterSpec> cluster() const;
    // `trace` is the parsed file of workload.trace (needed by kind "trace" alone); it must outlive
    // the source.
    Result<std::unique_ptr<workload::Source>> source(const workload::Trace* parsed) const;
};

}  // namespace nereid::sim
