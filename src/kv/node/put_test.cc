// What is put: visible when whole, once per key, by its owner and in time.
#include <gtest/gtest.h>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

// K1, K6: nobody sees an object before its bytes are in place and checked; a failed put leaves
// nothing.
TEST(Node, VisibleOnlyWhenWhole_K1_K6) {
    NodeWorld w(NodeWorld::without_ssd());
    const ClientId c = w.connect();
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(0, 1), 10s});
    EXPECT_EQ(w.found(c, 0, 1), 0U);
    EXPECT_EQ(w.get(c, 0, 1).contiguous, 0U);
    w.send(c, Commit{{w.item(r.ids[0], 0)}});
    EXPECT_EQ(w.found(c, 0, 1), 0U);
    EXPECT_EQ(w.get(c, 0, 1).contiguous, 0U);
    w.finish_copy();
    EXPECT_EQ(w.found(c, 0, 1), 1U);

    // Every way for a put to fail.
    const auto fails = [&](auto change, S expected) {
        const auto again = w.expect<Reserved>(c, Reserve{w.ns, w.objects(50, 1), 10s});
        ASSERT_EQ(again.status[0], S::kOk);
        CommitItem item = w.item(again.ids[0], 50);
        change(item);
        w.send(c, Commit{{item}});
        const std::uint64_t tag = w.last_tag;
        while (!w.copies.empty()) w.finish_copy();
        EXPECT_EQ(w.as<Committed>(w.take(c, tag)).status[0], expected);
        EXPECT_EQ(w.found(c, 50, 1), 0U);
        w.node->check_invariants();
    };
    fails([](CommitItem& i) { i.crc ^= 1; }, S::kCorrupt);  // K11, K12: zero-filled tails and such
    fails([](CommitItem& i) { i.region = 9; }, S::kFailed);
    fails([](CommitItem& i) { i.offset = 12345; }, S::kFailed);
    EXPECT_EQ(w.node->counters().put_crc_failures, 1U);
    EXPECT_EQ(w.node->held().writing_slots, 0U);
}

TEST(Node, CommitIsIdempotentAndWhatCannotBeIsRefused) {
    NodeWorld w(NodeWorld::without_ssd());
    const ClientId c = w.connect();
    const ClientId d = w.connect();
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(0, 2), 10s});
    CommitItem item = w.item(r.ids[0], 0);
    CommitItem bad = item;
    bad.length = 3999;
    EXPECT_EQ(w.expect<Committed>(c, Commit{{bad}}).status[0], S::kInvalid);
    bad.length = 0xffffffff;
    EXPECT_EQ(w.expect<Committed>(c, Commit{{bad}}).status[0], S::kInvalid);
    EXPECT_EQ(w.expect<Committed>(d, Commit{{item}}).status[0], S::kForeign);
    EXPECT_EQ(w.expect<Committed>(c, Commit{{{ReservationId{999}, 0, 0, 4000, 0}}}).status[0],
              S::kUnknown);
    // Twice in one command, and again while the copy runs: one copy, one outcome.
    w.send(c, Commit{{item, item}});
    const std::uint64_t first = w.last_tag;
    w.send(c, Commit{{item}});
    const std::uint64_t second = w.last_tag;
    EXPECT_EQ(w.copies.size(), 1U);
    w.finish_copy();
    EXPECT_EQ(w.as<Committed>(w.take(c, first)).status, (std::vector{S::kOk, S::kOk}));
    EXPECT_EQ(w.as<Committed>(w.take(c, second)).status[0], S::kOk);
    EXPECT_EQ(w.expect<Committed>(c, Commit{{item}}).status[0], S::kOk);
    EXPECT_EQ(w.expect<Committed>(d, Commit{{item}}).status[0], S::kForeign);
    EXPECT_EQ(w.node->counters().commit_repeats, 3U);
    EXPECT_EQ(w.node->counters().committed, 1U);
    // After its time.
    w.advance(11s);
    EXPECT_EQ(w.expect<Committed>(c, Commit{{w.item(r.ids[1], 1)}}).status[0], S::kExpired);
    EXPECT_EQ(w.found(c, 1, 1), 0U);
    EXPECT_EQ(w.node->counters().reservations_expired, 1U);
    // Empty commands are answered.
    EXPECT_TRUE(w.expect<Committed>(c, Commit{}).status.empty());
    EXPECT_TRUE(w.expect<Reserved>(c, Reserve{w.ns, {}, 1s}).status.empty());
    EXPECT_EQ(w.expect<Got>(c, Get{w.ns, {}}).lease.value, 0U);
    w.expect_nothing_held();
}

