#include "sim/capacity/unit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace nereid::sim {
namespace {

EngineModel simple_model() {
    EngineModel m;
    m.prefill_fixed_ms = 1;
    m.prefill_token_ms = 0.01;
    m.prefill_pair_ms = 0;
    m.decode_fixed_ms = 10;
    m.decode_request_ms = 1;
    m.decode_kv_token_ms = 0.001;
    return m;
}

JobId make_job(JobPool& jobs, TokenCount prompt, TokenCount output) {
    const JobId id = jobs.take();
    jobs[id].prompt = jobs[id].request.input_tokens = prompt;
    jobs[id].request.output_tokens = output;
    return id;
}

TEST(Unit, StepCostsTheSlowestRank) {
    const EngineModel model = simple_model();
    JobPool jobs;
    Unit unit({.stage = router::Stage::kDecode, .ranks = 2}, model, jobs);
    unit.add_decode(0, make_job(jobs, 1000, 5));
    unit.add_decode(1, make_job(jobs, 3000, 5));
    Nanos wake = INT64_MAX;
    EXPECT_EQ(unit.begin(0, wake), from_millis(10 + 1 + 3));
    unit.end();
    EXPECT_NEAR(unit.totals().balanced_ms / unit.totals().actual_ms, 13.0 / 14, 1e-12);
    EXPECT_EQ(unit.begin(0, wake), from_millis(10 + 1 + 3.001));  // KV grew by a token
}

TEST(Unit, ChunksKeepBothBudgetsAndSkipWhatIsNotRestored) {
    const EngineModel model = simple_model();
    JobPool jobs;
    Unit unit(
        {.stage = router::Stage::kPrefill, .ranks = 1, .token_budget = 1000, .cost_budget_ms = 5},
        model, jobs);
    const JobId late = make_job(jobs, 300, 2), big = make_job(jobs, 900, 2);
    jobs[late].ready = 50;
    unit.add_prompt(0, late);
    unit.add_prompt(0, big);
    Nanos wake = INT64_MAX;
    EXPECT_EQ(unit.begin(0, wake), from_millis(1 + 4.48));  // 448 tokens: the most within 5 ms
    EXPECT_EQ(wake, 50);
    EXPECT_TRUE(unit.end().prompts.empty());
    EXPECT_EQ(jobs[big].done, 448u);
    unit.begin(100, wake);  // the late one comes first now: 3 ms, then 2 ms of the other
    EXPECT_EQ(unit.end().prompts, std::vector<JobId>{late});
}

// engine/llama/plan_step.h: prompts one by one, none waits for the next one's chunk; a decode is
// due when they have taken the gap; a burst makes it longer.
TEST(Unit, UnifiedTakesPromptsUntilTheGapIsUsedUp) {
    const EngineModel model =
        simple_model();  // a token costs 0.01 ms, a step with prompts 1 ms more
    const auto steps_of = [&](int decoding, int waiting) {
        JobPool jobs;
        Unit unit({.stage = router::Stage::kUnified,
                   .ranks = 1,
                   .token_budget = 512,
                   .decode_gap_ms = 15,
                   .burst_factor = 2},
                  model, jobs);
        Nanos wake = INT64_MAX;
        for (int i = 0; i < decoding; ++i) unit.add_decode(0, make_job(jobs, 10, 1000));
        if (decoding > 0) {
            unit.begin(0, wake);
            EXPECT_TRUE(unit.end().decoded);
        }
        for (int i = 0; i < waiting; ++i) unit.add_prompt(0, make_job(jobs, 500, 10));
        std::string seen;
        for (int i = 0; i < 10 && unit.begin(0, wake) > 0; ++i) {
            const Unit::Outcome& o = unit.end();
            EXPECT_LE(o.prompts.size(), 1u);
            seen += o.decoded ? 'd' : o.prompts.empty() ? 'c' : 'p';
        }
        return seen;
    };
    EXPECT_EQ(steps_of(0, 6), "pppppp");
    // Two steps of 6 ms leave 3 for 256 tokens of the third prompt; its rest and two more
    // make 15.44.
    EXPECT_EQ(steps_of(8, 6), "ppcdpppdpd");
    // 30 ms while more wait than the 4 that decode.
    EXPECT_EQ(steps_of(4, 12), "pppppdpppd");
}

// Random adds, removals and steps against a list of requests stepped one by one.
TEST(Unit, LazyBatchEqualsRequestsSteppedOneByOne) {
    struct Naive {
        JobId job;
        double kv, left;
    };
    const EngineModel model = simple_model();
    JobPool jobs;
    Prng prng(3);
    Unit unit({.stage = router::Stage::kDecode, .ranks = 3}, model, jobs);
    std::vector<std::vector<Naive>> naive(3), waiting(3);
    for (int step = 0; step < 3000; ++step) {
        const auto rank = static_cast<std::uint32_t>(prng.below(3));
        if (prng.chance(0.4)) {
            const JobId id = make_job(jobs, 1 + static_cast<TokenCount>(prng.below(500)),
                                      1 + static_cast<TokenCount>(prng.below(40)));
            unit.add_decode(rank, id);
            waiting[rank].push_back({id, static_cast<double>(jobs[id].prompt),
                                     static_cast<double>(jobs[id].request.output_tokens)});
        }
        if (prng.chance(0.05) && !naive[rank].empty()) {
            ASSERT_TRUE(unit.remove(rank, naive[rank].back().job));
            naive[rank].pop_back();
        }
        Nanos wake = INT64_MAX;
        const Nanos length = unit.begin(step, wake);
        double worst = 0;
        for (std::size_t r = 0; r < 3; ++r) {
            naive[r].insert(naive[r].end(), waiting[r].begin(), waiting[r].end());
            waiting[r].clear();
            double work = 0;
            for (const Naive& n : naive[r]) work += 1 + n.kv * 0.001;
            worst = std::max(worst, work);
        }
        if (worst == 0) {
            ASSERT_EQ(length, 0);
            continue;
        }
        ASSERT_NEAR(static_cast<double>(length), static_cast<double>(from_millis(10 + worst)), 2);
        std::vector<JobId> ended = unit.end().ended, expected;
        for (auto& list : naive) {
            for (Naive& n : list) n.kv += 1, n.left -= 1;
            for (const Naive& n : list)
                if (n.left <= 0) expected.push_back(n.job);
            std::erase_if(list, [](const Naive& n) { return n.left <= 0; });
        }
        std::ranges::sort(ended);
        std::ranges::sort(expected);
        ASSERT_EQ(ended, expected);
    }
}

TEST(Unit, PreemptsTheLongestOutputWhenKvIsOut) {
    const EngineModel model = simple_model();
    JobPool jobs;
    Unit unit({.stage = router::Stage::kDecode, .ranks = 1, .kv_capacity_tokens = 205}, model,
              jobs);
    const JobId old = make_job(jobs, 100, 100);
    unit.add_decode(0, old);
    Nanos wake = INT64_MAX;
    unit.begin(0, wake);
    unit.end();
    unit.add_decode(0, make_job(jobs, 101, 100));
    const JobId waits = make_job(jobs, 50, 100);
    unit.add_decode(0, waits);
    std::vector<JobId> preempted;
    for (int i = 0; i < 3 && preempted.empty(); ++i) {
        unit.begin(0, wake);
        preempted = unit.end().preempted;
    }
    ASSERT_EQ(preempted, std::vector<JobId>{old});
    EXPECT_EQ(jobs[old].generated, 3u);
    EXPECT_EQ(unit.waiting(0), 1u);
    unit.begin(0, wake);
    EXPECT_EQ(unit.waiting(0), 0u) << "the freed room is used";
}

// DeepInfer NORMAL: prompts wait for the 70th decode step when all ranks have some, the 100th when
// one has (facts/deepinfer.md §3.5).
TEST(Unit, UnifiedVotesForPrefill) {
    const EngineModel model = simple_model();
    const auto steps_until_prefill = [&](bool everywhere) {
        JobPool jobs;
        Unit unit({.stage = router::Stage::kUnified, .ranks = 2, .vote_all = 70, .vote_any = 100},
                  model, jobs);
        for (const std::uint32_t r : {0u, 1u}) unit.add_decode(r, make_job(jobs, 10, 1000));
        Nanos wake = INT64_MAX;
        unit.begin(0, wake);
        unit.end();
        for (const std::uint32_t r : {0u, 1u})
            if (r == 0 || everywhere) unit.add_prompt(r, make_job(jobs, 10, 10));
        for (int step = 1;; ++step) {
            unit.begin(0, wake);
            if (!unit.end().prompts.empty()) return step;
            if (step > 500) return 0;
        }
    };
    EXPECT_EQ(steps_until_prefill(true), 70);
    EXPECT_EQ(steps_until_prefill(false), 100);
}

}  // namespace
}  // namespace nereid::sim
