// The view's books against a naive model, and the accounting and staleness cases of
// cases/router.md.
#include "router/view.h"

#include <gtest/gtest.h>

#include <array>

#include <map>

#include "base/prng.h"
#include "router/policy.h"
#include "router/test_world.h"

namespace nereid::router {
namespace {

Charge decode_charge(RankSlot slot, TokenCount kv, TokenCount reserve = 0) {
    return {.slot = slot, .stage = Stage::kDecode, .kv_tokens = kv, .reserve_tokens = reserve};
}
Charge prefill_charge(RankSlot slot, double ms, TokenCount tokens) {
    return {.slot = slot, .stage = Stage::kPrefill, .prefill_ms = ms, .prefill_tokens = tokens};
}

TEST(View, WorkersRanksAndUnits) {
    View view({});
    const UnitId unit = view.add_unit(Stage::kDecode);
    const auto a =
        *view.add_worker({.name = "a", .stage = Stage::kDecode, .unit = unit, .ranks = 4}, {});
    const auto b =
        *view.add_worker({.name = "b", .stage = Stage::kDecode, .unit = unit, .ranks = 2}, {});
    EXPECT_EQ(view.ranks(unit).size(), 6u);
    EXPECT_EQ(view.id(view.slot({b, 1})), (RankId{b, 1}));
    EXPECT_EQ(view.slot({b, 2}), kNoSlot);
    EXPECT_EQ(view.slot({WorkerId{9}, 0}), kNoSlot);
    EXPECT_EQ(view.add_worker({.name = "a", .stage = Stage::kDecode}, {}).code(), Code::kConflict);
    EXPECT_EQ(view.add_worker({.name = "c", .stage = Stage::kPrefill, .unit = unit}, {}).code(),
              Code::kConflict);
    EXPECT_EQ(view.add_worker({.name = "d", .ranks = 0}, {}).code(), Code::kInvalidArgument);
    EXPECT_TRUE(view.remove_worker(a, {}));
    EXPECT_FALSE(view.remove_worker(a, {}));
    EXPECT_EQ(view.ranks(unit).size(), 2u);
    // A restart is another worker, on recycled slots.
    EXPECT_TRUE(
        view.add_worker({.name = "a", .epoch = 1, .stage = Stage::kDecode, .unit = unit}, {}).ok());
    EXPECT_EQ(view.slots(), 6u);
    const auto lone = *view.add_worker({.name = "lone", .stage = Stage::kDecode}, {});
    const auto other = *view.add_worker({.name = "other", .stage = Stage::kDecode}, {});
    EXPECT_EQ(view.units(Stage::kDecode).size(), 3u);
    view.remove_worker(lone, {});
    EXPECT_EQ(view.units(Stage::kDecode).size(), 2u);  // its own unit goes with it
    EXPECT_EQ(view.position(view.slot({other, 0})), 1u);
    EXPECT_EQ(view.least(Stage::kDecode, 1, 2, 0).slot, view.slot({other, 0}));
    EXPECT_EQ(view.least(Stage::kDecode, 2, 2, 0).slot, kNoSlot);
}

// R1, R2, R11: a charge is booked by apply, before anything is awaited, whatever the protocol; it
// ends when its handle does, on every path, exactly once, and never by itself.
TEST(View, R1_R2_R11_ChargesAreExactAndOnlyTheirHandleEndsThem) {
    View view({});
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kDecode, .ranks = 2}, {});
    const RankSlot s = view.slot({w, 0});
    TimePoint now{1s};
    {
        ChargeHandle a = view.apply(decode_charge(s, 1000), now);
        ChargeHandle b = std::move(a);
        EXPECT_FALSE(a.active());  // NOLINT(bugprone-use-after-move)
        a.release();
        EXPECT_EQ(view.load(s).requests, 1);
        ChargeHandle c = view.apply(decode_charge(s, 500), now);
        c = std::move(b);  // ends c's own
        EXPECT_EQ(view.load(s).kv_tokens, 1000);
        // Ten minutes later the connection is still open: so is the charge.
        for (int i = 0; i < 6000; ++i) view.tick(now = now + 100ms);
        EXPECT_EQ(view.load(s).requests, 1);
        EXPECT_EQ(view.stats().live_charges, 1u);
        try {
            ChargeHandle d = view.apply(decode_charge(s, 1), now);
            throw std::runtime_error("a failing protocol adapter");
        } catch (const std::runtime_error&) {
        }
        EXPECT_EQ(view.stats().live_charges, 1u);
        view.release(c, now);
        c.release();
        EXPECT_EQ(view.stats().released, view.stats().applied);
    }
    EXPECT_EQ(view.load(s).requests, 0);
    EXPECT_EQ(view.load(s).kv_tokens, 0);
    ChargeHandle survivor;
    {
        View shortlived({});
        const auto x = *shortlived.add_worker({.name = "x"}, {});
        survivor = shortlived.apply({.slot = shortlived.slot({x, 0})}, {});
    }
    survivor.release();  // its view is gone: nothing happens
}

