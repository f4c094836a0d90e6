// Breaker, outcome classes, retry budget, and the worker's gate: the failure cases of
// cases/router.md.
#include "router/health.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "router/quota.h"

namespace nereid::router {
namespace {

using State = Health::State;

// R35: client errors are neutral, busy is back-pressure; only faults open the breaker.
TEST(Health, R35_ClientErrorsAndBusyNeverOpenTheBreaker) {
    Health h({});
    TimePoint now{};
    for (int status : {400, 401, 403, 404, 408, 413, 422, 429, 499, 503}) {
        EXPECT_NE(classify_status(status), Outcome::kFault) << status;
        for (int i = 0; i < 50; ++i) h.outcome(classify_status(status), now = now + 1ms);
        EXPECT_EQ(h.state(now), State::kClosed) << status;
    }
    EXPECT_EQ(classify_status(200), Outcome::kSuccess);
    EXPECT_EQ(classify_status(429), Outcome::kBusy);
    for (int status : {0, 500, 502, 504})
        EXPECT_EQ(classify_status(status), Outcome::kFault) << status;
    EXPECT_EQ(classify_error(Code::kContextLength), Outcome::kClient);
    EXPECT_EQ(classify_error(Code::kCancelled), Outcome::kClient);
    EXPECT_EQ(classify_error(Code::kOverloaded), Outcome::kBusy);
    EXPECT_EQ(classify_error(Code::kWorkerLost), Outcome::kFault);
    h.outcome(Outcome::kFault, now);
    h.outcome(Outcome::kClient, now);
    h.outcome(Outcome::kFault, now);
    h.outcome(Outcome::kBusy, now);
    EXPECT_TRUE(h.admits(now));
    h.outcome(Outcome::kFault, now);
    EXPECT_EQ(h.state(now), State::kOpen);  // three in a row, neutral ones between them
}

// R36: an open breaker is a lease of at most a second; one trial, and success closes it.
TEST(Health, R36_OpenIsALeaseWithAHalfOpenTrial) {
    Health h({});
    TimePoint now{5s};
    for (int i = 0; i < 3; ++i) h.outcome(Outcome::kFault, now);
    EXPECT_FALSE(h.admits(now));
    EXPECT_TRUE(h.admits(now + 250ms));
    EXPECT_EQ(h.state(now + 250ms), State::kHalfOpen);
    h.begin(now + 250ms);
    EXPECT_FALSE(h.admits(now + 251ms));  // one at a time
    h.outcome(Outcome::kFault, now + 260ms);
    EXPECT_EQ(h.open_until(), now + 260ms + 500ms);
    h.begin(now + 760ms);
    EXPECT_TRUE(h.admits(now + 760ms + 1s));  // a trial that never ends is a lease too
    h.outcome(Outcome::kSuccess, now + 2s);
    EXPECT_EQ(h.state(now + 2s), State::kClosed);
    // However often it fails, it is tried again within a second.
    for (int i = 0; i < 100; ++i) {
        now = now + 10s;
        h.begin(now);
        h.outcome(Outcome::kFault, now);
        h.outcome(Outcome::kFault, now);
        h.outcome(Outcome::kFault, now);
        EXPECT_FALSE(h.admits(now));
        EXPECT_TRUE(h.admits(now + 1s));
    }
}

TEST(Health, LateFailuresDoNotLengthenAnOpenBreaker) {
    Health h({});
    const TimePoint now{1s};
    for (int i = 0; i < 50; ++i) h.outcome(Outcome::kFault, now + i * Duration(1ms));
    EXPECT_TRUE(h.admits(now + 260ms));
    EXPECT_EQ(h.opened(), 1u);
}

TEST(Health, ASteadyShareOfFaultsOpensItToo) {
    Health h({});
    TimePoint now{};
    for (int i = 0; i < 30 && h.state(now) == State::kClosed; ++i) {
        h.outcome(i % 2 == 0 ? Outcome::kFault : Outcome::kSuccess, now);
    }
    EXPECT_EQ(h.state(now), State::kOpen);
    Health rare({});
    for (int i = 0; i < 1000; ++i)
        rare.outcome(i % 5 == 0 ? Outcome::kFault : Outcome::kSuccess, now);
    EXPECT_EQ(rare.state(now), State::kClosed);
}

// R38: one failed probe removes nobody, and probes that fail under load are outweighed by answers.
TEST(Health, R38_LivenessDoesNotDependOnLoad) {
    Health h({});
    TimePoint now{};
    h.probe(false, now);
    h.probe(false, now);
    EXPECT_TRUE(h.admits(now));
    h.outcome(Outcome::kSuccess, now);  // busy, and alive
    h.probe(false, now);
    h.probe(false, now);
    EXPECT_TRUE(h.admits(now));
    h.probe(false, now);
    EXPECT_FALSE(h.admits(now));
    h.probe(true, now);
}

TEST(RetryBudget, RetriesAreAShareOfRequests) {
    RetryBudget budget(0.1, 10);
    int retried = 0;
    for (int i = 0; i < 10'000; ++i) {
        budget.request();
        retried += budget.take();  // everything fails
    }
    EXPECT_LE(retried, 1010);
    EXPECT_GE(retried, 990);
    EXPECT_EQ(budget.refused() + budget.taken(), 10'000u);
}

TEST(QuotaGate, AcceptsForwardsRefuses) {
    QuotaGate gate(2, {.quota_ms = 100});
    using V = QuotaGate::Verdict;
    EXPECT_EQ(gate.offer(0, 500, 10).verdict, V::kAccepted);  // idle: however large
    const auto forwarded = gate.offer(0, 60, 10);
    EXPECT_EQ(forwarded.verdict, V::kForwarded);
    EXPECT_EQ(forwarded.rank, 1u);
    const auto refused = gate.offer(0, 60, 10);
    EXPECT_EQ(refused.verdict, V::kRefused);
    EXPECT_NEAR(refused.retry_after_ms, 20, 1e-9);
    EXPECT_EQ(gate.offer(0, 60, 10, true).rank, 1u);  // the last resort goes where there is least
    gate.finish(0, 500, 10);
    EXPECT_EQ(gate.outstanding_ms(0), 0);
    EXPECT_EQ(gate.offer(0, 60, 10).verdict, V::kAccepted);
    EXPECT_EQ(gate.accepted() + gate.forwarded() + gate.refused(), 5u);
}

TEST(QuotaGate, KvRoomAndProperty) {
    QuotaGate gate(1, {.quota_ms = 1000, .kv_capacity_tokens = 100});
    EXPECT_EQ(gate.offer(0, 1, 90).verdict, QuotaGate::Verdict::kAccepted);
    EXPECT_EQ(gate.offer(0, 1, 20).verdict, QuotaGate::Verdict::kRefused);
    // Random life: a rank of more than one request never exceeds its quota.
    Prng prng(1);
    QuotaGate many(4, {.quota_ms = 200});
    std::vector<std::pair<std::uint32_t, double>> live;
    for (int step = 0; step < 20'000; ++step) {
        if (prng.chance(0.55)) {
            const double ms = static_cast<double>(prng.below(120) + 1);
            const auto d = many.offer(static_cast<std::uint32_t>(prng.below(4)), ms, 1);
            if (d.verdict != QuotaGate::Verdict::kRefused) live.emplace_back(d.rank, ms);
        } else if (!live.empty()) {
            std::swap(live[prng.below(live.size())], live.back());
            many.finish(live.back().first, live.back().second, 1);
            live.pop_back();
        }
        std::array<double, 4> sums{};
        for (const auto& [rank, ms] : live) sums[rank] += ms;
        for (std::uint32_t r = 0; r < 4; ++r) {
            ASSERT_NEAR(many.outstanding_ms(r), sums[r], 1e-6);
            ASSERT_LE(sums[r], 200);
        }
    }
}

}  // namespace
}  // namespace nereid::router
