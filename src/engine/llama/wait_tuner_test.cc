#include "engine/llama/wait_tuner.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid::engine::llama {
namespace {

// A machine whose step times depend on the way of waiting and on whether the cores are free.
struct Machine {
    bool busy = false;
    Prng prng{3};
    Duration step(bool spin, std::uint32_t rows) {
        const double base = (busy ? (spin ? 300 : 35) : (spin ? 8 : 17)) * (1 + 0.2 * rows);
        return Duration{static_cast<std::int64_t>(base * (0.9 + 0.4 * prng.uniform()) * 1e6)};
    }
};

// Runs `steps` and returns how many of them waited in the wrong way.
int run(WaitTuner& tuner, Machine& machine, int steps, std::uint32_t rows) {
    int wrong = 0;
    for (int i = 0; i < steps; ++i) {
        if (tuner.spin() == machine.busy) ++wrong;
        tuner.observe(rows, machine.step(tuner.spin(), rows));
    }
    return wrong;
}

TEST(WaitTuner, SpinsOnFreeCoresAndSleepsOnBusyOnes) {
    WaitTuner tuner;
    Machine machine;
    EXPECT_LE(run(tuner, machine, 2000, 1), 60);
    EXPECT_TRUE(tuner.spin());
    machine.busy = true;
    EXPECT_LE(run(tuner, machine, 2000, 1),
              30);  // found within a few steps, then rare trials of one step
    EXPECT_FALSE(tuner.spin());
    machine.busy = false;
    EXPECT_LE(run(tuner, machine, 4000, 1), 1100);  // the longest interval may have to pass first
    EXPECT_TRUE(tuner.spin());
}

TEST(WaitTuner, OneSlowStepIsNoReason) {
    WaitTuner tuner;
    Machine machine;
    run(tuner, machine, 1000, 1);
    const auto before = tuner.switches();
    for (int i = 0; i < 50; ++i) {
        tuner.observe(1, 90ms);
        run(tuner, machine, 10, 1);
    }
    EXPECT_EQ(tuner.switches(), before);
    EXPECT_TRUE(tuner.spin());
}

TEST(WaitTuner, OnlyStepsOfEqualRowsAreCompared) {
    WaitTuner tuner;
    Machine machine;
    const auto mixed = [&](std::uint32_t steps) {
        std::uint32_t wrong = 0;
        for (std::uint32_t i = 0; i < steps; ++i) {
            wrong += tuner.spin() == machine.busy ? 1 : 0;
            tuner.observe(1 + i % 7, machine.step(tuner.spin(), 1 + i % 7));
        }
        return wrong;
    };
    EXPECT_LE(mixed(2000), 60u);
    EXPECT_EQ(tuner.switches(), 0u);
    machine.busy = true;
    EXPECT_LE(mixed(2000), 60u);
    EXPECT_FALSE(tuner.spin());
}

TEST(WaitTuner, ABusyMachineIsFoundWithinFewSteps) {
    WaitTuner tuner;
    Machine machine{.busy = true};
    EXPECT_LE(run(tuner, machine, 1000, 2), 20);
    EXPECT_FALSE(tuner.spin());
}

// Each step has another number of rows than any before: nothing can be compared, nothing changes.
TEST(WaitTuner, ATrialWithNothingToCompareEnds) {
    WaitTuner tuner;
    Machine machine;
    run(tuner, machine, 3, 1);
    EXPECT_FALSE(tuner.spin());  // the first trial
    for (std::uint32_t rows = 2; rows < 18; ++rows) tuner.observe(rows, machine.step(false, rows));
    EXPECT_TRUE(tuner.spin());
    EXPECT_EQ(tuner.switches(), 0u);
}

}  // namespace
}  // namespace nereid::engine::llama
