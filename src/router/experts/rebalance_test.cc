#include "router/experts/rebalance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/distributions.h"
#include "router/experts/solver.h"

namespace nereid::router::experts {
namespace {

// Log-loads that follow an AR(1) process per expert (rho 0.95), stationary deviation `sigma`.
class Drift {
  public:
    Drift(std::uint32_t layers, std::uint32_t experts, double sigma, std::uint64_t seed)
        : layers_(layers),
          experts_(experts),
          sigma_(sigma),
          prng_(seed),
          log_(std::size_t{layers} * experts),
          load_(log_.size()) {
        for (double& x : log_) x = sigma_ * draw_normal(prng_);
        write();
    }
    void step() {
        for (double& x : log_)
            x = 0.95 * x + sigma_ * std::sqrt(1 - 0.95 * 0.95) * draw_normal(prng_);
        write();
    }
    Loads loads() const { return {layers_, experts_, load_}; }

  private:
    void write() {
        for (std::size_t i = 0; i < log_.size(); ++i)
            load_[i] = static_cast<float>(1000 * std::exp(log_[i]));
    }
    std::uint32_t layers_, experts_;
    double sigma_;
    Prng prng_;
    std::vector<double> log_;
    std::vector<float> load_;
};

// Slots whose rank did not hold that expert (as often) before.
std::uint64_t moved(const Placement& a, const Placement& b) {
    const std::uint32_t room = a.shape.slots_per_rank();
    std::uint64_t n = 0;
    for (std::size_t first = 0; first < a.slots.size(); first += room) {
        std::map<ExpertId, int> had;
        for (std::uint32_t i = 0; i < room; ++i) ++had[a.slots[first + i]];
        for (std::uint32_t i = 0; i < room; ++i) n += had[b.slots[first + i]]-- > 0 ? 0 : 1;
    }
    return n;
}

TEST(Rebalance, StaysWithinItsBudgetAndOnePercentOfAFreshSolution) {
    struct Row {
        std::uint32_t experts, slots, ranks;
    };
    for (const Row& row : {Row{256, 272, 16}, Row{256, 288, 32}, Row{384, 416, 32}}) {
        const Shape shape{.experts = row.experts, .slots = row.slots, .ranks = row.ranks};
        Drift drift(4, row.experts, 0.7, 6);
        Solver solver(shape);
        Placement now = solver.solve(drift.loads(), Method::kRefined);
        double loss = 0, share = 0;
        constexpr int kRounds = 6;
        for (int round = 0; round < kRounds; ++round) {
            drift.step();
            const Rebalanced next = rebalance(now, drift.loads(), {});
            ASSERT_TRUE(check(next.placement).ok());
            EXPECT_EQ(next.moved, moved(now, next.placement));
            EXPECT_LE(static_cast<double>(next.moved), 0.1 * static_cast<double>(now.slots.size()));
            EXPECT_GE(next.after, next.before);
            EXPECT_NEAR(next.after, balancedness(next.placement, drift.loads()), 1e-12);
            const double fresh =
                balancedness(solver.solve(drift.loads(), Method::kRefined), drift.loads());
            loss += (1 - next.after / fresh) / kRounds;
            share +=
                static_cast<double>(next.moved) / static_cast<double>(now.slots.size()) / kRounds;
            now = next.placement;
        }
        EXPECT_LE(loss, 0.01) << row.slots;
        EXPECT_LE(share, 0.1);
    }
}

TEST(Rebalance, AnyShapeAndBudget) {
    Prng prng(7);
    for (int round = 0; round < 150; ++round) {
        Shape s;
        s.nodes = static_cast<std::uint32_t>(1 + prng.below(3));
        s.ranks = s.nodes * static_cast<std::uint32_t>(1 + prng.below(4));
        s.groups = s.nodes * static_cast<std::uint32_t>(1 + prng.below(2));
        s.experts = s.groups * static_cast<std::uint32_t>(1 + prng.below(6));
        s.slots = s.ranks *
                  ((s.experts + s.ranks - 1) / s.ranks + static_cast<std::uint32_t>(prng.below(3)));
        ASSERT_TRUE(validate(s).ok());
        Drift drift(3, s.experts, 1.2, prng.next());
        const Placement old = initial_placement(s, 3);
        const BudgetOptions options{.moved_share = prng.chance(0.2) ? 0.0 : prng.uniform(),
                                    .close_enough = 0.01 * prng.uniform()};
        const Rebalanced next = rebalance(old, drift.loads(), options);
        ASSERT_TRUE(check(next.placement).ok()) << check(next.placement).error().message;
        EXPECT_EQ(next.moved, moved(old, next.placement));
        EXPECT_LE(static_cast<double>(next.moved),
                  options.moved_share * static_cast<double>(old.slots.size()));
        EXPECT_GE(next.after, next.before * (1 - 1e-9));
        // Within a rank, what stayed lies where it lay.
        std::uint64_t different = 0;
        for (std::size_t i = 0; i < old.slots.size(); ++i)
            different += old.slots[i] != next.placement.slots[i] ? 1 : 0;
        EXPECT_EQ(different, next.moved);
        if (options.moved_share == 0) {
            EXPECT_EQ(next.placement, old);
        }
    }
}

TEST(Stage, EveryTransferHasASourceAndTheGreatestGainComesFirst) {
    const Shape shape{.experts = 32, .slots = 40, .ranks = 8, .groups = 4, .nodes = 2};
    Drift drift(6, 32, 1, 8);
    const Placement old = initial_placement(shape, 6);
    const Rebalanced next = rebalance(old, drift.loads(), {.moved_share = 0.4});
    const auto stages = stage(old, next.placement, drift.loads());
    ASSERT_FALSE(stages.empty());
    Placement built = old;
    double gain = 1e9;
    std::uint64_t transfers = 0;
    for (const LayerStage& s : stages) {
        EXPECT_LE(1 / s.before - 1 / s.after, gain + 1e-12);
        gain = 1 / s.before - 1 / s.after;
        std::vector<std::uint32_t> in(8), out(8);
        for (const Transfer& t : s.transfers) {
            EXPECT_EQ(old.layer(s.layer)[t.from_slot], t.expert);
            EXPECT_EQ(t.from_slot / 20, t.slot / 20)
                << "a group stays on its node, so the source is there";
            built.layer(s.layer)[t.slot] = t.expert;
            ++in[t.slot / 5];
            ++out[t.from_slot / 5];
        }
        EXPECT_LE(s.largest_in, *std::ranges::max_element(in));
        EXPECT_LE(s.largest_out, *std::ranges::max_element(out));
        EXPECT_TRUE(std::ranges::equal(built.layer(s.layer), s.slots));
        transfers += s.transfers.size();
    }
    EXPECT_EQ(built, next.placement);
    EXPECT_EQ(transfers, next.moved);
}

TEST(LoadWindow, SumsTheLastBuckets) {
    LoadWindow window(1, 2, 3, 2);
    std::vector<std::uint32_t> history;
    for (std::uint32_t step = 0; step < 23; ++step) {
        const std::uint32_t tokens[] = {step, 1000 - step};
        window.add(tokens);
        history.push_back(step);
        // Whole buckets before the current one, and what the current one has.
        const std::size_t in_current = step % 2 + 1;
        const std::size_t seen = std::min<std::size_t>(history.size(), std::size_t{4} + in_current);
        const float expected = static_cast<float>(
            std::accumulate(history.end() - static_cast<std::ptrdiff_t>(seen), history.end(), 0U));
        EXPECT_EQ(window.loads().values[0], expected) << step;
        EXPECT_EQ(window.full(), step >= 5);
    }
}

std::vector<std::uint32_t> tokens_of(const Loads& loads) {
    std::vector<std::uint32_t> t;
    for (const float w : loads.values) t.push_back(static_cast<std::uint32_t>(w));
    return t;
}

struct Loop {
    Loop(double act_below, double min_gain)
        : drift(4, 64, 0.8, 9),
          rebalancer(initial_placement({.experts = 64, .slots = 72, .ranks = 8}, 4),
                     {.budget = {}, .min_steps = 20, .act_below = act_below, .min_gain = min_gain},
                     2, 5) {}
    std::optional<std::vector<LayerStage>> steps(int n) {
        std::optional<std::vector<LayerStage>> plan;
        for (int i = 0; i < n && !plan; ++i) {
            rebalancer.add(tokens_of(drift.loads()));
            plan = rebalancer.decide();
        }
        return plan;
    }
    Drift drift;
    Rebalancer rebalancer;
};

TEST(Rebalancer, WaitsForAFullWindowThenPlansAndConverges) {
    Loop loop(0.97, 0.005);
    EXPECT_FALSE(loop.steps(9));
    auto plan = loop.steps(1);
    ASSERT_TRUE(plan);
    const double first = loop.rebalancer.counters().balancedness;
    EXPECT_FALSE(loop.steps(50)) << "one plan at a time";
    int rounds = 0;
    while (plan && rounds < 30) {
        const Placement before = loop.rebalancer.placement();
        std::uint64_t slots = 0;
        for (const LayerStage& s : *plan) {
            loop.rebalancer.applied(s);
            slots += s.transfers.size();
        }
        EXPECT_LE(slots, before.slots.size() / 10);
        EXPECT_TRUE(check(loop.rebalancer.placement()).ok());
        plan = loop.steps(21);
        ++rounds;
    }
    // The loads did not change: a few bounded plans, then peace.
    EXPECT_LT(rounds, 12);
    EXPECT_GT(loop.rebalancer.counters().balancedness, 0.97 * loop.rebalancer.counters().bound);
    EXPECT_GT(loop.rebalancer.counters().balancedness, first);
    EXPECT_FALSE(loop.steps(500));
    EXPECT_GT(loop.rebalancer.counters().held_balanced, 5U);
}

TEST(Rebalancer, DoesNothingForASmallGain) {
    Loop loop(0.97, 0.9);
    EXPECT_FALSE(loop.steps(200));
    EXPECT_GE(loop.rebalancer.counters().held_small_gain, 8U);
    EXPECT_EQ(loop.rebalancer.counters().plans, 0U);
}

TEST(Rebalancer, AnAbandonedPlanLeavesWhatWasApplied) {
    Loop loop(0.97, 0.005);
    const auto plan = loop.steps(10);
    ASSERT_TRUE(plan);
    ASSERT_GE(plan->size(), 2U);
    const Placement before = loop.rebalancer.placement();
    loop.rebalancer.applied((*plan)[0]);
    loop.rebalancer.abandon();
    const Placement& now = loop.rebalancer.placement();
    EXPECT_TRUE(check(now).ok());
    for (std::uint32_t l = 0; l < 4; ++l)
        EXPECT_EQ(std::ranges::equal(now.layer(l), before.layer(l)), l != (*plan)[0].layer);
    EXPECT_EQ(loop.rebalancer.counters().abandoned, 1U);
    EXPECT_TRUE(loop.steps(21)) << "it goes on after min_steps";
}

TEST(RebalancerDeathTest, ALayerThatIsNotInThePlanIsOurBug) {
    Loop loop(0.97, 0.005);
    EXPECT_DEATH(loop.rebalancer.applied({.layer = 0, .slots = {}, .transfers = {}}),
                 "no such layer");
}

}  // namespace
}  // namespace nereid::router::experts
