// What a capacity simulation is given: pools, caches, network, gateways, router, objective, faults.
// Plain values with working defaults; sim/scenario.h reads them from TOML.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "router/migration.h"
#include "router/policy.h"
#include "sim/capacity/unit.h"

namespace nereid::sim {

struct PoolSpec {
    std::uint32_t units = 0;
    UnitSpec unit;
};

// Prefix cache of each prefill (or unified) rank: HBM, DRAM, SSD.
struct CacheSpec {
    std::array<std::uint64_t, 3> tokens{0, 0, 0};
    // Of restoring from DRAM and SSD into HBM, bytes per ms and rank; [0] is not used.
    std::array<double, 3> bytes_per_ms{0, 25e6, 5e6};
};

struct NetworkSpec {
    double bytes_per_ms = 50e6;  // of one rank's NIC, each direction (400 Gb/s)
    double latency_ms = 0.05;
    double handoff_overlap = 0.9;  // part of a prompt's KV that has left before its last chunk ends
};

struct GatewaySpec {
    std::uint32_t count = 1;
    Nanos report_interval = 100 * kMillisecond;
    Nanos report_delay = 0;
    Nanos digest_interval = 0;  // broadcast of own charges to the other gateways; 0 = none
    Nanos digest_delay = 0;
    Nanos event_delay = 0;             // of KV events
    double tokenise_us_per_token = 0;  // before a request is routed
    std::uint32_t queue_max =
        100'000;  // requests that wait in a gateway while no rank may take them
};

struct RouterSpec {
    std::string policy = "nereid";  // of router/policy.h; "nereid" takes `options`
    router::RouterOptions options;
    bool echo = true;
    bool fit = true;            // online cost fit from measured steps
    bool late_binding = false;  // workers gate by `quota_ms` (router/quota.h)
    double quota_ms = 4000;
    bool reject_late = false;  // refuse what is predicted to miss its TTFT
    TokenCount expected_output = 256;
    TokenCount reserve_output = 1024;
    // Decode migration: every so many steps of a unit; 0 = none.
    std::uint32_t migrate_every = 0;
    router::MigrationBudget migration;
};

struct SloSpec {
    double ttft_ms = 2000;
    double ttft_ms_per_token = 0;  // added per prompt token
    double itl_ms = 60;            // mean gap of a request's tokens
    double ttft_of(TokenCount prompt) const { return ttft_ms + ttft_ms_per_token * prompt; }
};

struct Fault {
    Nanos at = 0;
    router::Stage stage = router::Stage::kDecode;
    std::uint32_t unit = 0;
    Nanos detected_after = kSecond;   // until gateways know
    Nanos back_after = 60 * kSecond;  // start-up: until the unit takes work again
};

struct ClusterSpec {
    EngineModel engine;
    PoolSpec prefill, decode, unified;
    CacheSpec cache;
    NetworkSpec network;
    GatewaySpec gateways;
    RouterSpec router;
    SloSpec slo;
    // All units on one machine: a step lasts so much longer for each other unit that steps at the
    // same time (1: machines of their own). The routers' cost fit does not see it.
    double neighbour_slowdown = 1;
    std::vector<Fault> faults;
    Nanos warmup = 0;             // not measured
    Nanos end = 3600 * kSecond;   // arrivals after this are not taken
    Nanos drain = 120 * kSecond;  // how long requests may still run after `end`
    std::uint64_t seed = 1;
    bool record = false;  // keep one line per request in the result
};

}  // namespace nereid::sim