// Random applies, releases, moves, progress, removals: sums are the naive sums, and zero at the
// end.
TEST(View, PropertySumsAreThoseOfTheLiveCharges) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        Prng prng(seed);
        View view({.slow_start = 0s});
        struct Live {
            ChargeHandle handle;
            RankSlot slot;
            double kv, prefill;
        };
        std::vector<Live> live;
        std::vector<WorkerId> workers;
        std::uint64_t epoch = 0;
        TimePoint now{};
        const UnitId unit = view.add_unit(Stage::kDecode);
        const auto add = [&] {
            workers.push_back(*view.add_worker(
                {.name = "w", .epoch = ++epoch, .stage = Stage::kDecode, .unit = unit, .ranks = 3},
                now));
        };
        for (int i = 0; i < 4; ++i) add();
        const auto random_slot = [&] {
            return view.slot(
                {workers[prng.below(workers.size())], static_cast<std::uint32_t>(prng.below(3))});
        };
        for (int step = 0; step < 2000; ++step) {
            now = now + Duration(static_cast<std::int64_t>(prng.below(5'000'000)));
            const std::uint64_t what = prng.below(100);
            if (what < 45) {
                const RankSlot s = random_slot();
                const auto kv = static_cast<TokenCount>(prng.below(5000));
                const double ms = static_cast<double>(prng.below(100));
                live.push_back({view.apply({.slot = s,
                                            .stage = Stage::kDecode,
                                            .prefill_ms = ms,
                                            .prefill_tokens = 100,
                                            .kv_tokens = kv},
                                           now),
                                s, static_cast<double>(kv), ms});
            } else if (what < 85 && !live.empty()) {
                std::swap(live[prng.below(live.size())], live.back());
                live.pop_back();
            } else if (what < 90 && !live.empty()) {
                Live& l = live[prng.below(live.size())];
                const RankSlot to = random_slot();
                if (view.move(l.handle, to, now)) l.slot = to;
            } else if (what < 95 && !live.empty()) {
                Live& l = live[prng.below(live.size())];
                if (!view.charge(l.handle)) continue;
                const double before = view.charge(l.handle)->kv_tokens;
                view.progress_decode(l.handle, 50, now);
                l.kv += view.charge(l.handle)->kv_tokens - before;
                view.progress_prefill(l.handle, 30, 40, now);
                l.prefill = view.charge(l.handle)->prefill_ms;
            } else if (what == 95) {
                const std::size_t i = prng.below(workers.size());
                view.remove_worker(workers[i], now);
                workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(i));
                add();
            }
            view.tick(now);
            std::map<RankSlot, std::array<double, 3>> sums;
            for (const Live& l : live) {
                sums[l.slot][0] += 1;
                sums[l.slot][1] += l.kv;
                sums[l.slot][2] += l.prefill;
            }
            double least = 1e300;
            for (const RankSlot s : view.ranks(unit)) {
                ASSERT_EQ(view.load(s).requests, sums[s][0]) << seed << " " << step;
                ASSERT_NEAR(view.load(s).kv_tokens, sums[s][1], 1e-6);
                ASSERT_NEAR(view.load(s).prefill_ms, sums[s][2], 1e-6);
                least = std::min(least, view.score(s));
            }
            ASSERT_EQ(view.least(unit, prng.next()).score, least);
            ASSERT_EQ(view.least(Stage::kDecode, 0, 1, prng.next()).score, least);
        }
        live.clear();
        for (const RankSlot s : view.ranks(unit)) {
            EXPECT_EQ(view.load(s).kv_tokens, 0);
            EXPECT_EQ(view.load(s).prefill_ms, 0);
            EXPECT_EQ(view.load(s).requests, 0);
        }
        EXPECT_EQ(view.stats().live_charges, 0u);
        EXPECT_LE(view.slots(), 200u);
    }
}

