#include "router/cost/engine_cost.h"

#include <gtest/gtest.h>

namespace nereid::router {
namespace {

Json source(const char* model) { return *Json::parse(std::string(R"({"model":)") + model + "}"); }

constexpr const char* kWhole =
    R"({"prefill":{"per_token_flops":3e10,"per_token_context_flops":6e4},)"
    R"("decode":{"fixed_ms":11.5,"per_request_ms":0.08}})";

TEST(EngineCost, FlopsBecomeMillisecondsAtTheRateOfThePool) {
    const auto cost = cost_of_engine(source(kWhole), 600, {});
    ASSERT_TRUE(cost.ok()) << cost.error().message;
    EXPECT_DOUBLE_EQ(cost->prefill.per_token_ms, 0.05);  // 3e10 / 6e11 a ms
    EXPECT_DOUBLE_EQ(cost->prefill.per_token_context_ms, 1e-7);
    EXPECT_DOUBLE_EQ(cost->decode.fixed_ms, 11.5);
    EXPECT_DOUBLE_EQ(cost->decode.per_request_ms, 0.08);
    EXPECT_DOUBLE_EQ(cost->decode.per_kv_token_ms, CostModel().decode.per_kv_token_ms);
}

TEST(EngineCost, WithoutARateTheShapeAloneIsTheEngines) {
    CostModel base;
    base.prefill.per_token_ms = 0.2;
    const auto cost = cost_of_engine(source(kWhole), 0, base);
    ASSERT_TRUE(cost.ok());
    EXPECT_DOUBLE_EQ(cost->prefill.per_token_ms, 0.2);
    EXPECT_DOUBLE_EQ(cost->prefill.per_token_context_ms / cost->prefill.per_token_ms, 6e4 / 3e10);
}

TEST(EngineCost, WhatTheEngineDoesNotKnowStays) {
    const auto cost = cost_of_engine(source(R"({"prefill":null,"decode":null})"), 600, {});
    ASSERT_TRUE(cost.ok());
    EXPECT_DOUBLE_EQ(cost->prefill.per_token_ms, CostModel().prefill.per_token_ms);
    EXPECT_DOUBLE_EQ(cost->decode.fixed_ms, CostModel().decode.fixed_ms);
}

TEST(EngineCost, NonsenseIsNamed) {
    EXPECT_EQ(cost_of_engine(*Json::parse("{}"), 0, {}).error().code, Code::kInvalidArgument);
    for (const char* bad : {R"({"prefill":{"per_token_flops":0,"per_token_context_flops":1}})",
                            R"({"prefill":{"per_token_flops":-1,"per_token_context_flops":1}})",
                            R"({"prefill":{"per_token_context_flops":1}})", R"({"prefill":3})",
                            R"({"decode":{"fixed_ms":1,"per_request_ms":"x"}})"}) {
        EXPECT_EQ(cost_of_engine(source(bad), 0, {}).error().code, Code::kInvalidArgument) << bad;
    }
}

}  // namespace
}  // namespace nereid::router
