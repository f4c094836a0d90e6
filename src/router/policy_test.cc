// Our balancers and the peers' as policies: placement rules, naive comparisons, and the selection
// cases of cases/router.md.
#include "router/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "router/encode.h"
#include "router/estimate.h"
#include "router/prefill.h"
#include "router/test_world.h"

namespace nereid::router {
namespace {

std::vector<BlockHash> chain(std::uint64_t seed, std::size_t n) {
    std::vector<BlockHash> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = keyed_u64(seed, i) | 1;
    return out;
}

TEST(Registry, PoliciesByName) {
    for (const std::string_view name : policy_names()) {
        const auto policy = make_policy(name);
        ASSERT_TRUE(policy.ok()) << name;
    }
    for (const std::string_view name : stage_policy_names()) {
        int stages = 0;
        for (const Stage stage :
             {Stage::kEncode, Stage::kPrefill, Stage::kDecode, Stage::kUnified}) {
            const auto policy = make_stage_policy(name, stage);
            if (!policy.ok()) {
                EXPECT_EQ(policy.code(), Code::kConfig);
                continue;
            }
            ++stages;
            EXPECT_EQ((*policy)->name(), name);
        }
        EXPECT_GE(stages, 1) << name;
    }
    EXPECT_EQ(make_policy("nonsense").code(), Code::kConfig);
    EXPECT_NE(make_policy("nonsense").error().message.find("round-robin"), std::string::npos);
    EXPECT_EQ(make_router({.decode = "encoder-affinity"}).code(), Code::kConfig);
}

// Every policy, on every kind of cluster: places all requests, spreads equal ones, obeys exclusion,
// marks, drains and removal, and says why when there is nobody.
TEST(Policy, EachPlacesSpreadsAndObeys) {
    for (const std::string_view name : policy_names()) {
        for (const bool unified : {false, true}) {
            WorldOptions options{
                .prefill_ranks = 4, .decode_ranks = 4, .policy = std::string(name)};
            if (unified) options.unified_workers = 4;
            TestWorld world(options);
            std::vector<PlanHandles> held;
            std::map<RankSlot, int> placed;
            for (int i = 0; i < 40; ++i) {
                auto handles = world.place({.prompt_tokens = 1000});
                ASSERT_TRUE(handles.ok()) << name;
                held.push_back(std::move(*handles));
                ++placed[world.last.prefill->charge.slot];
                ASSERT_EQ(world.last.decode.has_value(), !unified);
                EXPECT_EQ(
                    world.last.predicted.ttft_ms,
                    std::max(world.last.predicted.queue_ms, 0.0) + world.last.predicted.prefill_ms);
            }
            EXPECT_EQ(placed.size(), 4u) << name;
            if (name != "random") {
                for (const auto& [slot, n] : placed) EXPECT_LE(n, 25) << name;
            }
            const Stage last = unified ? Stage::kUnified : Stage::kDecode;
            const UnitId unit = world.view.units(last)[0];
            const RankSlot first = world.view.ranks(unit)[0];
            world.view.mark_busy(first, world.now);
            for (int i = 0; i < 10; ++i) {
                const Plan plan = *world.choose({.prompt_tokens = 1000});
                EXPECT_NE((unified ? plan.prefill : plan.decode)->charge.slot, first) << name;
            }
            const std::vector<WorkerId> all = world.workers;
            EXPECT_EQ(world.choose({.prompt_tokens = 1000, .excluded = all}).code(),
                      Code::kOverloaded)
                << name;
            for (const WorkerId w : all) world.view.set_state(w, WorkerState::kDraining, world.now);
            EXPECT_EQ(world.choose({.prompt_tokens = 1000}).code(), Code::kUnavailable) << name;
            for (const WorkerId w : all) world.view.remove_worker(w, world.now);
            EXPECT_EQ(world.choose({.prompt_tokens = 1000}).code(), Code::kUnavailable) << name;
            held.clear();
            EXPECT_EQ(world.view.stats().live_charges, 0u);
        }
    }
}

// The same calls give the same plans.
TEST(Policy, Deterministic) {
    for (const std::string_view name : policy_names()) {
        std::array<std::vector<RankSlot>, 2> runs;
        for (auto& run : runs) {
            TestWorld world(
                {.prefill_ranks = 8, .decode_ranks = 8, .policy = std::string(name), .seed = 9});
            Prng prng(4);
            std::vector<PlanHandles> held;
            for (int i = 0; i < 300; ++i) {
                const auto blocks = chain(prng.below(20), 5 + prng.below(50));
                auto h =
                    world.place({.prompt_tokens = static_cast<TokenCount>(64 * blocks.size() + 10),
                                 .blocks = blocks});
                ASSERT_TRUE(h.ok());
                world.view.stored(world.last.prefill->rank, 0, blocks, world.now);
                held.push_back(std::move(*h));
                if (held.size() > 60)
                    held.erase(held.begin() + static_cast<std::ptrdiff_t>(prng.below(60)));
                world.now = world.now + 10ms;
                run.push_back(world.last.prefill->charge.slot);
                run.push_back(world.last.decode->charge.slot);
            }
        }
        EXPECT_EQ(runs[0], runs[1]) << name;
    }
}

// R1: 32k-in, 1-out traffic does not all go to prefill 0: load counts from selection on.
TEST(Policy, R1_ABurstOfLongPromptsSpreads) {
    TestWorld world({.prefill_ranks = 8, .decode_ranks = 8});
    std::map<RankSlot, int> placed;
    std::vector<PlanHandles> held;
    for (int i = 0; i < 32; ++i) {
        held.push_back(
            *world.place({.prompt_tokens = 32'000, .expected_output = 1, .reserve_output = 1}));
        ++placed[world.last.prefill->charge.slot];
    }
    EXPECT_EQ(placed.size(), 8u);
    for (const auto& [slot, n] : placed) EXPECT_EQ(n, 4);
}

// R3: a miss goes by load, never by the smallest tree.
TEST(Policy, R3_AMissGoesByLoad) {
    TestWorld world({.prefill_ranks = 2, .decode_ranks = 2});
    const auto ranks = world.view.ranks(world.view.units(Stage::kPrefill)[0]);
    const RankSlot with_much = ranks[0];
    world.view.stored(world.view.id(with_much), 0, chain(1, 500), world.now);
    const ChargeHandle busy = world.view.apply(
        {.slot = ranks[1], .stage = Stage::kPrefill, .prefill_ms = 500, .prefill_tokens = 10'000},
        world.now);
    const auto cold = chain(2, 30);
    EXPECT_EQ(world.choose({.prompt_tokens = 2000, .blocks = cold})->prefill->charge.slot,
              with_much);
}

// R12: prefix and load in one unit: a hit is worth what it spares, no more.
TEST(Policy, R12_APrefixIsWorthWhatItSpares) {
    TestWorld world({.prefill_ranks = 2, .decode_ranks = 2});
    const auto ranks = world.view.ranks(world.view.units(Stage::kPrefill)[0]);
    const auto blocks = chain(1, 100);
    world.view.stored(world.view.id(ranks[0]), 0, blocks, world.now);
    const RouteRequest request{.prompt_tokens = 6500, .blocks = blocks};
    const Plan warm = *world.choose(request);
    EXPECT_EQ(warm.prefill->charge.slot, ranks[0]);
    EXPECT_EQ(warm.cached_tokens, 6400u);
    ASSERT_EQ(warm.run_count, 1u);
    EXPECT_EQ(warm.runs[0], (PrefixRun{PrefixSource::kLocal, 0, 100, world.view.id(ranks[0])}));
    EXPECT_EQ(warm.prefill->charge.prefill_tokens, 100u);
    const double spares =
        world.view.cost(Stage::kPrefill).prefill.ms(6500, 0) - warm.predicted.prefill_ms;
    for (const double load : {0.5 * spares, 2.0 * spares}) {
        const ChargeHandle busy = world.view.apply(
            {.slot = ranks[0], .stage = Stage::kPrefill, .prefill_ms = load, .prefill_tokens = 1},
            world.now);
        EXPECT_EQ(world.choose(request)->prefill->charge.slot, load < spares ? ranks[0] : ranks[1])
            << load;
    }
}

TEST(Policy, AWholePromptInCacheLeavesATokenToCompute) {
    TestWorld world({});
    const auto blocks = chain(1, 10);
    world.view.stored(world.view.id(world.view.ranks(world.view.units(Stage::kPrefill)[0])[0]), 0,
                      blocks, world.now);
    const Plan plan = *world.choose({.prompt_tokens = 640, .blocks = blocks});
    EXPECT_EQ(plan.cached_tokens, 639u);
    EXPECT_EQ(plan.prefill->charge.prefill_tokens, 1u);
}

// The least predicted time, found through the index, is the naive least over all ranks.
TEST(Policy, PropertyPrefillIsTheNaiveLeast) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Prng prng(seed);
        TestWorld world({.prefill_ranks = 5,
                         .prefill_units = 3,
                         .policy = "",
                         .router = {.prefill = "least-cost"},
                         .seed = seed});
        std::vector<ChargeHandle> load;
        std::vector<std::vector<BlockHash>> chains;
        for (std::uint64_t c = 0; c < 6; ++c) chains.push_back(chain(seed * 100 + c, 40));
        std::vector<RankSlot> slots;
        for (const UnitId u : world.view.units(Stage::kPrefill)) {
            for (const RankSlot s : world.view.ranks(u)) slots.push_back(s);
        }
        for (const RankSlot s : slots) {
            load.push_back(world.view.apply({.slot = s,
                                             .stage = Stage::kPrefill,
                                             .prefill_ms = static_cast<double>(prng.below(300)),
                                             .prefill_tokens = 1},
                                            world.now));
            const auto& c = chains[prng.below(chains.size())];
            world.view.stored(world.view.id(s), 0, std::span(c).first(1 + prng.below(40)),
                              world.now);
        }
        for (const auto& c : chains) {
            const RouteRequest request{.prompt_tokens = 40 * 64 + 100, .blocks = c};
            const Plan plan = *world.choose(request);
            const auto cost = [&](RankSlot s) {
                const auto depth = world.view.residency().depth(world.view.match(c), s);
                return world.view.score(s) +
                       (1 + PrefillOptions{}.work_weight) *
                           estimate_prefill(world.view, Stage::kPrefill, request, depth, 0).ms;
            };
            double least = 1e300;
            for (const RankSlot s : slots) least = std::min(least, cost(s));
            // The second home may win a near tie, by a tenth of the request's own cost.
            const double slack =
                0.1 * world.view.cost(Stage::kPrefill).prefill.ms(request.prompt_tokens, 0);
            EXPECT_LE(cost(plan.prefill->charge.slot), least + slack) << seed;
        }
    }
}

// A hot prefix gets a second home, and not a copy on every rank.
TEST(Policy, HotPrefixGetsTwoHomesNotAll) {
    TestWorld world({.prefill_ranks = 16, .decode_ranks = 4});
    const auto blocks = chain(3, 100);
    std::set<RankSlot> homes;
    std::vector<PlanHandles> held;
    for (int i = 0; i < 60; ++i) {
        held.push_back(*world.place({.prompt_tokens = 6600, .blocks = blocks}));
        homes.insert(world.last.prefill->charge.slot);
        world.view.stored(world.last.prefill->rank, 0, blocks, world.now);
        if (held.size() > 20) held.erase(held.begin());
        world.now = world.now + 20ms;
    }
    EXPECT_GE(homes.size(), 2u);
    EXPECT_LE(homes.size(), 4u);
}

TEST(Policy, FetchingAPrefixCountsInTheSameUnit) {
    TestWorld world({.prefill_ranks = 2, .policy = "", .router = {.prefill = "buckets+fetch"}});
    const auto ranks = world.view.ranks(world.view.units(Stage::kPrefill)[0]);
    const auto blocks = chain(1, 400);
    world.view.stored(world.view.id(ranks[0]), 0, blocks, world.now);
    const ChargeHandle busy = world.view.apply(
        {.slot = ranks[0], .stage = Stage::kPrefill, .prefill_ms = 900, .prefill_tokens = 1},
        world.now);
    const Plan plan = *world.choose({.prompt_tokens = 25'700, .blocks = blocks});
    EXPECT_EQ(plan.prefill->charge.slot, ranks[1]);
    ASSERT_EQ(plan.run_count, 1u);
    EXPECT_EQ(plan.runs[0], (PrefixRun{PrefixSource::kRank, 0, 400, world.view.id(ranks[0])}));
    EXPECT_GT(plan.predicted.fetch_ms, 1);
    EXPECT_LT(plan.predicted.ttft_ms, 100);
}

// R5, R28: KV room for prompt + q90 of the output, by tokens; nobody has it: overloaded, not a
// hang.
TEST(Policy, R5_R28_AdmissionAgainstGrowth) {
    TestWorld world({.decode_ranks = 2, .kv_capacity_tokens = 10'000});
    std::vector<PlanHandles> held;
    const RouteRequest request{.prompt_tokens = 3000, .reserve_output = 1000};
    for (int i = 0; i < 4; ++i) {
        auto h = world.place(request);
        ASSERT_TRUE(h.ok()) << i;
        held.push_back(std::move(*h));
    }
    EXPECT_EQ(world.place(request).code(), Code::kOverloaded);
    const auto small = world.place({.prompt_tokens = 1000, .reserve_output = 500});
    EXPECT_TRUE(small.ok());
    held.erase(held.begin());
    EXPECT_TRUE(world.place(request).ok());
}

// The least loaded rank lacks room, another has it.
TEST(Policy, DecodeFallsBackToWhoHasRoom) {
    TestWorld world({.decode_ranks = 3, .kv_capacity_tokens = 10'000});
    const auto ranks = world.view.ranks(world.view.units(Stage::kDecode)[0]);
    const auto put = [&](RankSlot s, TokenCount kv, TokenCount reserve) {
        return world.view.apply(
            {.slot = s, .stage = Stage::kDecode, .kv_tokens = kv, .reserve_tokens = reserve},
            world.now);
    };
    const auto a = put(ranks[0], 100, 9000);  // light, but promised
    const auto b = put(ranks[1], 3000, 0);
    const auto c = put(ranks[2], 4000, 0);
    EXPECT_EQ(world.choose({.prompt_tokens = 2000, .reserve_output = 100})->decode->charge.slot,
              ranks[1]);
}

// R14: the plan names the rank of each stage.
TEST(Policy, R14_R29_PlansNameRanks) {
    TestWorld world({.prefill_ranks = 4, .decode_ranks = 4});
    const RankId p{world.workers[1], 3};
    const RankId d{world.workers[0], 2};
    const Plan plan =
        *world.choose({.prompt_tokens = 100, .pinned_prefill = p, .pinned_decode = d});
    EXPECT_EQ(plan.prefill->rank, p);
    EXPECT_EQ(plan.decode->rank, d);
    EXPECT_EQ(world.choose({.prompt_tokens = 1, .pinned_decode = RankId{WorkerId{99}, 0}}).code(),
              Code::kUnavailable);
}

TEST(Policy, ShortCachedPromptsPrefillOnTheirDecodeRank) {
    TestWorld world({.decode_ranks = 1, .policy = "", .router = {.local_prefill_tokens = 256}});
    const auto blocks = chain(1, 100);
    world.view.stored({world.workers[0], 0}, 0, blocks, world.now);
    const Plan local = *world.choose({.prompt_tokens = 6500, .blocks = blocks});
    EXPECT_EQ(local.prefill->charge.slot, local.decode->charge.slot);
    EXPECT_EQ(local.prefill->charge.requests + local.decode->charge.requests, 1u);
    const Plan cold = *world.choose({.prompt_tokens = 6500});
    EXPECT_NE(cold.prefill->charge.slot, cold.decode->charge.slot);
    // Short, but all of it new.
    EXPECT_NE(world.choose({.prompt_tokens = 100})->prefill->charge.slot,
              local.decode->charge.slot);
}

// R41: encoders are balanced by patches, and an image goes where it was encoded before.
TEST(Policy, R40_R41_EncodersByPatchesAndDigest) {
    TestWorld world({.encode_workers = 4});
    std::vector<PlanHandles> held;
    const std::vector<ImageWork> huge{{.digest = 1, .patches = 16'000}};
    held.push_back(*world.place({.prompt_tokens = 100, .images = huge}));
    const RankSlot big = world.last.encode->charge.slot;
    EXPECT_NEAR(world.last.encode->charge.encode_ms, 161, 1);
    int with_big = 0;
    for (std::uint64_t i = 0; i < 30; ++i) {
        const std::vector<ImageWork> small{{.digest = 100 + i, .patches = 200}};
        held.push_back(*world.place({.prompt_tokens = 100, .images = small}));
        with_big += world.last.encode->charge.slot == big;
        EXPECT_GT(world.last.predicted.encode_ms, 0);
        EXPECT_EQ(world.last.prefill->charge.starts_in_ms, world.last.predicted.encode_ms);
    }
    EXPECT_EQ(with_big, 0);
    held.clear();
    held.push_back(*world.place({.prompt_tokens = 100, .images = huge}));
    EXPECT_EQ(world.last.encode->charge.slot, big);
    EXPECT_EQ(world.last.encode->charge.encode_ms, 0);
    // Text needs no encoder.
    held.push_back(*world.place({.prompt_tokens = 100}));
    EXPECT_FALSE(world.last.encode.has_value());
}

TEST(Policy, EncoderAffinitySurvivesMembershipChanges) {
    EncodePolicy policy({});
    TestWorld world({.encode_workers = 10});
    Prng prng(1);
    std::map<std::uint64_t, RankSlot> home;
    const auto pick = [&](std::uint64_t digest) {
        const std::vector<ImageWork> image{{.digest = digest, .patches = 100}};
        return policy.pick(world.view, Stage::kEncode, {.images = image}, {}, world.now, prng)
            ->slot;
    };
    for (std::uint64_t d = 1; d <= 200; ++d) home[d] = pick(d);
    world.view.remove_worker(world.workers.back(), world.now);
    const RankSlot gone = 11 + 2;  // the last encoder's slot
    int moved = 0;
    for (const auto& [d, slot] : home) moved += slot != gone && pick(d) != slot;
    EXPECT_EQ(moved, 0);
}

TEST(Buckets, BordersFollowTheCostWithHysteresis) {
    Buckets buckets({.max_buckets = 4, .refit_every = 1s, .min_samples = 50});
    buckets.set_units(4);
    EXPECT_EQ(buckets.count(), 4u);
    Prng prng(2);
    TimePoint now{};
    const auto feed = [&](double mean, int n) {
        for (int i = 0; i < n; ++i) {
            const auto tokens = static_cast<TokenCount>(50 + prng.exponential(mean));
            buckets.add(tokens, tokens * 0.05, now);
        }
    };
    std::array<double, 4> cost{};
    for (int round = 0; round < 20; ++round) {
        feed(4000, 400);
        now = now + 1s;
        buckets.refit(now);
    }
    for (int i = 0; i < 20'000; ++i) {
        const auto tokens = static_cast<TokenCount>(50 + prng.exponential(4000));
        cost[buckets.bucket_of(tokens)] += tokens;
    }
    const double all = cost[0] + cost[1] + cost[2] + cost[3];
    for (const double c : cost) EXPECT_NEAR(c / all, 0.25, 0.06);
    // The same traffic does not move borders any more.
    const std::uint64_t moves = buckets.moves();
    for (int round = 0; round < 20; ++round) {
        feed(4000, 400);
        now = now + 1s;
        buckets.refit(now);
    }
    EXPECT_LE(buckets.moves(), moves + 2);
    // Other traffic does, and soon.
    const auto before = buckets.borders();
    for (int round = 0; round < 10; ++round) {
        feed(20'000, 400);
        now = now + 1s;
        buckets.refit(now);
    }
    EXPECT_GT(buckets.borders()[1], before[1] * 2);
}

TEST(Buckets, EveryLengthHasUnitsAndEveryUnitABucket) {
    for (std::uint32_t units = 1; units < 40; ++units) {
        Buckets buckets({});
        buckets.set_units(units);
        std::set<std::uint32_t> seen;
        for (std::uint32_t b = 0; b < buckets.count(); ++b) {
            const auto range = buckets.units_of(b);
            EXPECT_LT(range.first, range.last);
            for (std::uint32_t u = range.first; u < range.last; ++u)
                EXPECT_TRUE(seen.insert(u).second);
        }
        EXPECT_EQ(seen.size(), units);
        std::uint32_t last = 0;
        for (TokenCount t = 1; t < 3'000'000; t += t / 7 + 1) {
            const std::uint32_t b = buckets.bucket_of(t);
            EXPECT_GE(b, last);
            EXPECT_LT(b, buckets.count());
            last = b;
        }
        EXPECT_EQ(last, buckets.count() - 1);
    }
    Buckets lumpy({.refit_every = 1s, .min_samples = 1});
    lumpy.set_units(8);
    for (int i = 0; i < 1000; ++i) lumpy.add(5000, 1, {});  // one length only
    lumpy.refit(TimePoint{10s});
    EXPECT_LT(lumpy.bucket_of(5000), lumpy.count());
}

TEST(Policy, LengthsKeepToTheirUnitsAndSpillWhenBusy) {
    TestWorld world({.prefill_ranks = 4, .prefill_units = 2});
    const auto units = world.view.units(Stage::kPrefill);
    std::vector<PlanHandles> held;
    for (int i = 0; i < 8; ++i) {
        held.push_back(*world.place({.prompt_tokens = 300}));
        EXPECT_EQ(world.view.unit(world.last.prefill->charge.slot), units[0]);
        held.push_back(*world.place({.prompt_tokens = 60'000}));
        if (i < 4) EXPECT_EQ(world.view.unit(world.last.prefill->charge.slot), units[1]);
    }
    // The long ones' unit is full of work: they spill.
    std::set<std::uint64_t> used;
    for (int i = 0; i < 8; ++i) {
        held.push_back(*world.place({.prompt_tokens = 60'000}));
        used.insert(world.view.unit(world.last.prefill->charge.slot).value);
    }
    EXPECT_EQ(used.size(), 2u);
}

// R6: what a choice costs does not grow with a scan of all ranks. (Time: router_select_bench.)
TEST(Policy, R6_TwoThousandRanksAreChosenAmongThroughTheIndex) {
    TestWorld world({.prefill_ranks = 1000, .decode_ranks = 1000});
    std::vector<PlanHandles> held;
    std::map<RankSlot, int> placed;
    for (int i = 0; i < 1000; ++i) {
        held.push_back(*world.place({.prompt_tokens = 1000}));
        ++placed[world.last.decode->charge.slot];
    }
    EXPECT_EQ(placed.size(), 1000u);
}

}  // namespace
}  // namespace nereid::router