// R7, R13: eight requests within one poll interval do not all go where the last report was lowest.
TEST(View, R7_R13_CachedValuePlusLocalChargesSinceThatSample) {
    TestWorld world({.decode_ranks = 8});
    View& view = world.view;
    for (RankSlot s = 0; s < 8; ++s) {
        model::Load load{.running = s == 0 ? 1u : 2u, .kv_used_tokens = s == 0 ? 8000u : 9000u};
        view.report(view.id(s), load, world.now, world.now);
    }
    std::map<RankSlot, int> chosen;
    std::vector<PlanHandles> held;
    for (int i = 0; i < 8; ++i) {
        const Plan plan = *world.choose({.prompt_tokens = 4000});
        ++chosen[plan.decode->charge.slot];
        held.push_back(view.apply(plan, world.now));
    }
    for (const auto& [slot, n] : chosen) EXPECT_LE(n, 2);
    EXPECT_GE(chosen.size(), 7u);
}

// A report tells of what is not ours; what was ours when it was taken is not counted twice, neither
// what ended since nor what began since.
TEST(View, R8_ReportsAreOfTheirTime) {
    View view({.slow_start = 0s});
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kDecode}, {});
    const RankSlot s = view.slot({w, 0});
    TimePoint now{10s};
    ChargeHandle a = view.apply(decode_charge(s, 1000), now);
    ChargeHandle b = view.apply(decode_charge(s, 2000), now);
    const TimePoint sampled = now + 1s;
    view.release(a, now + 1500ms);
    ChargeHandle c = view.apply(decode_charge(s, 4000), now + 1600ms);
    now = now + 2s;
    // At `sampled` the engine had a, b and one stranger of 700 tokens.
    view.report({w, 0}, {.running = 3, .kv_used_tokens = 3700}, sampled, now);
    EXPECT_EQ(view.load(s).requests, 3);  // b, c, the stranger
    EXPECT_NEAR(view.load(s).kv_tokens, 2000 + 4000 + 700, 1);
    // Older, future, too old or unknown: ignored and counted.
    view.report({w, 0}, {.running = 50}, sampled, now);
    view.report({w, 0}, {.running = 50}, now + 1s, now);
    view.report({w, 0}, {.running = 50}, sampled + 1ms, now + 60s);
    view.report({WorkerId{7}, 0}, {.running = 50}, now, now);
    EXPECT_EQ(view.stats().reports_ignored, 4u);
    EXPECT_EQ(view.load(s).requests, 3);
    // R8: a report that is not followed by another is no sample after a while, and that is seen.
    EXPECT_EQ(view.stats().reports_expired, 0u);
    view.tick(now + 70s);
    EXPECT_EQ(view.load(s).requests, 2);
    view.tick(now + 71s);
    EXPECT_EQ(view.stats().reports_expired, 1u);
}

