#include "sim/capacity/cluster.h"

#include <gtest/gtest.h>

#include "sim/capacity/population.h"
#include "workload/generators.h"
#include "workload/trace.h"

namespace nereid::sim {
namespace {

using router::Stage;

// Two prefill units, one decode unit, a cache, two gateways: a little of everything.
ClusterSpec small_cluster() {
    ClusterSpec s;
    s.engine = *engine_model("study");
    s.prefill = {2, {.ranks = 4, .token_budget = 8192, .cost_budget_ms = 100}};
    s.decode = {1, {.ranks = 8, .kv_capacity_tokens = 300'000}};
    s.cache.tokens = {200'000, 400'000, 0};
    s.gateways.count = 2;
    s.gateways.digest_interval = 200 * kMillisecond;
    s.warmup = 5 * kSecond;
    s.end = 40 * kSecond;
    return s;
}

std::unique_ptr<workload::Source> traffic(double rate, Duration end, std::uint64_t seed = 1) {
    workload::SyntheticSpec w;
    w.arrivals.per_second = rate;
    w.input = {.mean = 3000, .sigma = 1.2, .min = 16, .max = 60'000};
    w.output = {.mean = 120, .sigma = 0.9, .min = 1, .max = 2000};
    w.block_tokens = 128;
    w.prefixes = 20;
    w.end = end;
    w.seed = seed;
    return std::move(*workload::synthetic(w));
}

RunResult run(const ClusterSpec& spec, workload::Source& source) {
    auto result = Cluster(spec, source).run();
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return *result;
}

TEST(Cluster, SameSeedIsTheSameRunAndAnotherSeedIsNot) {
    const ClusterSpec spec = small_cluster();
    const auto hash = [&](std::uint64_t seed) {
        const auto source = traffic(60, 40s, seed);
        return run(spec, *source).hash;
    };
    EXPECT_EQ(hash(1), hash(1));
    EXPECT_NE(hash(1), hash(2));
}

// The same in every build: no contracted floating point, no library-defined distribution, no
// unordered iteration. Round robin, so that a better balancer does not change the number.
TEST(Cluster, DebugEqualsRelease) {
    ClusterSpec spec = small_cluster();
    spec.router.policy = "round-robin";
    spec.router.fit = false;
    const auto source = traffic(60, 40s);
    const RunResult r = run(spec, *source);
    EXPECT_EQ(r.hash, 0x176fe9c20a14dbc0u) << std::hex << r.hash;
}

TEST(Cluster, EveryRequestEndsExactlyOnce) {
    ClusterSpec spec = small_cluster();
    spec.warmup = 0;
    spec.router.late_binding = true;
    spec.router.quota_ms = 300;
    spec.router.migrate_every = 2;
    spec.neighbour_slowdown = 1.1;
    spec.faults = {{10 * kSecond, Stage::kDecode, 0, kSecond, 5 * kSecond},
                   {12 * kSecond, Stage::kPrefill, 1, kSecond, 5 * kSecond}};
    const auto source = traffic(60, 40s);
    const RunResult r = run(spec, *source);
    EXPECT_GT(r.lost_to_faults, 10u);
    EXPECT_GT(r.migrations, 10u);
    EXPECT_EQ(r.unfinished, 0u);
    EXPECT_EQ(r.arrived, r.finished + r.rejected + r.failed);
    EXPECT_EQ(r.arrived, r.finished);
}

TEST(Cluster, PrefixesAreHitAndTiersCostTime) {
    ClusterSpec spec = small_cluster();
    const auto with = [&](std::array<std::uint64_t, 3> tokens) {
        spec.cache.tokens = tokens;
        const auto source = traffic(40, 40s);
        return run(spec, *source);
    };
    const RunResult none = with({0, 0, 0}), hbm = with({10'000'000, 0, 0}),
                    ssd = with({1000, 0, 10'000'000});
    EXPECT_EQ(none.hit_share, 0);
    EXPECT_GT(hbm.hit_share, 0.2);
    EXPECT_LT(hbm.ttft_ms.p50, none.ttft_ms.p50);
    EXPECT_GT(ssd.ttft_ms.p50, hbm.ttft_ms.p50);
}

// Two prompts of one chunk on two units of one machine that makes each half as slow again while
// both work: what one has done alone counts, and what is left when the other ends is done at full
// speed.
TEST(Cluster, UnitsOfOneMachineSlowEachOther) {
    ClusterSpec spec;
    spec.engine = *engine_model("study");
    spec.engine.prefill_fixed_ms = 0;
    spec.unified = {2, {.ranks = 1, .token_budget = 100'000, .cost_budget_ms = 0}};
    spec.router.policy = "round-robin";
    spec.router.fit = false;
    spec.record = true;
    const auto first_tokens = [&](double slowdown, Duration second) {
        spec.neighbour_slowdown = slowdown;
        workload::Trace trace;
        trace.add(0ms, 20'000, 1, {});
        trace.add(second, 20'000, 1, {});
        const auto source = workload::replay(trace, {.copy_offset = 0ms});
        const RunResult r = run(spec, *source);
        EXPECT_EQ(r.records.size(), 2u);
        return std::pair{r.records.at(0).ttft_ms, r.records.at(1).ttft_ms};
    };
    const double alone = first_tokens(1, 0ms).first;
    ASSERT_GT(alone, 100);
    EXPECT_NEAR(first_tokens(1.5, 0ms).first, 1.5 * alone, 0.01);
    EXPECT_NEAR(first_tokens(1.5, 0ms).second, 1.5 * alone, 0.01);
    const Duration half{static_cast<Nanos>(alone / 2 * 1e6)};
    EXPECT_NEAR(first_tokens(1.5, half).first, 1.25 * alone, 0.01);
    EXPECT_NEAR(first_tokens(1.5, half).second, 1.25 * alone, 0.01);
    EXPECT_NEAR(first_tokens(1, half).second, alone, 0.01);
}

TEST(Cluster, OursBalancesDecodeBetterThanRoundRobin) {
    ClusterSpec spec;
    spec.engine = *engine_model("study");
    spec.decode = {1, {.ranks = 32}};
    spec.warmup = 20 * kSecond;
    spec.end = 60 * kSecond;
    spec.drain = 0;
    const auto efficiency = [&](const std::string& policy, std::uint32_t migrate_every) {
        spec.router.policy = policy;
        spec.router.migrate_every = migrate_every;
        const auto source = closed_population({.requests = 32 * 88});
        return run(spec, *source).decode.efficiency;
    };
    const double ours = efficiency("nereid", 0), theirs = efficiency("round-robin", 0);
    EXPECT_GT(ours, 0.94);
    EXPECT_LT(theirs, 0.88);
    EXPECT_GT(efficiency("nereid", 4), ours);
}

TEST(Cluster, RejectsWhatItCannotRun) {
    ClusterSpec spec = small_cluster();
    const auto source = traffic(1, 40s);
    spec.router.policy = "no such policy";
    EXPECT_EQ(Cluster(spec, *source).run().code(), Code::kConfig);
    ClusterSpec empty;
    EXPECT_EQ(Cluster(empty, *source).run().code(), Code::kConfig);
}

}  // namespace
}  // namespace nereid::sim
