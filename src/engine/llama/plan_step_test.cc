#include "engine/llama/plan_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.h"
#include "engine/llama/options.h"

namespace nereid::engine::llama {
namespace {

using Kind = StepPlan::Kind;

// A cost model that has seen prefill at 2 ms a row and decode at 10 ms.
StepCost trained() {
    StepCost cost;
    for (int i = 0; i < 300; ++i) {
        const auto rows = static_cast<std::uint32_t>(64 * (1 + i % 8));
        cost.observe_prefill(rows, static_cast<TokenCount>(i % 5 * 100),
                             Duration{rows * 2'000'000ll});
        cost.observe_decode(static_cast<std::uint32_t>(1 + i % 4),
                            static_cast<TokenCount>(i % 7 * 300), 10ms);
    }
    return cost;
}

PlanState state_of(std::uint32_t decoding, std::vector<TokenCount> remaining) {
    PlanState s;
    s.decoding = decoding;
    s.decode_gap = 250ms;
    for (const TokenCount r : remaining) s.waiting.push_back({r, 0, 0});
    return s;
}

// Short prompts on the given streams, that may share calls.
std::vector<PrefillWork> burst(
    const std::vector<std::pair<std::uint32_t, TokenCount>>& stream_and_remaining) {
    std::vector<PrefillWork> out;
    for (const auto& [stream, remaining] : stream_and_remaining) {
        out.push_back({.remaining = remaining, .stream = stream, .joinable = true});
    }
    return out;
}

TEST(StepCost, LearnsWhatItSees) {
    const StepCost cost = trained();
    EXPECT_NEAR(to_ms(cost.prefill(256, 100)), 512, 40);
    EXPECT_NEAR(to_ms(cost.decode(3, 500)), 10, 2);
    StepCost fresh;
    EXPECT_GT(fresh.prefill(512, 0), 0ms);
    EXPECT_GT(fresh.decode(1, 0), 0ms);
}

TEST(PlanStep, SimpleCases) {
    const StepCost cost = trained();
    EXPECT_EQ(plan_step(state_of(0, {}), cost).kind, Kind::kIdle);
    EXPECT_EQ(plan_step(state_of(3, {}), cost), (StepPlan{Kind::kDecode, 0}));
    EXPECT_EQ(plan_step(state_of(0, {1000}), cost), (StepPlan{Kind::kPrefill, 512}));
    EXPECT_EQ(plan_step(state_of(0, {100}), cost), (StepPlan{Kind::kPrefill, 100}));
    EXPECT_EQ(plan_step(state_of(0, {550}), cost), (StepPlan{Kind::kPrefill, 486}));
    EXPECT_EQ(plan_step(state_of(0, {36}), cost), (StepPlan{Kind::kPrefill, 36}));
    auto scored = state_of(0, {1000});
    scored.waiting[0].limit = 64;
    EXPECT_EQ(plan_step(scored, cost), (StepPlan{Kind::kPrefill, 64}));
}

TEST(PlanStep, PromptsNearTheOtherKernelArePaddedToIt) {
    EXPECT_EQ(padded_rows(39, 0), 39u);
    EXPECT_EQ(padded_rows(40, 0), 64u);
    EXPECT_EQ(padded_rows(64, 0), 64u);
    EXPECT_EQ(padded_rows(65, 0), 65u);
    EXPECT_EQ(padded_rows(1, 64), 64u);  // what a hit left
    EXPECT_EQ(padded_rows(65, 64), 65u);
    EXPECT_EQ(plan_step(state_of(0, {50}), trained()), (StepPlan{Kind::kPrefill, 64}));
}

TEST(JoinedPrefill, NeighboursOfAboutTheSameLength) {
    using Members = std::vector<std::uint32_t>;
    EXPECT_EQ(joined_prefill(burst({{3, 20}, {1, 22}, {2, 24}, {4, 19}}), 512),
              (Members{1, 2, 0, 3}));
    EXPECT_EQ(joined_prefill(burst({{3, 20}, {1, 20}, {5, 20}}), 512), (Members{0})) << "a gap";
    EXPECT_EQ(joined_prefill(burst({{1, 20}, {2, 8}}), 512), (Members{0})) << "too much padding";
    EXPECT_EQ(joined_prefill(burst({{1, 38}, {2, 41}}), 512), (Members{0})) << "another kernel";
    EXPECT_EQ(joined_prefill(burst({{1, 41}, {2, 70}, {3, 64}}), 512), (Members{0, 1, 2}));
    EXPECT_EQ(joined_prefill(burst({{1, 200}, {2, 200}, {3, 200}}), 512), (Members{0, 1}));
    EXPECT_EQ(joined_prefill(burst({{1, 600}, {2, 600}}), 512), (Members{0})) << "not whole";
    auto apart = burst({{1, 20}, {2, 20}});
    apart[1].joinable = false;
    EXPECT_EQ(joined_prefill(apart, 512), (Members{0}));
}

TEST(JoinedPrefill, NobodyComputesWhatANeighbourIsComputing) {
    auto waiting = burst({{1, 150}, {2, 150}, {3, 150}});
    waiting[0].next_block = waiting[1].next_block = model::BlockKey{{7}};
    waiting[2].next_block = model::BlockKey{{8}};
    EXPECT_EQ(joined_prefill(waiting, 512), (std::vector<std::uint32_t>{0}));
    std::swap(waiting[1].stream, waiting[2].stream);
    EXPECT_EQ(joined_prefill(waiting, 512), (std::vector<std::uint32_t>{0, 2}));
}

TEST(JoinedPrefill, FitsTheGap) {
    const StepCost cost = trained();
    PlanState s;
    s.decode_gap = 250ms;
    s.waiting = burst({{0, 20}, {1, 20}, {2, 20}, {3, 20}, {4, 20}, {5, 20}, {6, 20}, {7, 20}});
    EXPECT_EQ(plan_step(s, cost).joined.size(), 7u);
    s.decoding = 20;  // no burst
    const StepPlan cut = plan_step(s, cost);
    ASSERT_EQ(cut.kind, Kind::kPrefill);
    EXPECT_GT(cut.joined.size(), 1u);
    EXPECT_LT(cut.joined.size(), 7u);
    const auto members = static_cast<std::uint32_t>(cut.joined.size() + 1);
    EXPECT_LE(cost.prefill(members * 20, 0), 250ms);
    s.since_decode = 240ms;
    EXPECT_EQ(plan_step(s, cost).kind, Kind::kDecode);
}

TEST(PlanStep, ChunkIsCutToTheGapAndDecodeIsOwedAfterIt) {
    const StepCost cost = trained();
    auto s = state_of(2, {4000});
    const StepPlan first = plan_step(s, cost);
    EXPECT_EQ(first.kind, Kind::kPrefill);
    EXPECT_LE(cost.prefill(first.rows, 0), 250ms);
    EXPECT_GE(first.rows, 64u);
    s.since_decode = 240ms;
    EXPECT_EQ(plan_step(s, cost).kind, Kind::kDecode);
}

TEST(PlanStep, BurstOfArrivalsMayKeepFewRowsWaitingLonger) {
    const StepCost cost = trained();
    auto s = state_of(1, {64, 64, 64});
    s.since_decode = 300ms;
    EXPECT_EQ(plan_step(s, cost).kind, Kind::kPrefill);
    s.waiting.resize(1);
    EXPECT_EQ(plan_step(s, cost).kind, Kind::kDecode);
}

// Neither side starves, whatever the state: simulated with the plan's own costs.
TEST(PlanStep, BothSidesProgress) {
    Prng prng(5);
    const StepCost cost = trained();
    for (int round = 0; round < 200; ++round) {
        PlanState s = state_of(1 + static_cast<std::uint32_t>(prng.below(20)), {});
        s.decode_gap = Duration{static_cast<std::int64_t>(prng.below(400'000'000))};
        for (std::uint64_t i = 1 + prng.below(6); i > 0; --i) {
            s.waiting.push_back({static_cast<TokenCount>(1 + prng.below(3000)),
                                 static_cast<TokenCount>(prng.below(50) * 64), 0});
        }
        int decodes = 0;
        int prefills_in_row = 0;
        int decodes_in_row = 0;
        while (!s.waiting.empty()) {
            const StepPlan plan = plan_step(s, cost);
            ASSERT_NE(plan.kind, Kind::kIdle);
            if (plan.kind == Kind::kDecode) {
                ++decodes;
                ASSERT_LE(++decodes_in_row, 1) << "prefill starves";
                prefills_in_row = 0;
                s.since_decode = Duration{0};
                continue;
            }
            decodes_in_row = 0;
            const bool fits = cost.prefill(plan.rows, s.waiting[0].context) + s.since_decode <=
                              s.decode_gap * kBurstFactor;
            ASSERT_TRUE(fits || prefills_in_row == 0) << "decode starves";
            ++prefills_in_row;
            ASSERT_GE(plan.rows, 1u);
            const TokenCount computed = std::min<TokenCount>(s.waiting[0].remaining, plan.rows);
            ASSERT_EQ(plan.rows, padded_rows(computed, s.waiting[0].context));
            ASSERT_LE(plan.rows, s.ubatch);
            s.since_decode += cost.prefill(plan.rows, s.waiting[0].context);
            s.waiting[0].remaining -= computed;
            s.waiting[0].context += computed;
            if (s.waiting[0].remaining == 0) {
                s.waiting.erase(s.waiting.begin());
                ++s.decoding;
            }
        }
        (void)decodes;
    }
}

// No call of a prompt of 64 or more has fewer than 64 rows, however it is cut, cold or warm, and
// none writes beyond the stream.
TEST(PrefillRows, NeverFewerThan64) {
    constexpr TokenCount kCapacity = 701;
    for (TokenCount prompt = 1; prompt < 700; ++prompt) {
        for (const std::uint32_t wanted : {64u, 100u, 128u, 512u}) {
            const TokenCount most = restorable_blocks(prompt, kCapacity) * 64;
            ASSERT_LT(most, prompt);
            for (const TokenCount hit : {0u, most}) {
                TokenCount past = hit;
                while (past < prompt) {
                    const std::uint32_t own = prefill_rows(prompt - past, wanted);
                    const std::uint32_t rows = padded_rows(own, past);
                    ASSERT_GE(rows, std::min<TokenCount>(prompt, 64)) << prompt << " " << wanted;
                    ASSERT_LE(own, std::min<TokenCount>(prompt - past, std::max(wanted, 127u)));
                    ASSERT_LE(past + rows, kCapacity);
                    past += own;
                }
            }
        }
    }
    EXPECT_EQ(restorable_blocks(64, 8192), 0u);
    EXPECT_EQ(restorable_blocks(65, 8192), 1u);
    EXPECT_EQ(restorable_blocks(1262, 8192), 19u);
    EXPECT_EQ(restorable_blocks(128, 128), 1u);
    EXPECT_EQ(restorable_blocks(130, 131), 1u);  // two blocks would need 192 cells
}

// Passes as llama.cpp makes them: maximal runs of consecutive streams.
std::vector<std::pair<std::uint32_t, std::uint32_t>> passes(const std::set<std::uint32_t>& rows) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
    for (const std::uint32_t r : rows) {
        if (!out.empty() && out.back().second + 1 == r) {
            out.back().second = r;
        } else {
            out.emplace_back(r, r);
        }
    }
    return out;
}

TEST(PaddingRows, NoLoneRowOverManyCellsAndNoRowTwice) {
    Prng prng(6);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<StreamState> streams(2 + prng.below(20));
        const double busy = prng.uniform();
        for (auto& s : streams) {
            s.decoding = prng.chance(busy);
            s.usable = true;
            s.length = static_cast<TokenCount>(prng.below(600));
        }
        const PaddingPolicy policy{.max_gap = static_cast<std::uint32_t>(prng.below(6))};
        const auto padding = padding_rows(streams, policy);
        std::set<std::uint32_t> rows;
        std::uint32_t decoding = 0;
        for (std::uint32_t i = 0; i < streams.size(); ++i) {
            if (streams[i].decoding) {
                rows.insert(i);
                ++decoding;
            }
        }
        const auto before = passes(rows).size();
        ASSERT_TRUE(std::is_sorted(padding.begin(), padding.end()));
        for (const std::uint32_t p : padding) {
            ASSERT_FALSE(streams[p].decoding);
            ASSERT_TRUE(rows.insert(p).second);
        }
        for (const auto& [first, last] : passes(rows)) {
            if (first == last)
                ASSERT_LE(streams[first].length + 1, kSplitKv - kKvPadding) << "a lone row";
        }
        ASSERT_LE(passes(rows).size(), before);
        if (decoding == 0) ASSERT_TRUE(padding.empty());
    }
}

TEST(PaddingRows, FillsShortGapsOnly) {
    std::vector<StreamState> s(12);
    for (auto& x : s) x.usable = true;
    for (const int i : {0, 1, 4, 11}) s[static_cast<std::size_t>(i)].decoding = true;
    EXPECT_EQ(padding_rows(s, {.max_gap = 4, .pair_lone_rows = false}),
              (std::vector<std::uint32_t>{2, 3}));
    EXPECT_EQ(padding_rows(s, {.max_gap = 1, .pair_lone_rows = false}),
              (std::vector<std::uint32_t>{}));
    s[11].length = 500;
    EXPECT_EQ(padding_rows(s, {.max_gap = 0}), (std::vector<std::uint32_t>{10}));
    s[10].usable = false;
    EXPECT_EQ(padding_rows(s, {.max_gap = 0}),
              (std::vector<std::uint32_t>{}));  // nobody is left to pair with
}

}  // namespace
}  // namespace nereid::engine::llama