TEST(View, KvGrowsByTheMeasuredStepBetweenCalls) {
    View view({.slow_start = 0s});
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kDecode}, {});
    const RankSlot s = view.slot({w, 0});
    TimePoint now{5s};
    ChargeHandle a = view.apply(decode_charge(s, 1000, 500), now);
    view.report({w, 0}, {.running = 1, .kv_used_tokens = 1000, .last_step = 50ms}, now + 1ms,
                now + 1ms);
    view.tick(now + 10s);
    EXPECT_NEAR(view.load(s).kv_tokens, 1200, 5);  // 20 tokens a second
    view.progress_decode(a, 300, now + 10s);
    EXPECT_NEAR(view.load(s).kv_tokens, 1300, 1);
    EXPECT_EQ(view.charge(a)->reserve_tokens, 200u);
    view.progress_decode(a, 299, now + 10s);  // late news
    EXPECT_NEAR(view.load(s).kv_tokens, 1300, 1);
}

TEST(View, ReportsDrainPrefillFirstComeFirstServed) {
    View view({.slow_start = 0s});
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kPrefill}, {});
    const RankSlot s = view.slot({w, 0});
    TimePoint now{1s};
    ChargeHandle a = view.apply(prefill_charge(s, 100, 1000), now);
    ChargeHandle b = view.apply(prefill_charge(s, 100, 1000), now);
    view.report({w, 0}, {.waiting = 2, .waiting_uncached_tokens = 1500}, now + 100ms, now + 100ms);
    EXPECT_NEAR(view.load(s).prefill_ms, 150, 1e-9);
    EXPECT_EQ(view.charge(a)->prefill_tokens, 500u);
    EXPECT_EQ(view.charge(b)->prefill_tokens, 1000u);
    view.release(a, now + 200ms);
    EXPECT_NEAR(view.load(s).prefill_ms, 100, 1e-9);
    view.progress_prefill(b, 40, 400, now + 200ms);
    EXPECT_NEAR(view.load(s).prefill_ms, 60, 1e-9);
}

// R4, R15: cost is in uncached tokens over the measured rate: ten short prompts weigh less than one
// long one.
TEST(View, R4_R5_R15_LoadIsTokensNotRequests) {
    TestWorld world({.prefill_ranks = 2, .decode_ranks = 2});
    std::vector<PlanHandles> held;
    const Plan big = *world.choose({.prompt_tokens = 100'000});
    held.push_back(world.view.apply(big, world.now));
    int with_big_prefill = 0;
    int with_big_decode = 0;
    for (int i = 0; i < 10; ++i) {
        const Plan plan = *world.choose({.prompt_tokens = 500});
        with_big_prefill += plan.prefill->charge.slot == big.prefill->charge.slot;
        with_big_decode += plan.decode->charge.slot == big.decode->charge.slot;
        held.push_back(world.view.apply(plan, world.now));
    }
    EXPECT_EQ(with_big_prefill, 0);
    EXPECT_EQ(with_big_decode, 0);
}

// R36: each negative mark is a lease of at most a second.
TEST(View, R36_ABusyMarkEndsByItself) {
    View view({.slow_start = 0s, .busy_lease = 500ms});
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kDecode}, {});
    const RankSlot s = view.slot({w, 0});
    TimePoint now{1s};
    view.mark_busy(s, now);
    view.mark_busy(s, now + 100ms);
    EXPECT_FALSE(view.live(s));
    view.tick(now + 599ms);
    EXPECT_FALSE(view.live(s));
    view.tick(now + 600ms);
    EXPECT_TRUE(view.live(s));
    view.mark_busy(s, now + 700ms);
    view.remove_worker(w, now + 700ms);
    view.tick(now + 5s);
    const auto again = *view.add_worker({.name = "b", .stage = Stage::kDecode}, now + 5s);
    EXPECT_TRUE(view.live(view.slot({again, 0})));
    EXPECT_DEATH(View({.busy_lease = 2s}), "busy_lease");
}

