#include "kv/tier/policy.h"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid::kv {
namespace {

bool anyone(std::uint32_t) { return true; }

TEST(S3Fifo, UnusedLeaveInOrderAndUsedStay) {
    PolicyNodes nodes(10);
    S3Fifo p(nodes);
    for (std::uint32_t i = 0; i < 10; ++i) p.insert(i, i);
    p.touch(0);
    p.touch(3);
    std::vector<std::uint32_t> order;
    while (p.size() > 0) {
        const auto v = p.victim(anyone);
        ASSERT_TRUE(v.has_value());
        order.push_back(*v);
        p.evict(*v, *v);
    }
    EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 2, 4, 5, 6, 7, 8, 9, 0, 3}));
    EXPECT_EQ(p.victim(anyone), std::nullopt);
}

TEST(S3Fifo, WhatComesBackSoonEntersTheMainQueue) {
    PolicyNodes nodes(32);
    S3Fifo p(nodes);
    for (std::uint32_t i = 0; i < 20; ++i) p.insert(i, 100 + i);
    p.evict(*p.victim(anyone), 100);
    p.insert(0, 100);  // remembered: main
    for (std::uint32_t i = 1; i < 20; ++i) {
        const auto v = p.victim(anyone);
        ASSERT_TRUE(v.has_value());
        EXPECT_NE(*v, 0U) << i;
        p.evict(*v, 100 + *v);
    }
    EXPECT_EQ(p.victim(anyone), 0U);
}

TEST(S3Fifo, ACallMeetsABoundedNumberOfThoseHeldBack) {
    constexpr std::uint32_t kMany = 20'000;
    PolicyNodes nodes(kMany);
    S3Fifo p(nodes);
    for (std::uint32_t i = 0; i < kMany; ++i) p.insert(i, i);
    std::uint32_t asked = 0;
    const auto one = [&](std::uint32_t id) {
        ++asked;
        return id == 12'345;
    };
    std::uint32_t calls = 0;
    std::optional<std::uint32_t> found;
    for (; !found && calls < kMany; ++calls) {
        asked = 0;
        found = p.victim(one);
        ASSERT_LE(asked, 3 * S3Fifo::kHeldBack);
    }
    EXPECT_EQ(found, 12'345U);
    EXPECT_LE(calls, kMany / S3Fifo::kHeldBack + 1);
}

TEST(S3Fifo, HeldBackAreNeverGivenAndNothingIsLost) {
    PolicyNodes nodes(200);
    S3Fifo p(nodes);
    Prng rng(1);
    std::set<std::uint32_t> in;
    std::set<std::uint32_t> held;
    for (int step = 0; step < 50'000; ++step) {
        const auto id = static_cast<std::uint32_t>(rng.below(200));
        switch (rng.below(5)) {
            case 0:
                if (in.insert(id).second) p.insert(id, id);
                break;
            case 1:
                if (in.contains(id)) p.touch(id);
                break;
            case 2:
                if (in.contains(id) && rng.chance(0.2)) {
                    p.remove(id);
                    in.erase(id);
                    held.erase(id);
                }
                break;
            case 3:
                if (in.contains(id) && !held.erase(id)) held.insert(id);
                break;
            default: {
                const auto v = p.victim([&](std::uint32_t i) { return !held.contains(i); });
                ASSERT_EQ(v.has_value(), in.size() > held.size());
                if (v) {
                    ASSERT_TRUE(in.contains(*v) && !held.contains(*v));
                    p.evict(*v, *v);
                    in.erase(*v);
                }
            }
        }
        ASSERT_EQ(p.size(), in.size());
    }
}

// All of them: a block forgotten in the middle of a prefix costs all blocks behind it.
TEST(GhostNames, RememberAWindowOfInsertions) {
    constexpr std::uint32_t kWindow = 4000;
    GhostNames g;
    EXPECT_FALSE(g.take(1, kWindow));
    Prng rng(3);
    std::vector<std::uint64_t> names(50'000);
    for (std::uint64_t& name : names) g.insert(name = rng.next(), kWindow);
    const auto last = std::span(names).last(kWindow);
    EXPECT_EQ(std::ranges::count_if(last, [&](auto name) { return g.take(name, kWindow); }),
              std::ptrdiff_t{kWindow});
    EXPECT_EQ(std::ranges::count_if(names, [&](auto name) { return g.take(name, kWindow); }), 0);
}

}  // namespace
}  // namespace nereid::kv
