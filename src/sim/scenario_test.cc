#include "sim/scenario.h"

#include <gtest/gtest.h>

#include <fstream>

#include "sim/capacity/cluster.h"
#include "sim/planning.h"
#include "sim/sim_report.h"

namespace nereid::sim {
namespace {

Result<void> load(Scenario& s, const std::string& path, std::vector<std::string> args = {}) {
    return io::load_config([&s](io::ConfigBinder& b) { s.bind(b); }, {path, std::move(args), {}});
}

// Every file in tests/scenarios is read, and means something that can run.
TEST(Scenario, FilesOfTheTreeLoad) {
    for (const char* name :
         {"decode144", "prefill4x32", "mooncake", "mooncake_v3", "thousand_gpus"}) {
        Scenario s;
        const auto loaded = load(s, std::string("tests/scenarios/") + name + ".toml");
        ASSERT_TRUE(loaded.ok()) << name << ": " << (loaded.ok() ? "" : loaded.error().message);
        EXPECT_TRUE(s.cluster().ok()) << name;
    }
}

TEST(Scenario, CostsOfAnEngineAreItsOwn) {
    const std::string path = ::testing::TempDir() + "cost.json";
    std::ofstream(path) << R"({"model":{"prefill":{"per_token_flops":3e10,)"
                           R"("per_token_context_flops":6e4},)"
                           R"("decode":{"fixed_ms":11.5,"per_request_ms":0.08}}})";
    Scenario scenario;
    scenario.engine = "v41-flash-h800";
    scenario.cost_file = path;
    scenario.cost_tflops = 600;
    const auto spec = scenario.cluster();
    ASSERT_TRUE(spec.ok()) << spec.error().message;
    EXPECT_EQ(spec->engine.flops, nullptr);
    EXPECT_DOUBLE_EQ(spec->engine.chunk_ms(0, 1000, 1000), 1000 * 0.05 + 1e-7 * 1000 * 500);
    EXPECT_DOUBLE_EQ(spec->engine.decode_fixed_ms, 11.5);
    EXPECT_DOUBLE_EQ(spec->engine.router_model(1).prefill.per_token_ms, 0.05);
    std::ofstream(path) << "{}";
    EXPECT_EQ(scenario.cluster().error().code, Code::kConfig);
}

TEST(Scenario, FaultsAreRead) {
    Scenario s;
    s.faults = {"decode/1@90s detected=500ms back=30s", "prefill/0@2m"};
    const auto spec = s.cluster();
    ASSERT_TRUE(spec.ok());
    ASSERT_EQ(spec->faults.size(), 2u);
    EXPECT_EQ(spec->faults[0].stage, router::Stage::kDecode);
    EXPECT_EQ(spec->faults[0].unit, 1u);
    EXPECT_EQ(spec->faults[0].at, 90 * kSecond);
    EXPECT_EQ(spec->faults[0].detected_after, kSecond / 2);
    EXPECT_EQ(spec->faults[0].back_after, 30 * kSecond);
    EXPECT_EQ(spec->faults[1].at, 120 * kSecond);
    for (const char* bad :
         {"decode@90s", "oven/0@90s", "decode/x@90s", "decode/0@soon", "decode/0@1s when=2s"}) {
        s.faults = {bad};
        const auto refused = s.cluster();
        ASSERT_FALSE(refused.ok()) << bad;
        EXPECT_EQ(refused.code(), Code::kConfig);
        EXPECT_NE(refused.error().message.find("write \"decode/0@600s"), std::string::npos);
    }
}

TEST(Scenario, MistakesAreToldWithTheirMend) {
    Scenario s;
    EXPECT_EQ(load(s, "", {"--router.polcy=x"}).code(), Code::kConfig);
    s.warmup = s.end;
    EXPECT_NE(s.cluster().error().message.find("run.warmup"), std::string::npos);
    s = {};
    s.engine = "abacus";
    EXPECT_NE(s.cluster().error().message.find("v3-h800"), std::string::npos);
    s = {};
    s.workload = "trace";
    EXPECT_EQ(s.source(nullptr).code(), Code::kConfig);
}

Scenario tiny() {
    Scenario s;
    s.engine = "study";
    s.rate = 150;
    s.input_mean = 2000;
    s.input_sigma = 1.0;
    s.output_mean = 60;
    s.warmup = 5s;
    s.end = 25s;
    s.drain = 20s;
    s.prefill.units = 1;
    s.prefill.ranks = 2;
    s.prefill.cost_budget = 100ms;
    s.decode.units = 1;
    s.decode.ranks = 2;
    s.slo_ttft = 600ms;
    s.slo_itl = 40ms;
    return s;
}

TEST(Planning, FindsTheSmallestSizeThatIsEnough) {
    const Scenario s = tiny();
    const PlanningOptions options{.price_per_gpu_hour = 3, .attainment = 0.95, .most_runs = 40};
    const auto planning = plan_capacity(s, nullptr, options);
    ASSERT_TRUE(planning.ok()) << (planning.ok() ? "" : planning.error().message);
    ASSERT_TRUE(planning->best);
    const PlanningPoint& best = planning->tried[*planning->best];
    EXPECT_GE(best.result.attainment, 0.95);
    EXPECT_GE(best.prefill_units, planning->bound_prefill);
    EXPECT_GE(best.decode_units, planning->bound_decode);
    EXPECT_DOUBLE_EQ(best.cost_per_hour, 3.0 * best.gpus);
    EXPECT_GT(planning->bound_prefill, 1u);
    for (const PlanningPoint& p : planning->tried) {
        const bool smaller = p.prefill_units <= best.prefill_units &&
                             p.decode_units <= best.decode_units && p.gpus < best.gpus;
        EXPECT_FALSE(smaller && p.enough);
    }
    const std::string page = planning_page(s, *planning, options, "nereid sim plan", "");
    EXPECT_NE(page.find("<svg"), std::string::npos);
    EXPECT_NE(planning_text(*planning, options).find("plan: "), std::string::npos);
}

TEST(Planning, SaysWhyItCannot) {
    Scenario s = tiny();
    s.slo_itl = 1ms;
    EXPECT_EQ(plan_capacity(s, nullptr, {}).code(), Code::kConfig);
    s = tiny();
    s.workload = "population";
    EXPECT_EQ(plan_capacity(s, nullptr, {}).code(), Code::kConfig);
    s = tiny();
    s.slo_ttft = 1ms;
    const auto refused =
        plan_capacity(s, nullptr, {.price_per_gpu_hour = 1, .attainment = 0.9, .most_runs = 4});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("slo.ttft"), std::string::npos);
}

TEST(Reports, PagesAreSelfContained) {
    const Scenario s = tiny();
    const auto spec = s.cluster();
    const auto source = s.source(nullptr);
    ASSERT_TRUE(spec.ok() && source.ok());
    auto result = Cluster(*spec, **source).run();
    ASSERT_TRUE(result.ok());
    const std::string page = run_page(s, *result, "nereid sim run", "[run]");
    EXPECT_NE(page.find("<svg"), std::string::npos);
    EXPECT_EQ(page.find("<script src"), std::string::npos);
    EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org"));
    const LabelledRun runs[] = {{"a", *result}, {"b", *result}};
    EXPECT_NE(comparison_page(s, runs, "c", "t").find("Goodput"), std::string::npos);
    EXPECT_FALSE(comparison_text(runs).empty());
    EXPECT_FALSE(run_text(*result).empty());
}

}  // namespace
}  // namespace nereid::sim