TEST(View, StatesSlowStartDrainAndRemoval) {
    View view({.slow_start = 10s, .slow_start_floor = 0.1});
    TimePoint now{100s};
    const auto w = *view.add_worker({.name = "a", .stage = Stage::kPrefill}, now);
    const RankSlot s = view.slot({w, 0});
    ChargeHandle h = view.apply(prefill_charge(s, 100, 1000), now);
    EXPECT_NEAR(view.score(s), 1000, 1);
    view.tick(now + 5s);
    EXPECT_NEAR(view.score(s), 100 / 0.55, 1);
    view.tick(now + 10s);
    EXPECT_NEAR(view.score(s), 100, 1e-3);
    view.set_state(w, WorkerState::kBlocked, now + 10s);
    EXPECT_FALSE(view.live(s));
    view.set_state(w, WorkerState::kReady, now + 11s);
    EXPECT_NEAR(view.score(s), 100, 1e-3);  // a breaker's end is no new start
    view.set_state(w, WorkerState::kDraining, now + 11s);
    EXPECT_FALSE(view.live(s));
    EXPECT_EQ(view.load(s).prefill_ms, 100);  // what it has goes on
    view.set_state(w, WorkerState::kReady, now + 12s);
    EXPECT_NEAR(view.score(s), 1000, 1);
    EXPECT_FALSE(view.set_stage(w, Stage::kDecode, now + 12s));  // busy
    h.release();
    EXPECT_TRUE(view.set_stage(w, Stage::kDecode, now + 12s));
    EXPECT_TRUE(view.units(Stage::kPrefill).empty());
    EXPECT_EQ(view.stage(s), Stage::kDecode);
    EXPECT_TRUE(view.remove_worker(w, now + 13s));
    EXPECT_FALSE(view.set_state(w, WorkerState::kReady, now + 13s));
    EXPECT_EQ(view.state(w), WorkerState::kRemoved);
}

// R19: a worker that comes back with another block size does not silently have an overlap of 0: it
// is counted, and chosen by load.
TEST(View, R19_AnotherBlockSizeIsCountedAndHasNoIndex) {
    View view({.block_tokens = 128, .slow_start = 0s});
    const auto w = *view.add_worker({.name = "a", .epoch = 1, .block_tokens = 128}, {});
    const std::vector<BlockHash> blocks{1, 2, 3};
    view.stored({w, 0}, 0, blocks, {});
    EXPECT_EQ(view.match(blocks).longest(), 3u);
    view.remove_worker(w, {});
    const auto again = *view.add_worker({.name = "a", .epoch = 2, .block_tokens = 64}, {});
    EXPECT_EQ(view.match(blocks).longest(), 0u);
    EXPECT_EQ(view.stats().profile_mismatches, 1u);
    view.stored({again, 0}, 0, blocks, {});
    view.stored({w, 0}, 0, blocks, {});  // of its former life
    view.removed({w, 0}, blocks, {});
    view.cleared({w, 0}, {});
    EXPECT_EQ(view.stats().events_ignored, 4u);
    EXPECT_EQ(view.match(blocks).longest(), 0u);
    EXPECT_TRUE(view.live(view.slot({again, 0})));
}

