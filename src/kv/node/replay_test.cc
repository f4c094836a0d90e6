// The node's hit ratio on request traces against independent simulations of the same policy. The
// whole Mooncake traces are replayed by kv_replay_bench (bench/kv-replay.py).
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "io/disk.h"
#include "kv/node/replay_testing.h"

namespace nereid::kv {
namespace {

// S3-FIFO as its authors write it, on deques and sets: prefix-contiguous block hit ratio.
double simulate(const BlockTrace& trace, std::size_t capacity) {
    std::deque<std::uint64_t> small;
    std::deque<std::uint64_t> main;
    std::deque<std::uint64_t> ghost;
    std::map<std::uint64_t, int> uses;  // of what is in the cache
    std::multiset<std::uint64_t> ghosts;
    const std::size_t small_room = std::max<std::size_t>(1, capacity / 10);
    const auto evict = [&] {
        if (small.size() >= small_room || main.empty()) {
            while (!small.empty()) {
                const auto k = small.front();
                small.pop_front();
                if (uses[k] > 0) {
                    uses[k] = 0;
                    main.push_back(k);
                    continue;
                }
                uses.erase(k);
                ghost.push_back(k);
                ghosts.insert(k);
                if (ghost.size() > capacity - small_room) {
                    ghosts.erase(ghosts.find(ghost.front()));
                    ghost.pop_front();
                }
                return;
            }
        }
        while (!main.empty()) {
            const auto k = main.front();
            main.pop_front();
            if (uses[k] == 0) {
                uses.erase(k);
                return;
            }
            --uses[k];
            main.push_back(k);
        }
    };
    std::uint64_t hits = 0;
    std::uint64_t references = 0;
    for (const auto& request : trace) {
        references += request.size();
        for (const auto k : request) {
            if (!uses.contains(k)) break;
            ++hits;
        }
        for (auto it = request.rbegin(); it != request.rend(); ++it) {
            if (const auto known = uses.find(*it); known != uses.end()) {
                known->second = std::min(3, known->second + 1);
                continue;
            }
            while (uses.size() >= capacity) evict();
            uses[*it] = 0;
            if (const auto g = ghosts.find(*it); g != ghosts.end()) {
                ghosts.erase(g);
                ghost.erase(std::find(ghost.begin(), ghost.end(), *it));
                main.push_back(*it);
            } else {
                small.push_back(*it);
            }
        }
    }
    return static_cast<double>(hits) / static_cast<double>(references);
}

// Conversations that grow turn by turn under a few shared system prompts, some of them popular.
BlockTrace conversations(std::uint64_t seed, int requests) {
    Prng rng(seed);
    std::vector<std::vector<std::uint64_t>> open;
    std::uint64_t next = 1000;
    BlockTrace trace;
    for (int i = 0; i < requests; ++i) {
        std::size_t at = open.size();
        if (!open.empty() && rng.chance(0.7)) {
            at = static_cast<std::size_t>(static_cast<double>(open.size()) *
                                          (1 - rng.uniform() * rng.uniform()));
            at = std::min(at, open.size() - 1);
        } else {
            std::vector<std::uint64_t> prompt;
            const std::uint64_t system = rng.below(3) * rng.below(4);
            for (std::uint64_t b = 0; b < 4 + system; ++b) prompt.push_back(system * 50 + b);
            open.push_back(std::move(prompt));
        }
        for (std::uint64_t n = 1 + rng.below(8); n > 0; --n) open[at].push_back(next++);
        trace.push_back(open[at]);
        if (rng.chance(0.1)) open.erase(open.begin() + static_cast<long>(at));
    }
    return trace;
}

TEST(Replay, EqualsTheSimulatedPolicyWithinAPoint) {
    const BlockTrace trace = conversations(1, 1500);
    std::set<std::uint64_t> unique;
    for (const auto& r : trace) unique.insert(r.begin(), r.end());
    for (const double share : {0.03, 0.1, 0.3, 0.6}) {
        const auto capacity =
            static_cast<std::uint64_t>(static_cast<double>(unique.size()) * share) / 16 * 16;
        const double simulated = simulate(trace, capacity);
        const Replayed replayed = Replay(capacity).run(trace);
        EXPECT_NEAR(replayed.hit_ratio, simulated, 0.01) << share;
        EXPECT_GT(simulated, 0.02) << share;
    }
    const Replayed all = Replay(unique.size() + 10).run(trace);
    EXPECT_DOUBLE_EQ(all.hit_ratio, simulate(trace, unique.size() + 10));
}

// Capacity by capacity the curve tells what a node of that size would have had.
TEST(Replay, TheCurveForeseesOtherCapacities) {
    const BlockTrace trace = conversations(2, 2000);
    const Replayed here = Replay(2000).run(trace);
    ASSERT_EQ(here.curve.size(), 7U);
    for (const std::size_t i : {2U, 3U, 4U}) {
        const Replayed there = Replay(here.curve[i].blocks).run(trace);
        EXPECT_NEAR(here.curve[i].hit_ratio, there.hit_ratio, 0.03) << here.curve[i].blocks;
    }
}

TEST(HitCurve, SamplesWhenCapacitiesAreLarge) {
    HitCurve curve({1 << 20});
    EXPECT_LT(curve.rate(), 0.05);
    std::vector<ObjectKey> prompt;
    for (std::uint64_t i = 0; i < 50'000; ++i) prompt.push_back({keyed_u64(1, i), keyed_u64(2, i)});
    curve.reference(prompt);
    EXPECT_NEAR(static_cast<double>(curve.sampled()), 50'000 * curve.rate(), 250);
    EXPECT_EQ(curve.points()[0].hit_ratio, 0);
    curve.reference(prompt);
    EXPECT_DOUBLE_EQ(curve.points()[0].hit_ratio, 0.5);
}

TEST(Replay, TheHeadOfTheMooncakeTrace) {
    const auto text = io::read_file("tests/data/traces/mooncake_conversation_head.jsonl", 1 << 20);
    ASSERT_TRUE(text.ok()) << text.error().message;
    const auto trace = parse_mooncake(*text);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    ASSERT_EQ(trace->size(), 200U);
    // peers/kv/trace_sim.py on the same 200 lines.
    EXPECT_NEAR(Replay(6000).run(*trace).hit_ratio, 0.0582, 0.0001);
    EXPECT_NEAR(Replay(512).run(*trace).hit_ratio, 0.0359, 0.01);
}

}  // namespace
}  // namespace nereid::kv
