// Plans for a running group: reports in, plans out, what happens between.
#include "router/experts/group.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"

namespace nereid::router::experts {
namespace {

constexpr std::uint32_t kRanks = 4, kLayers = 6, kExperts = 16;
constexpr Shape kShape{.experts = kExperts, .slots = 20, .ranks = kRanks};

// Each rank reports the tokens of its own slots, skewed: expert e of layer l is loaded by 1 / (1 +
// k).
std::vector<RankReport> reports(const Placement& placement, std::uint32_t turn) {
    std::vector<RankReport> out(kRanks);
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        out[r].rank = r;
        RankReport::Balancer b{.layers = kLayers,
                               .experts = kExperts,
                               .tokens = std::vector<std::uint32_t>(kLayers * kExperts),
                               .slots = placement.slots};
        for (std::uint32_t l = 0; l < kLayers; ++l) {
            for (std::uint32_t s = 0; s < kShape.slots_per_rank(); ++s) {
                const ExpertId e = placement.layer(l)[r * kShape.slots_per_rank() + s];
                const auto copies = std::ranges::count(placement.layer(l), e);
                b.tokens[l * kExperts + e] += static_cast<std::uint32_t>(
                    120'000 / (1 + (e + l * 5 + turn) % kExperts) / copies);
            }
        }
        out[r].balancers.push_back(std::move(b));
    }
    return out;
}

Placement read_plan(const std::string& json) {
    const auto parsed = Json::parse(json);
    Placement out{.shape = kShape, .layers = kLayers, .slots = {}};
    for (const Json& layer : parsed->find("physical_to_logical")->as_array()) {
        for (const Json& e : layer.as_array()) {
            out.slots.push_back(static_cast<ExpertId>(*e.as_int()));
        }
    }
    return out;
}

TEST(GroupPlanner, PlansWithinTheBudgetUntilBalanced) {
    GroupPlanner planner({});
    Placement placement = initial_placement(kShape, kLayers);
    int plans = 0;
    for (int round = 0; round < 30; ++round) {
        const auto outcome = planner.round(reports(placement, 0));
        ASSERT_TRUE(outcome.ok());
        ASSERT_EQ(outcome->notes.size(), 1u);
        if (!outcome->plan) break;
        const Placement next = read_plan(*outcome->plan);
        ASSERT_TRUE(check(next).ok());
        int moved = 0;
        for (std::size_t i = 0; i < next.slots.size(); ++i)
            moved += next.slots[i] != placement.slots[i] ? 1 : 0;
        EXPECT_LE(moved, 2 * 12);  // 10 % of 120 slots by content; in place it may be a swap of two
        EXPECT_GT(moved, 0);
        placement = next;
        ++plans;
    }
    EXPECT_GE(plans, 2);
    EXPECT_LT(plans, 30);
    const auto last = planner.round(reports(placement, 0));
    EXPECT_FALSE(last->plan);
    EXPECT_NE(last->notes[0].find("left alone"), std::string::npos);
}

TEST(GroupPlanner, WaitsForAPlanAndGivesItUp) {
    GroupPlanner planner({.patience = 3});
    const Placement placement = initial_placement(kShape, kLayers);
    ASSERT_TRUE(planner.round(reports(placement, 0))->plan);
    for (int i = 0; i < 3; ++i) {
        const auto waiting = planner.round(reports(placement, 0));
        EXPECT_FALSE(waiting->plan);
        EXPECT_NE(waiting->notes[0].find("waiting"), std::string::npos);
    }
    EXPECT_TRUE(planner.round(reports(placement, 1))->plan);  // given up: anew
}

TEST(GroupPlanner, FollowsAMapThatSomebodyElseChanged) {
    GroupPlanner planner({});
    Placement placement = initial_placement(kShape, kLayers);
    ASSERT_TRUE(planner.round(reports(placement, 0))->plan);
    std::swap(placement.slots[0], placement.slots[19]);
    const auto outcome = planner.round(reports(placement, 0));
    ASSERT_TRUE(outcome->plan);
    EXPECT_TRUE(check(read_plan(*outcome->plan)).ok());
}

TEST(GroupPlanner, ReportsThatDoNotFitTogether) {
    GroupPlanner planner({});
    const Placement placement = initial_placement(kShape, kLayers);
    EXPECT_EQ(planner.round({}).code(), Code::kInvalidArgument);
    auto all = reports(placement, 0);
    all[2].rank = 7;
    EXPECT_EQ(planner.round(all).code(), Code::kInvalidArgument);
    all = reports(placement, 0);
    std::swap(all[1].balancers[0].slots[0], all[1].balancers[0].slots[1]);
    EXPECT_EQ(planner.round(all).code(), Code::kUnavailable);
    all = reports(placement, 0);
    all[1].balancers[0].experts = 8;
    EXPECT_EQ(planner.round(all).code(), Code::kInvalidArgument);
    all = reports(placement, 0);
    for (auto& r : all) r.balancers[0].slots[0] = 999;
    EXPECT_EQ(planner.round(all).code(), Code::kInvalidArgument);
}

TEST(GroupPlanner, ReportsAreRead) {
    const auto good = read_report(
        R"({"rank":1,"balancers":[{"tokens":[[1,2],[3,1e12]],"physical_to_logical":[[0,1],[1,0]]}]})");
    ASSERT_TRUE(good.ok());
    EXPECT_EQ(good->rank, 1u);
    EXPECT_EQ(good->balancers[0].tokens[3], 4'294'967'295u);
    EXPECT_EQ(good->balancers[0].slots[2], 1);
    for (const char* text :
         {"", "{}", R"({"rank":-1,"balancers":[]})", R"({"rank":0})",
          R"({"rank":0,"balancers":[{"tokens":[],"physical_to_logical":[[0]]}]})",
          R"({"rank":0,"balancers":[{"tokens":[[1],[1,2]],"physical_to_logical":[[0]]}]})",
          R"({"rank":0,"balancers":[{"tokens":[[-1]],"physical_to_logical":[[0]]}]})",
          R"({"rank":0,"balancers":[{"tokens":[[1],[1]],"physical_to_logical":[[0]]}]})",
          R"({"rank":0,"balancers":[{"tokens":[["x"]],"physical_to_logical":[[0]]}]})"}) {
        EXPECT_EQ(read_report(text).code(), Code::kInvalidArgument) << text;
    }
}

}  // namespace
}  // namespace nereid::router::experts