// R10: gateways tell each other what they have placed; absolute numbers, so that loss, repetition
// and disorder mend themselves.
TEST(View, R10_DigestsOfOtherGateways) {
    View a({.self = GatewayId{1}, .slow_start = 0s});
    View b({.self = GatewayId{2}, .slow_start = 0s});
    const auto wa = *a.add_worker({.name = "x", .stage = Stage::kDecode, .ranks = 2}, {});
    ASSERT_TRUE(b.add_worker({.name = "other", .stage = Stage::kDecode}, {}).ok());
    const auto wb = *b.add_worker({.name = "x", .stage = Stage::kDecode, .ranks = 2}, {});
    TimePoint now{1s};
    ChargeHandle h = a.apply(decode_charge(a.slot({wa, 1}), 3000, 100), now);
    const Digest first = a.digest(now);
    ASSERT_EQ(first.entries.size(), 1u);
    b.fold(first, now, now + 100ms);
    EXPECT_EQ(b.load(b.slot({wb, 1})).kv_tokens, 3000);
    EXPECT_EQ(b.load(b.slot({wb, 1})).reserve_tokens, 100);
    EXPECT_EQ(b.load(b.slot({wb, 0})).kv_tokens, 0);
    EXPECT_EQ(b.stats().live_peers, 1u);
    h.release();
    const Digest second = a.digest(now + 200ms);
    b.fold(second, now + 200ms, now + 300ms);
    b.fold(first, now, now + 300ms);           // late
    b.fold(second, now + 200ms, now + 300ms);  // again
    b.fold(b.digest(now), now, now + 300ms);   // its own, reflected
    EXPECT_EQ(b.stats().digests_ignored, 3u);
    EXPECT_EQ(b.load(b.slot({wb, 1})).kv_tokens, 0);
    // A gateway that falls silent holds nothing for ever.
    ChargeHandle again = a.apply(decode_charge(a.slot({wa, 0}), 500), now + 400ms);
    b.fold(a.digest(now + 400ms), now + 400ms, now + 500ms);
    EXPECT_EQ(b.load(b.slot({wb, 0})).requests, 1);
    b.tick(now + 6s);
    EXPECT_EQ(b.load(b.slot({wb, 0})).requests, 0);
    EXPECT_EQ(b.stats().peers_expired, 1u);
    // A worker that joins after its digest came is found in it.
    const auto late = *a.add_worker({.name = "late", .stage = Stage::kDecode}, now + 6s);
    ChargeHandle l = a.apply(decode_charge(a.slot({late, 0}), 77), now + 6s);
    b.fold(a.digest(now + 6s), now + 6s, now + 6s);
    const auto late_b = *b.add_worker({.name = "late", .stage = Stage::kDecode}, now + 6s);
    EXPECT_EQ(b.load(b.slot({late_b, 0})).kv_tokens, 77);
}

// The echo: while the others' sample is old, they are assumed to do what we do.
TEST(View, R9_OwnPlacementsSinceTheSampleCountForThePeersToo) {
    View view({.self = GatewayId{1}, .slow_start = 0s});
    const auto w = *view.add_worker({.name = "x", .stage = Stage::kDecode, .ranks = 2}, {});
    TimePoint now{1s};
    for (std::uint64_t g = 2; g <= 4; ++g) {
        view.fold({.from = GatewayId{g}, .sequence = 1, .entries = {}}, now, now);
    }
    const RankSlot s = view.slot({w, 0});
    ChargeHandle h = view.apply(decode_charge(s, 1000), now + 100ms);
    EXPECT_EQ(view.load(s).requests, 4);
    EXPECT_EQ(view.load(s).kv_tokens, 4000);
    // The next digests know what the peers really did.
    for (std::uint64_t g = 2; g <= 4; ++g) {
        view.fold({.from = GatewayId{g}, .sequence = 2, .entries = {}}, now + 200ms, now + 200ms);
    }
    EXPECT_EQ(view.load(s).requests, 1);
}