TEST(Node, ACommitInTimeMayBeCopiedLate) {
    NodeWorld w(NodeWorld::without_ssd());
    const ClientId c = w.connect();
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(0, 1), 10s});
    w.send(c, Commit{{w.item(r.ids[0], 0)}});
    const std::uint64_t tag = w.last_tag;
    w.advance(60s);
    w.finish_copy();
    EXPECT_EQ(w.as<Committed>(w.take(c, tag)).status[0], S::kOk);
    EXPECT_EQ(w.found(c, 0, 1), 1U);
}

// K35, K39: the same key put by many at once (every TP rank) is one write; the others are told.
TEST(Node, OneWritePerKeyAndFollowersAttach_K35_K39) {
    NodeWorld w(NodeWorld::without_ssd());
    const ClientId leader = w.connect();
    const auto r = w.expect<Reserved>(leader, Reserve{w.ns, w.objects(0, 2), 10s});
    std::vector<std::pair<ClientId, std::uint64_t>> followers;
    for (int i = 0; i < 8; ++i) {
        const ClientId c = w.connect();
        const auto f = w.expect<Reserved>(c, Reserve{w.ns, w.objects(0, 2), 10s, 0s, true});
        EXPECT_EQ(f.status, (std::vector{S::kInFlight, S::kInFlight}));
        followers.emplace_back(c, w.last_tag);
    }
    EXPECT_EQ(w.node->held().writing_slots, 2U);
    w.send(leader, Commit{{w.item(r.ids[0], 0)}});
    w.finish_copy();
    for (const auto& [c, tag] : followers) {
        const auto flight = w.as<Flight>(w.take(c, tag));
        EXPECT_EQ(flight.status, S::kOk);
        EXPECT_EQ(flight.object, 0U);
    }
    // The leader dies before the second: the first follower writes, the rest follow it.
    w.step(ClientGone{leader});
    const auto next = w.as<Flight>(w.take(followers[0].first, followers[0].second));
    EXPECT_EQ(next.status, S::kMiss);
    ASSERT_NE(next.reservation.value, 0U);
    EXPECT_FALSE(w.take(followers[1].first, followers[1].second).has_value());
    w.send(followers[0].first, Commit{{w.item(next.reservation, 1)}});
    w.finish_copy();
    for (std::size_t i = 1; i < followers.size(); ++i) {
        EXPECT_EQ(w.as<Flight>(w.take(followers[i].first, followers[i].second)).status, S::kOk);
    }
    EXPECT_EQ(w.node->counters().committed, 2U);
    EXPECT_EQ(w.expect<Reserved>(followers[3].first, Reserve{w.ns, w.objects(0, 2), 10s}).status,
              (std::vector{S::kExists, S::kExists}));
    w.expect_nothing_held();
}

TEST(Node, AFollowerWaitsNoLongerThanItSaid) {
    NodeWorld w(NodeWorld::without_ssd());
    const ClientId a = w.connect();
    const ClientId b = w.connect();
    w.expect<Reserved>(a, Reserve{w.ns, w.objects(0, 1), 60s});
    w.expect<Reserved>(b, Reserve{w.ns, w.objects(0, 1), 5s, 0s, true});
    const std::uint64_t tag = w.last_tag;
    w.advance(6s);
    EXPECT_EQ(w.as<Flight>(w.take(b, tag)).status, S::kTimedOut);
    EXPECT_EQ(w.node->held().followers, 0U);
}

TEST(Node, AClientThatDiesWhileItsBytesAreCopiedLeavesAWholeObjectOrNone) {
    for (const bool good : {true, false}) {
        NodeWorld w(NodeWorld::without_ssd());
        const ClientId a = w.connect();
        const ClientId b = w.connect();
        const auto r = w.expect<Reserved>(a, Reserve{w.ns, w.objects(0, 1), 10s});
        CommitItem item = w.item(r.ids[0], 0);
        if (!good) item.crc ^= 1;
        w.send(a, Commit{{item}});
        w.step(ClientGone{a});
        w.node->check_invariants();
        EXPECT_EQ(w.node->held().writing_slots, 1U);  // the copy still writes into it
        w.finish_copy();
        EXPECT_EQ(w.found(b, 0, 1), good ? 1U : 0U);
        w.expect_nothing_held();
    }
}

}  // namespace
}  // namespace nereid::kv
