#include "kv/namespace.h"

#include <set>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"

namespace nereid::kv {
namespace {

model::BlockKey random_key(Prng& rng) {
    model::BlockKey k;
    for (auto& b : k.bytes) b = static_cast<std::uint8_t>(rng.next());
    return k;
}
model::Namespace namespace_of(std::string salt) {
    model::NamespaceParts parts;
    parts.salt = std::move(salt);
    return model::make_namespace(parts);
}

TEST(ObjectKey, StateMaskIsTheDigestOfItsName) {
    const Digest256 d = sha256(as_bytes("nereid-kv-state"));
    ObjectKey expected;
    std::memcpy(&expected.hi, d.data(), 8);
    std::memcpy(&expected.lo, d.data() + 8, 8);
    const model::Namespace zero{};
    EXPECT_EQ(object_key(zero, {}, ObjectKind::kState), expected);
    EXPECT_EQ(object_key(zero, {}, ObjectKind::kHistory), ObjectKey{});
}

// K43, K45: the same block under another tenant, model or layout is another object.
TEST(ObjectKey, NamespaceAndKindSeparateAndCanBeUndone_K43_K45) {
    Prng rng(3);
    const auto a = namespace_of("a");
    const auto b = namespace_of("b");
    for (int i = 0; i < 100; ++i) {
        const auto key = random_key(rng);
        std::set<ObjectKey> names;
        for (const auto& ns : {a, b}) {
            for (const auto kind : {ObjectKind::kHistory, ObjectKind::kState}) {
                const ObjectKey name = object_key(ns, key, kind);
                EXPECT_EQ(block_key(ns, name, kind), key);
                names.insert(name);
            }
        }
        EXPECT_EQ(names.size(), 4U);
    }
}

TEST(Geometry, RefusesWhatCannotBe) {
    Geometry good{.block_tokens = 64, .history_bytes = 100};
    EXPECT_TRUE(check_geometry(good).ok());
    const auto refused = [&](auto change, std::string_view param) {
        Geometry g = good;
        change(g);
        const auto r = check_geometry(g);
        ASSERT_FALSE(r.ok());
        EXPECT_EQ(r.code(), Code::kInvalidArgument);
        EXPECT_EQ(r.error().param, param);
    };
    refused([](Geometry& g) { g.block_tokens = 0; }, "block_tokens");
    refused([](Geometry& g) { g.block_tokens = 1 << 30; }, "block_tokens");
    refused([](Geometry& g) { g.history_bytes = 0; }, "history_bytes");
    refused([](Geometry& g) { g.history_bytes = (1ULL << 30) + 1; }, "history_bytes");
    refused([](Geometry& g) { g.keep_tokens = 0; }, "keep_tokens");
    refused([](Geometry& g) { g.state_bytes = 5; }, "state_bytes");
    refused([](Geometry& g) { g.replay = ReplayPolicy::kStoredState; }, "state_bytes");
    refused([](Geometry& g) { g.replay = ReplayPolicy::kApproximateWindow; }, "window_tokens");
    refused([](Geometry& g) { g.replay = ReplayPolicy::kExactWindow; }, "replay_tokens");
    refused([](Geometry& g) { g.replay = static_cast<ReplayPolicy>(9); }, "replay");
}

std::vector<bool> all_present(const std::vector<ObjectRef>& objects, bool value = true) {
    return std::vector<bool>(objects.size(), value);
}

TEST(Hit, PlainAttentionLeavesWhatMustBeComputed) {
    const Geometry g{.block_tokens = 64, .history_bytes = 1, .keep_tokens = 64};
    for (const auto& [tokens, blocks] : std::vector<std::pair<TokenCount, std::uint32_t>>{
             {0, 0}, {63, 0}, {64, 0}, {127, 0}, {128, 1}, {191, 1}, {192, 2}, {1000, 14}}) {
        const auto objects = objects_of(g, tokens);
        EXPECT_EQ(objects.size(), tokens / 64);
        const Hit hit = usable_hit(g, tokens, objects, all_present(objects));
        EXPECT_EQ(hit.blocks, blocks) << tokens;
        EXPECT_EQ(hit.compute_from, blocks * 64);
        EXPECT_EQ(hit.raw_blocks, tokens / 64);
        EXPECT_FALSE(hit.state);
    }
}

// DeepInfer does not check H <= floor128(L - keep) itself and reads rings that were never filled
// (facts/deepinfer.md §5.4): L = 600, keep 140 may use 384, not 512.
TEST(Hit, DeepInferKeep) {
    const Geometry g{.block_tokens = 128,
                     .history_bytes = 1,
                     .state_bytes = 1,
                     .keep_tokens = 140,
                     .replay = ReplayPolicy::kStoredState};
    const auto objects = objects_of(g, 600);
    const Hit hit = usable_hit(g, 600, objects, all_present(objects));
    EXPECT_EQ(hit.blocks * 128, 384U);
    EXPECT_TRUE(hit.state);
    EXPECT_EQ(hit.raw_blocks, 4U);
}

TEST(Hit, AWindowIsRunAgainAndShortHitsAreNotAdopted) {
    const Geometry g{.block_tokens = 64,
                     .history_bytes = 1,
                     .replay = ReplayPolicy::kApproximateWindow,
                     .window_tokens = 128};
    const auto at = [&](TokenCount tokens) {
        const auto objects = objects_of(g, tokens);
        return usable_hit(g, tokens, objects, all_present(objects));
    };
    EXPECT_EQ(at(129).blocks, 0U);  // 128 is no longer than the window
    EXPECT_EQ(at(193).blocks, 3U);
    EXPECT_EQ(at(193).compute_from, 192U - 128U);
    Geometry exact = g;
    exact.replay = ReplayPolicy::kExactWindow;
    exact.replay_tokens = 500;
    const auto objects = objects_of(exact, 641);
    EXPECT_EQ(usable_hit(exact, 641, objects, all_present(objects)).compute_from, 640U - 500U);
    const auto few = objects_of(exact, 449);
    EXPECT_EQ(usable_hit(exact, 449, few, all_present(few)).blocks, 0U);
}

// K13: never a part of the groups. A hole in the history or a missing state cuts the hit back.
TEST(Hit, NeedsContiguousHistoryAndTheStateExactlyThere_K13) {
    const Geometry g{.block_tokens = 10,
                     .history_bytes = 1,
                     .state_bytes = 1,
                     .replay = ReplayPolicy::kStoredState};
    const auto objects = objects_of(g, 101);
    auto present = all_present(objects);
    const auto set = [&](std::uint32_t block, ObjectKind kind, bool value) {
        for (std::size_t i = 0; i < objects.size(); ++i) {
            if (objects[i].block == block && objects[i].kind == kind) present[i] = value;
        }
    };
    EXPECT_EQ(usable_hit(g, 101, objects, present).blocks, 10U);
    set(9, ObjectKind::kState, false);
    EXPECT_EQ(usable_hit(g, 101, objects, present).blocks, 9U);
    set(5, ObjectKind::kHistory, false);
    EXPECT_EQ(usable_hit(g, 101, objects, present).blocks, 5U);
    EXPECT_EQ(usable_hit(g, 101, objects, present).raw_blocks, 5U);
    for (std::uint32_t b = 0; b < 5; ++b) set(b, ObjectKind::kState, false);
    EXPECT_EQ(usable_hit(g, 101, objects, present).blocks, 0U);
    EXPECT_FALSE(usable_hit(g, 101, objects, present).state);
}

// K47: what one prompt saves, every prompt that shares the prefix finds, for random geometries: the
// hit is never shorter than the last boundary both could use that carries what the policy needs.
TEST(Hit, SaveSetIsInEveryLookupSet_K47) {
    Prng rng(11);
    for (int round = 0; round < 3000; ++round) {
        Geometry g;
        g.block_tokens = static_cast<TokenCount>(1 + rng.below(40));
        g.history_bytes = 1;
        g.keep_tokens = static_cast<TokenCount>(1 + rng.below(60));
        g.replay = static_cast<ReplayPolicy>(rng.below(4));
        g.window_tokens = static_cast<TokenCount>(1 + rng.below(50));
        g.replay_tokens = static_cast<TokenCount>(1 + rng.below(80));
        g.checkpoint_blocks = static_cast<std::uint32_t>(rng.below(6));
        g.state_bytes = g.replay == ReplayPolicy::kStoredState ? 1 : 0;
        ASSERT_TRUE(check_geometry(g).ok());
        const auto first = static_cast<TokenCount>(rng.below(500));
        const auto second = static_cast<TokenCount>(rng.below(500));

        std::set<std::pair<std::uint32_t, ObjectKind>> saved;
        for (const auto& o : objects_of(g, first)) {
            if (o.save) saved.insert({o.block, o.kind});
        }
        const auto wanted = objects_of(g, second);
        EXPECT_TRUE(std::is_sorted(wanted.begin(), wanted.end()));
        std::vector<bool> present;
        for (const auto& o : wanted) present.push_back(saved.contains({o.block, o.kind}));
        const Hit hit = usable_hit(g, second, wanted, present);

        // Independently: the largest boundary that both may resume at.
        const auto most = [&](TokenCount tokens) {
            return tokens < g.keep_tokens ? 0U : (tokens - g.keep_tokens) / g.block_tokens;
        };
        std::uint32_t best = 0;
        for (std::uint32_t h = 1; h <= std::min(first / g.block_tokens, most(second)); ++h) {
            bool good = true;
            switch (g.replay) {
                case ReplayPolicy::kNone:
                    break;
                case ReplayPolicy::kApproximateWindow:
                    good = h * g.block_tokens > g.window_tokens;
                    break;
                case ReplayPolicy::kExactWindow:
                    good = h * g.block_tokens > g.replay_tokens;
                    break;
                case ReplayPolicy::kStoredState:
                    good = h == most(first) || (g.checkpoint_blocks != 0 &&
                                                h % g.checkpoint_blocks == 0 && h <= most(first));
                    break;
            }
            if (good) best = h;
        }
        ASSERT_EQ(hit.blocks, best) << "round " << round;
        if (hit.blocks > 0) {
            EXPECT_LE(hit.compute_from + g.keep_tokens, second);
        }
    }
}

TEST(Expiry, NeverEarlyAndCapped) {
    const WallTime now{std::chrono::hours(480'000) + 59min};
    EXPECT_EQ(expiry_hour(now, 1h), static_cast<ExpiryHour>(480'002));
    EXPECT_FALSE(expired(expiry_hour(now, 0h), static_cast<ExpiryHour>(480'000)));
    EXPECT_TRUE(expired(expiry_hour(now, 0h), static_cast<ExpiryHour>(480'001)));
    const auto far = expiry_hour(now, std::chrono::hours(10'000'0));
    EXPECT_FALSE(expired(far, static_cast<ExpiryHour>(480'000)));
    EXPECT_EQ(later(5, 7), 7);
    EXPECT_EQ(later(65535, 3), 3);  // across the wrap
    EXPECT_TRUE(expired(65535, 3));
}

}  // namespace
}  // namespace nereid::kv