// What is foreign in a report, against a list of all that was ever placed: starts that lie ahead,
// ends after the sample, moves, prefill that the engine has done already.
TEST(View, R9_ReportsAgainstANaiveModel) {
    struct Placed {
        ChargeHandle handle;
        RankSlot slot = 0;
        TimePoint begins, ended = TimePoint::never();
    };
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        Prng prng(seed);
        View view({.self = GatewayId{1}, .slow_start = 0s});
        const auto w = *view.add_worker({.name = "x", .stage = Stage::kDecode, .ranks = 2}, {});
        const std::array<RankSlot, 2> slots{view.slot({w, 0}), view.slot({w, 1})};
        std::array<TimePoint, 2> sampled{};
        std::vector<Placed> naive;
        TimePoint now{1s};
        for (int step = 0; step < 3000; ++step) {
            now = now + Duration(1 + static_cast<std::int64_t>(prng.below(20'000'000)));
            const std::size_t which = prng.below(2);
            const double dice = prng.uniform();
            if (dice < 0.4) {
                Charge c = decode_charge(slots[which], 100);
                c.starts_in_ms = prng.chance(0.5) ? static_cast<double>(prng.below(200)) : 0.0;
                c.prefill_tokens = prng.chance(0.3) ? 500 : 0;
                naive.push_back({view.apply(c, now), slots[which],
                                 now + Duration(static_cast<std::int64_t>(c.starts_in_ms * 1e6)),
                                 TimePoint::never()});
            } else if (dice < 0.7 && !naive.empty()) {
                Placed& p = naive[prng.below(naive.size())];
                if (!p.handle.active()) continue;
                if (prng.chance(0.3)) {  // a move ends it here and begins it there
                    const RankSlot to = slots[which];
                    if (to == p.slot) continue;
                    ASSERT_TRUE(view.move(p.handle, to, now));
                    Placed there{std::move(p.handle), to, now, TimePoint::never()};
                    p.ended = now;
                    naive.push_back(std::move(there));
                } else {
                    view.release(p.handle, now);
                    p.ended = now;
                }
            } else {
                const TimePoint at =
                    now + Duration(-static_cast<std::int64_t>(prng.below(150'000'000)));
                if (at <= sampled[which]) continue;
                sampled[which] = at;
                std::uint32_t ours = 0;
                std::uint32_t live = 0;
                for (const Placed& p : naive) {
                    if (p.slot != slots[which]) continue;
                    ours += p.begins <= at && p.ended > at ? 1 : 0;
                    live += p.ended == TimePoint::never() ? 1 : 0;
                }
                const auto foreign = static_cast<std::uint32_t>(prng.below(6));
                model::Load load;
                load.running = ours + foreign;
                load.waiting_uncached_tokens = static_cast<TokenCount>(prng.below(2000));
                view.report({w, static_cast<std::uint32_t>(which)}, load, at, now);
                ASSERT_EQ(view.load(slots[which]).requests, live + foreign) << seed << ' ' << step;
                ASSERT_GE(view.load(slots[which]).prefill_tokens, -1e-6);
            }
        }
        EXPECT_GT(view.stats().reports, 500u);
        naive.clear();
        for (const RankSlot s : slots) {
            view.report({w, view.id(s).rank}, {}, now + 1s, now + 1s);
            EXPECT_EQ(view.load(s).requests, 0);
            EXPECT_EQ(view.load(s).prefill_tokens, 0);
        }
    }
}

TEST(View, MinIndexIsTheNaiveMinimumAndSpreadsTies) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        Prng prng(seed);
        MinIndex index;
        std::vector<float> naive;
        for (int step = 0; step < 3000; ++step) {
            if (prng.chance(0.02)) {
                naive.resize(prng.below(300), MinIndex::kClosed);
                index.resize(naive.size());
            } else if (!naive.empty()) {
                const std::size_t i = prng.below(naive.size());
                naive[i] =
                    prng.chance(0.1) ? MinIndex::kClosed : static_cast<float>(prng.below(40));
                index.set(i, naive[i]);
            }
            float least = MinIndex::kClosed;
            for (const float f : naive) least = std::min(least, f);
            const std::size_t at = index.least(prng.next());
            if (least == MinIndex::kClosed) {
                ASSERT_EQ(at, MinIndex::kNone);
            } else {
                ASSERT_EQ(naive[at], least);
            }
            if (naive.empty()) continue;
            const std::size_t first = prng.below(naive.size());
            const std::size_t last = first + 1 + prng.below(naive.size() - first);
            float least_in = MinIndex::kClosed;
            for (std::size_t i = first; i < last; ++i) least_in = std::min(least_in, naive[i]);
            const std::size_t in = index.least(first, last, prng.next());
            ASSERT_EQ(in == MinIndex::kNone, least_in == MinIndex::kClosed);
            if (in != MinIndex::kNone) {
                ASSERT_TRUE(in >= first && in < last);
                ASSERT_EQ(naive[in], least_in);
            }
        }
    }
    MinIndex even;
    even.resize(200);
    for (std::size_t i = 0; i < 200; ++i) even.set(i, 1);
    Prng prng(1);
    std::set<std::size_t> seen;
    for (int i = 0; i < 2000; ++i) seen.insert(even.least(prng.next()));
    EXPECT_GT(seen.size(), 190u);
}

}  // namespace
}  // namespace nereid::router
