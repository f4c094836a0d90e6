#include "kv/node/node.h"

#include <gtest/gtest.h>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

NodeWorld::Setup no_ssd() {
    NodeWorld::Setup setup;
    setup.options.ssd = false;
    return setup;
}

TEST(Node, PutThenGetGivesTheBytesBack) {
    NodeWorld w(no_ssd());
    const ClientId c = w.connect();
    w.put(c, 0, 5);
    EXPECT_EQ(w.found(c, 0, 8), 5U);
    const Got got = w.get(c, 0, 8);
    EXPECT_EQ(got.contiguous, 5U);
    EXPECT_EQ(got.status.size(), 6U);
    EXPECT_EQ(got.status[5], S::kMiss);
    EXPECT_EQ(w.node->held().pinned_slots, 5U);
    w.expect_content(got);
    w.expect<Done>(c, Release{got.lease});
    w.expect<Done>(c, Release{got.lease});  // twice is no fault
    w.expect_nothing_held();
    EXPECT_EQ(w.node->counters().dram_hits, 5U);
    EXPECT_EQ(w.node->counters().committed, 5U);
}

// K1, K6: nobody sees an object before its bytes are in place and checked; a failed put leaves
// nothing.
TEST(Node, VisibleOnlyWhenWhole_K1_K6) {
    NodeWorld w(no_ssd());
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
    NodeWorld w(no_ssd());
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
    NodeWorld w(no_ssd());
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
    NodeWorld w(no_ssd());
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
    NodeWorld w(no_ssd());
    const ClientId a = w.connect();
    const ClientId b = w.connect();
    w.expect<Reserved>(a, Reserve{w.ns, w.objects(0, 1), 60s});
    w.expect<Reserved>(b, Reserve{w.ns, w.objects(0, 1), 5s, 0s, true});
    const std::uint64_t tag = w.last_tag;
    w.advance(6s);
    EXPECT_EQ(w.as<Flight>(w.take(b, tag)).status, S::kTimedOut);
    EXPECT_EQ(w.node->held().followers, 0U);
}

TEST(Node, GetMayJoinAWrite) {
    NodeWorld w(no_ssd());
    const ClientId a = w.connect();
    const ClientId b = w.connect();
    const auto r = w.expect<Reserved>(a, Reserve{w.ns, w.objects(0, 2), 60s});
    w.send(b, Get{w.ns, w.objects(0, 2), 10s, 20s, true});
    const std::uint64_t tag = w.last_tag;
    w.send(a, Commit{{w.item(r.ids[0], 0)}});
    w.finish_copy();
    EXPECT_FALSE(w.take(b, tag).has_value());
    w.expect<Committed>(a, Abort{{r.ids[1]}});
    const Got got = w.as<Got>(w.take(b, tag));
    EXPECT_EQ(got.contiguous, 1U);
    EXPECT_EQ(got.status, (std::vector{S::kOk, S::kMiss}));
    w.expect_content(got);
}

// K30, K31: leases end by themselves, are renewed only by their owner, and go with it.
TEST(Node, EveryHoldEnds_K30_K31) {
    NodeWorld w(no_ssd());
    const ClientId a = w.connect();
    const ClientId b = w.connect();
    w.put(a, 0, 3);
    const Got got = w.get(a, 0, 3);
    EXPECT_EQ(w.code(b, Release{got.lease}), Code::kPermissionDenied);
    EXPECT_EQ(w.code(b, Renew{got.lease, 1h}), Code::kPermissionDenied);
    EXPECT_EQ(w.node->held().pinned_slots, 3U);
    w.advance(9s);
    w.expect<Done>(a, Renew{got.lease, 10s});
    w.advance(9s);
    EXPECT_EQ(w.node->held().pinned_slots, 3U);
    w.advance(2s);
    EXPECT_EQ(w.node->held().pinned_slots, 0U);
    EXPECT_EQ(w.code(a, Renew{got.lease, 10s}), Code::kNotFound);
    EXPECT_EQ(w.node->counters().leases_expired, 1U);
    // No lease outlives the node's maximum, whatever is asked.
    w.send(a, Get{w.ns, w.objects(0, 3), 1000h});
    w.advance(61s);
    EXPECT_EQ(w.node->held().leases, 0U);

    w.get(a, 0, 3);
    w.expect<Reserved>(a, Reserve{w.ns, w.objects(10, 3), 60s});
    w.expect<Reserved>(b, Reserve{w.ns, w.objects(20, 1), 60s});
    w.expect<Reserved>(a, Reserve{w.ns, w.objects(20, 1), 60s, 0s, true});
    w.send(a, Get{w.ns, w.objects(20, 1), 10s, 20s, true});
    w.send(a, Subscribe{w.as<Events>(w.send(b, Subscribe{0})).next, 10, 20s});
    EXPECT_EQ(w.node->held().pollers, 1U);
    w.node->check_invariants();
    w.step(ClientGone{a});
    w.step(ClientGone{b});
    w.step(ClientGone{b});
    w.expect_nothing_held();
    EXPECT_EQ(w.node->held().blocks, 3U);
    // What arrives late from the dead is refused and leaves nothing.
    EXPECT_EQ(w.code(a, Get{w.ns, w.objects(0, 3), 10s}), Code::kPermissionDenied);
    w.expect_nothing_held();
}

TEST(Node, AClientThatDiesWhileItsBytesAreCopiedLeavesAWholeObjectOrNone) {
    for (const bool good : {true, false}) {
        NodeWorld w(no_ssd());
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

// K15: what is leased or being written to SSD is not taken away, and a slot in use by an effect is
// never given to another.
TEST(Node, PinnedBlocksStay_K15) {
    NodeWorld w(no_ssd());
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, all);
    const Got got = w.get(c, 0, all);
    EXPECT_EQ(got.contiguous, all);
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(10'000, 2), 10s});
    EXPECT_EQ(r.status, (std::vector{S::kNoSpace, S::kNoSpace}));
    w.expect_content(got);
    w.expect<Done>(c, Release{got.lease});
    w.put(c, 10'000, 2);
    EXPECT_EQ(w.node->counters().evictions[0], 2U);
    w.node->check_invariants();
}

TEST(Node, TheTailOfAPrefixGoesFirst) {
    NodeWorld w(no_ssd());
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, all);
    for (std::uint32_t n = 1; n <= 20; ++n) {
        w.put(c, 100'000 + n, 1);
        EXPECT_EQ(w.found(c, 0, all), all - n);
    }
}

// K34: through every tier and back: eviction, promotion, and what a full queue held up.
TEST(Node, EvictedBlocksComeBackFromSsd_K34) {
    NodeWorld::Setup setup;
    setup.options.append_queue_bytes = 3 * 4000;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, all);
    EXPECT_EQ(w.appends.size(), 3U);  // bounded
    EXPECT_EQ(w.node->held().append_queue, all - 3);
    EXPECT_EQ(w.node->counters().append_deferred, all - 3);
    w.finish_append(1, Error{Code::kOverloaded, "later"});
    w.finish_append(0, Error{Code::kIo, "once"});
    w.run_effects();
    w.advance(1s);
    w.run_effects();
    EXPECT_EQ(w.ssd.size(), all);  // each exactly once in the end
    EXPECT_EQ(w.node->held().append_queue, 0U);

    w.put(c, 10'000, all);  // pushes out all of the first
    w.run_effects();
    const auto places = w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, all), 0, true});
    EXPECT_EQ(places.blocks, all);
    EXPECT_GT(std::count(places.tiers.begin(), places.tiers.end(), Tier::kSsd), 0);
    // In pieces, since all of it would not fit beside the rest.
    for (std::uint32_t at = 0; at < all; at += 10) {
        const std::uint32_t n = std::min(10U, all - at);
        const Got got = w.get(c, at, n, 5s);
        EXPECT_EQ(got.contiguous, n);
        w.expect_content(got);
        w.expect<Done>(c, Release{got.lease});
        w.run_effects();
    }
    EXPECT_GT(w.node->counters().ssd_hits, 0U);
    EXPECT_GT(w.touched.size(), 0U);
    EXPECT_EQ(w.node->counters().append_lost, 0U);
    EXPECT_EQ(w.node->counters().overpromised_tokens, 0U);
    w.expect_nothing_held();
}

// Under a slow SSD: what is there already goes first, what waits for it stays; when all of DRAM
// waits, puts are held back and nothing is lost.
TEST(Node, BlocksThatWaitForTheSsdStay_K34) {
    NodeWorld::Setup setup;
    setup.options.append_queue_bytes = 2 * 4000;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, all);
    EXPECT_EQ(w.appends.size(), 2U);
    const auto held = w.expect<Reserved>(c, Reserve{w.ns, w.objects(10'000, 3), 10s});
    EXPECT_EQ(held.status, std::vector(3, S::kNoSpace));
    EXPECT_EQ(w.node->counters().held_back, 1U);
    // Each that arrives on SSD makes room for one, whatever its place in the order.
    for (std::uint64_t i = 0; i < all + 40; ++i) {
        w.finish_append(w.appends.size() - 1);
        w.put(c, 20'000 + i, 1);
        ASSERT_EQ(w.found(c, 20'000 + i, 1), 1U);
        ASSERT_EQ(w.appends.size(), 2U);
    }
    w.node->check_invariants();
    EXPECT_EQ(w.node->counters().append_lost, 0U);
    w.run_effects();
    EXPECT_EQ(w.found(c, 0, all), all);
    EXPECT_EQ(w.found(c, 20'000, all + 40), all + 40);
    EXPECT_EQ(w.node->counters().append_lost, 0U);
}

// A get has a request waiting: for it the one that the order gives is lost, and counted.
TEST(Node, AGetMayCostABlockThatWaits) {
    NodeWorld::Setup setup;
    setup.options.append_queue_bytes = 2 * 4000;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, 1);
    w.run_effects();
    w.put(c, 10'000, all);  // pushes it out
    w.send(c, Get{w.ns, w.objects(0, 1), 10s, 5s});
    const std::uint64_t tag = w.last_tag;
    ASSERT_EQ(w.reads.size(), 1U);
    w.finish_read();
    const Got got = w.as<Got>(w.take(c, tag));
    EXPECT_EQ(got.contiguous, 1U);
    w.expect_content(got);
    EXPECT_EQ(w.node->counters().append_lost, 1U);
    w.run_effects();
    EXPECT_EQ(w.found(c, 10'000, all), all - 3);  // the tail's two were on their way
    EXPECT_EQ(w.ssd.size(), all);
}

// While the tier takes nothing, DRAM goes on as if there were none, and nothing grows.
TEST(Node, AnSsdThatTakesNothingHoldsNobodyBack) {
    NodeWorld w;
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.step(SsdWritable{false});
    for (std::uint64_t i = 0; i < 12; ++i) w.put(c, 1000 * i, all);
    EXPECT_EQ(w.found(c, 11'000, all), all);
    EXPECT_EQ(w.node->counters().held_back, 0U);
    EXPECT_LE(w.node->held().append_queue, 2 * w.arena->slot_count() + 1);
    w.step(SsdWritable{true});
    w.run_effects();
    EXPECT_EQ(w.ssd.size(), all);
    EXPECT_EQ(w.node->held().append_queue, 0U);
}

TEST(Node, WithoutWaitAGetTakesOnlyWhatIsInDram) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 2);
    w.run_effects();
    w.restart();
    std::vector<ScanEntry> scan;
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    w.step(Scanned{scan});
    const ClientId d = w.connect();
    const Got got = w.expect<Got>(d, Get{w.ns, w.objects(0, 2), 10s});
    EXPECT_EQ(got.status, (std::vector{S::kTimedOut}));
    EXPECT_TRUE(w.reads.empty());
}

// K17: the SSD tier describes itself; a restarted node finds everything again.
TEST(Node, ARestartFindsWhatWasWritten_K17) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 20);
    w.run_effects();
    w.restart();
    const ClientId d = w.connect();
    EXPECT_EQ(w.found(d, 0, 20), 0U);
    std::vector<ScanEntry> scan;
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    w.step(Scanned{scan});
    EXPECT_EQ(w.found(d, 0, 20), 20U);
    const Got got = w.get(d, 0, 20, 5s);
    EXPECT_EQ(got.contiguous, 20U);
    w.expect_content(got);
    EXPECT_TRUE(w.appends.empty());  // not written again
    // Scanned again, with what is in DRAM now: nothing changes.
    w.step(Scanned{scan});
    EXPECT_EQ(w.get(d, 0, 20).contiguous, 20U);
    w.node->check_invariants();
}

// K38: a stampede on one prefix is one read of each block; all attach and none waits in a queue.
TEST(Node, FiftyGetsAreOneRead_K38) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 4);
    w.run_effects();
    w.restart();
    std::vector<ScanEntry> scan;
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    w.step(Scanned{scan});
    std::vector<std::pair<ClientId, std::uint64_t>> waiting;
    for (int i = 0; i < 50; ++i) {
        const ClientId d = w.connect();
        EXPECT_FALSE(w.send(d, Get{w.ns, w.objects(0, 4), 10s, 5s}).has_value());
        waiting.emplace_back(d, w.last_tag);
    }
    EXPECT_EQ(w.reads.size(), 4U);
    w.node->check_invariants();
    // One of them goes away, the reads go on for the others.
    w.step(ClientGone{waiting[0].first});
    w.finish_read(3);
    w.finish_read(0);
    w.run_effects();
    for (std::size_t i = 1; i < waiting.size(); ++i) {
        const Got got = w.as<Got>(w.take(waiting[i].first, waiting[i].second));
        EXPECT_EQ(got.contiguous, 4U);
        w.expect_content(got);
    }
    EXPECT_EQ(w.node->counters().ssd_hits, 4U);
    for (const auto& [d, tag] : waiting) w.step(ClientGone{d});
    w.expect_nothing_held();
}

// K2, K5, K8: what SSD cannot give back, or gives back wrong, is a miss at exactly that block.
TEST(Node, ReadFailuresAreMissesOfThatBlock_K2_K5_K8) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 6);
    w.run_effects();
    w.restart();
    std::vector<ScanEntry> scan;
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    w.step(Scanned{scan});
    const ClientId d = w.connect();
    std::map<std::uint32_t, std::uint64_t> where;
    for (const auto& [at, record] : w.ssd) where[record.info.block] = at;
    w.ssd[where[4]].bytes[77] ^= 4;               // bit rot
    std::swap(w.ssd[where[2]], w.ssd[where[3]]);  // another record where this one was
    Got got = w.get(d, 0, 6, 5s);
    EXPECT_EQ(got.contiguous, 2U);
    EXPECT_EQ(got.status.back(), S::kMiss);
    w.expect_content(got);
    EXPECT_EQ(w.node->counters().ssd_hits, 2U);  // nothing of a failed one
    EXPECT_EQ(w.node->counters().crc_failures, 1U);
    EXPECT_GE(w.node->counters().overpromised_tokens, 16U);
    // Found out once, known from then on.
    EXPECT_EQ(w.found(d, 0, 6), 2U);
    EXPECT_EQ(w.found(d, 4, 1), 0U);
    // Computed again, put again, there again.
    w.put(d, 0, 6);
    EXPECT_EQ(w.get(d, 0, 6).contiguous, 6U);
    w.run_effects();
    w.expect<Done>(d, Release{got.lease});
    w.node->check_invariants();
}

TEST(Node, AGetEndsAtItsDeadlineWithWhatThereIs) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 3);
    w.run_effects();
    w.restart();
    std::vector<ScanEntry> scan;
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    w.step(Scanned{scan});
    const ClientId d = w.connect();
    w.send(d, Get{w.ns, w.objects(0, 3), 10s, 2s});
    const std::uint64_t tag = w.last_tag;
    w.finish_read();
    w.advance(3s);
    const Got got = w.as<Got>(w.take(d, tag));
    EXPECT_EQ(got.status, (std::vector{S::kOk, S::kTimedOut}));
    EXPECT_EQ(w.node->counters().get_deadlines, 1U);
    // The reads that go on are not lost.
    EXPECT_EQ(w.node->held().reads, 2U);
    w.run_effects();
    EXPECT_EQ(w.expect<Got>(d, Get{w.ns, w.objects(0, 3), 10s}).contiguous, 3U);
}

// K24: clear is a new epoch, also for what is leased, being written or on SSD.
TEST(Node, ClearForgetsEverythingOfItsNamespace_K24) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 4);
    w.run_effects();
    const NsId mine = w.ns;
    const NsId other = w.open(c, "b", 2);
    w.ns = other;
    w.put(c, 0, 2, "b");
    w.ns = mine;
    const Got got = w.get(c, 0, 2);
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(10, 2), 10s});
    w.send(c, Commit{{w.item(r.ids[0], 10)}});
    const std::uint64_t commit = w.last_tag;
    const auto epoch = w.expect<Found>(c, Lookup{mine, 0, w.keys(0, 1)}).epoch;
    w.expect<Done>(c, Clear{mine});
    EXPECT_NE(w.expect<Found>(c, Lookup{mine, 0, w.keys(0, 1)}).epoch, epoch);
    w.finish_copy();
    EXPECT_EQ(w.as<Committed>(w.take(c, commit)).status[0], S::kFailed);
    EXPECT_EQ(w.expect<Committed>(c, Commit{{w.item(r.ids[1], 11)}}).status[0], S::kExpired);
    EXPECT_EQ(w.found(c, 0, 4), 0U);
    EXPECT_EQ(w.found(c, 10, 2), 0U);
    w.expect_content(got);  // a lease is a promise
    w.node->check_invariants();
    w.expect<Done>(c, Release{got.lease});
    w.ns = other;
    EXPECT_EQ(w.found(c, 0, 2), 2U);
    const auto events = w.expect<Events>(c, Subscribe{0});
    EXPECT_EQ(std::count_if(events.events.begin(), events.events.end(),
                            [](const KvEvent& e) { return e.type == KvEventType::kCleared; }),
              1);
    w.run_effects();
    w.expect_nothing_held();
}

// K25: numbered, replayed from the ring, and a gap is said to be one.
TEST(Node, EventsAreNumberedReplayedAndGapsAreTold_K25) {
    NodeWorld::Setup setup = no_ssd();
    setup.options.event_ring = 8;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    w.put(c, 0, 5);
    auto events = w.expect<Events>(c, Subscribe{0, 3});
    EXPECT_FALSE(events.gap);
    EXPECT_EQ(events.first, 1U);
    EXPECT_EQ(events.events.size(), 3U);
    events = w.expect<Events>(c, Subscribe{events.next});
    EXPECT_EQ(events.first, 4U);
    EXPECT_EQ(events.events.size(), 2U);
    EXPECT_EQ(events.events[1].key,
              object_key(w.namespace_of("a"), test_key(0), ObjectKind::kHistory));
    // A poll waits for the next one, or for its time.
    EXPECT_FALSE(w.send(c, Subscribe{events.next, 100, 10s}).has_value());
    const std::uint64_t tag = w.last_tag;
    w.put(c, 5, 1);
    EXPECT_EQ(w.as<Events>(w.take(c, tag)).events.size(), 1U);
    EXPECT_FALSE(w.send(c, Subscribe{7, 100, 10s}).has_value());
    const std::uint64_t late = w.last_tag;
    w.advance(11s);
    const auto empty = w.as<Events>(w.take(c, late));
    EXPECT_TRUE(empty.events.empty() && !empty.gap);
    EXPECT_EQ(empty.next, 7U);
    w.put(c, 10, 9);
    const auto gap = w.expect<Events>(c, Subscribe{7});
    EXPECT_TRUE(gap.gap);
    EXPECT_EQ(gap.first, 8U);
    EXPECT_EQ(gap.events.size(), 8U);
    EXPECT_TRUE(w.expect<Events>(c, Subscribe{1000}).gap);  // of another run
}

// K22, K36 and hostile counts: everything is bounded, and refused with the reason.
TEST(Node, BoundsAreRefused_K22) {
    NodeWorld::Setup setup = no_ssd();
    setup.options.max_objects = 8;
    setup.options.max_namespaces = 2;
    setup.options.max_client_leases = 2;
    setup.options.max_client_reservations = 4;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    EXPECT_EQ(w.code(c, Lookup{w.ns, 0, w.keys(0, 9)}), Code::kTooLarge);
    EXPECT_EQ(w.code(c, Lookup{w.ns, 0, {}, 0xffffffff}), Code::kTooLarge);
    EXPECT_EQ(w.code(c, Get{w.ns, w.objects(0, 9)}), Code::kTooLarge);
    EXPECT_EQ(w.code(c, Reserve{w.ns, w.objects(0, 9), 1s}), Code::kTooLarge);
    EXPECT_EQ(w.code(c, Commit{std::vector<CommitItem>(9)}), Code::kTooLarge);
    EXPECT_EQ(w.code(c, Abort{std::vector<ReservationId>(9)}), Code::kTooLarge);
    w.expect<Reserved>(c, Reserve{w.ns, w.objects(0, 4), 1s});
    EXPECT_EQ(w.code(c, Reserve{w.ns, w.objects(4, 1), 1s}), Code::kRateLimited);
    w.advance(2s);
    w.put(c, 0, 1);
    w.get(c, 0, 1);
    w.get(c, 0, 1);
    EXPECT_EQ(w.code(c, Get{w.ns, w.objects(0, 1)}), Code::kRateLimited);
    const auto open = [&](std::string salt, Geometry g) {
        return OpenNamespace{w.namespace_of(std::move(salt)), g, 1};
    };
    w.expect<NamespaceOpened>(c, open("b", w.geometry));
    w.expect<NamespaceOpened>(c, open("b", w.geometry));  // again
    EXPECT_EQ(w.code(c, open("c", w.geometry)), Code::kOverloaded);
    Geometry other = w.geometry;
    other.history_bytes = 5000;
    EXPECT_EQ(w.code(c, open("b", other)), Code::kConflict);
    other.history_bytes = 0;
    EXPECT_EQ(w.code(c, open("b", other)), Code::kInvalidArgument);
    EXPECT_GE(w.node->counters().refused, 10U);
}

// K43: no namespace that was not opened, and no object of another one.
TEST(Node, NamespacesAreSeparate_K43) {
    NodeWorld w(no_ssd());
    const ClientId a = w.connect("a");
    const NsId ns_a = w.ns;
    w.put(a, 0, 2);
    const ClientId b = w.connect("b", 2);
    EXPECT_EQ(w.found(b, 0, 2), 0U);
    EXPECT_EQ(w.get(b, 0, 2).contiguous, 0U);
    for (const NsId ns : {ns_a, NsId{77}, kAnyNs}) {
        EXPECT_EQ(w.code(b, Lookup{ns, 0, w.keys(0, 2)}), Code::kPermissionDenied);
        EXPECT_EQ(w.code(b, Get{ns, w.objects(0, 2)}), Code::kPermissionDenied);
        EXPECT_EQ(w.code(b, Reserve{ns, w.objects(0, 2), 1s}), Code::kPermissionDenied);
        EXPECT_EQ(w.code(b, Clear{ns}), Code::kPermissionDenied);
    }
    EXPECT_EQ(w.code(ClientId{99}, Lookup{ns_a, 0, {}}), Code::kPermissionDenied);
    // A kind that this namespace does not have.
    auto objects = w.objects(0, 1);
    objects[0].kind = ObjectKind::kState;
    EXPECT_EQ(w.expect<Reserved>(b, Reserve{w.ns, objects, 1s}).status[0], S::kInvalid);
    objects[0].kind = static_cast<ObjectKind>(9);
    EXPECT_EQ(w.expect<Reserved>(b, Reserve{w.ns, objects, 1s}).status[0], S::kInvalid);
}

TEST(Node, ATenantStaysWithinItsQuotaAndPaysWithItsOwnBlocks) {
    NodeWorld::Setup setup = no_ssd();
    setup.options.tenant_quota_bytes = 10 * 4096;
    NodeWorld w(setup);
    const ClientId a = w.connect("a", 1);
    const NsId ns_a = w.ns;
    w.put(a, 0, 8);
    const ClientId b = w.connect("b", 2);
    for (std::uint64_t i = 0; i < 30; ++i) w.put(b, 100 + i, 1, "b");
    // At once it does not fit, and nobody else pays.
    const auto r = w.expect<Reserved>(b, Reserve{w.ns, w.objects(200, 12), 1s});
    EXPECT_EQ(std::count(r.status.begin(), r.status.end(), S::kOk), 10);
    w.advance(2s);
    EXPECT_EQ(w.node->tenant_bytes(2), 0U);
    EXPECT_EQ(w.node->counters().evictions[static_cast<std::size_t>(EvictCause::kQuota)], 30U);
    w.ns = ns_a;
    EXPECT_EQ(w.found(a, 0, 8), 8U);
    w.node->check_invariants();
}

TEST(Node, DifferentSizesTakePagesFromEachOther) {
    NodeWorld::Setup setup = no_ssd();
    NodeWorld w(setup);
    const ClientId a = w.connect("a", 1);
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(a, 0, all);
    // Objects of another size: no free page is left, the oldest run of the small ones goes.
    w.geometry.history_bytes = 60'000;
    w.ns = w.open(a, "big", 1);
    w.put(a, 1000, 3, "big");
    EXPECT_EQ(w.found(a, 1000, 3), 3U);
    EXPECT_EQ(w.node->counters().evictions[static_cast<std::size_t>(EvictCause::kSteal)], 48U);
    w.node->check_invariants();
    for (std::uint64_t i = 0; i < 40; ++i) w.put(a, 2000 + i, 1, "big");
    w.node->check_invariants();
}

TEST(Node, LifeIsExtendedByHitsAndPutsAndEnds) {
    NodeWorld w(no_ssd());
    const ClientId c = w.connect();
    const auto put = [&](std::uint64_t key, Duration ttl) {
        const auto r = w.expect<Reserved>(c, Reserve{w.ns, w.objects(key, 1), 10s, ttl});
        w.send(c, Commit{{w.item(r.ids[0], key)}});
        w.finish_copy();
    };
    put(0, 4h);
    put(1, 4h);
    put(2, 4h);
    w.advance(3h);
    w.get(c, 0, 1);
    EXPECT_EQ(w.expect<Reserved>(c, Reserve{w.ns, w.objects(1, 1), 10s, 20h}).status[0],
              S::kExists);
    w.advance(3h);
    EXPECT_EQ(w.found(c, 0, 1), 1U);
    EXPECT_EQ(w.found(c, 1, 1), 1U);
    EXPECT_EQ(w.found(c, 2, 1), 0U);
    EXPECT_EQ(w.node->counters().evictions[static_cast<std::size_t>(EvictCause::kExpired)], 1U);
    w.advance(10h);
    EXPECT_EQ(w.found(c, 0, 1), 0U);
    EXPECT_EQ(w.found(c, 1, 1), 1U);
    w.node->check_invariants();
}

TEST(Node, SsdRecordsThatGoOrMoveAreFollowed) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 3);
    w.run_effects();
    std::vector<ScanEntry> scan;  // the tail is written first: scan[2] is block 0
    for (const auto& [at, record] : w.ssd) {
        scan.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
    }
    // In DRAM: damage on SSD is mended from there, expiry is not.
    w.step(SsdGone{{scan[0]}, GoneCause::kCorrupt});
    EXPECT_EQ(w.appends.size(), 1U);
    w.run_effects();
    w.step(SsdGone{{scan[1]}, GoneCause::kExpired});
    EXPECT_TRUE(w.appends.empty());
    w.step(SsdMoved{scan[2].key, scan[2].location, {Tier::kSsd, 5000}, scan[2].expiry});
    w.ssd[5000] = w.ssd[scan[2].location.value];
    w.ssd.erase(scan[2].location.value);
    w.node->check_invariants();
    // Only on SSD.
    w.restart();
    const ClientId d = w.connect();
    scan[2].location.value = 5000;
    w.step(Scanned{{scan[2]}});
    w.step(SsdMoved{scan[2].key, {Tier::kSsd, 5000}, {Tier::kSsd, 6000}, scan[2].expiry});
    w.ssd[6000] = w.ssd[5000];
    EXPECT_EQ(w.get(d, 0, 1, 5s).contiguous, 1U);
    w.restart();
    const ClientId e = w.connect();
    scan[2].location.value = 6000;
    w.step(Scanned{{scan[2]}});
    EXPECT_EQ(w.found(e, 0, 1), 1U);
    w.step(SsdGone{{scan[2]}, GoneCause::kExpired});
    EXPECT_EQ(w.found(e, 0, 1), 0U);
    w.node->check_invariants();
}

TEST(Node, AFullSsdIsSpared) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.step(SsdWritable{false});
    w.put(c, 0, 5);
    EXPECT_TRUE(w.appends.empty());
    w.step(SsdWritable{true});
    w.run_effects();
    EXPECT_EQ(w.ssd.size(), 5U);
    // What fails again and again is given up, and stays in DRAM.
    w.put(c, 10, 1);
    for (int i = 0; i < 10; ++i) {
        while (!w.appends.empty()) w.finish_append(0, Error{Code::kNoSpace, "full"});
        w.advance(1s);
    }
    EXPECT_TRUE(w.appends.empty());
    EXPECT_EQ(w.node->counters().append_failures, 3U);
    EXPECT_EQ(w.found(c, 10, 1), 1U);
    w.expect_nothing_held();
}

// K13: with stored states a hit is where history and state are both.
TEST(Node, StoredStates_K13) {
    NodeWorld::Setup setup = no_ssd();
    setup.geometry = {.block_tokens = 16,
                      .history_bytes = 4000,
                      .state_bytes = 9000,
                      .keep_tokens = 20,
                      .replay = ReplayPolicy::kStoredState,
                      .checkpoint_blocks = 4};
    NodeWorld w(setup);
    const ClientId c = w.connect();
    w.put(c, 0, 10);
    const auto hit = [&](TokenCount tokens) {
        return w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, 10), tokens}).hit;
    };
    EXPECT_EQ(hit(165).blocks, 0U);
    EXPECT_EQ(hit(165).raw_blocks, 10U);
    std::vector<ObjectName> state{{test_key(3), ObjectKind::kState, 3}};
    const auto r = w.expect<Reserved>(c, Reserve{w.ns, state, 10s});
    const auto bytes =
        content_of(object_key(w.namespace_of("a"), test_key(3), ObjectKind::kState), 9000);
    w.staging[500] = bytes;
    w.send(c, Commit{{{r.ids[0], 0, 500, 9000, crc32c(bytes)}}});
    w.finish_copy();
    EXPECT_EQ(hit(165).blocks, 4U);
    EXPECT_TRUE(hit(165).state);
    EXPECT_EQ(hit(84).blocks, 4U);
    EXPECT_EQ(hit(83).blocks, 0U);  // 64 + 20 tokens are needed
    std::vector<ObjectName> all = w.objects(0, 4);
    all.push_back(state[0]);
    const Got got = w.expect<Got>(c, Get{w.ns, all, 10s});
    EXPECT_EQ(got.contiguous, 5U);
    EXPECT_EQ(got.places[4].length, 9000U);
    w.expect_content(got);
}

// K32: what is not there is an answer, never an assertion: unknown, evicted, expired, of a
// namespace that was cleared, with and without waiting.
TEST(Node, AMissIsAnAnswer_K32) {
    NodeWorld w(no_ssd());
    const ClientId c = w.connect();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 0, all);
    w.put(c, 1000, all);
    const auto missing = [&](std::uint64_t key) {
        for (const Duration wait : {Duration(0), Duration(5s)}) {
            const Got got = w.expect<Got>(c, Get{w.ns, w.objects(key, 1), 1s, wait, true});
            EXPECT_EQ(got.status, (std::vector{S::kMiss}));
            EXPECT_EQ(got.lease.value, 0U);
            EXPECT_EQ(got.places[0].length, 0U);
        }
    };
    missing(5'000'000);
    missing(all - 1);
    w.advance(std::chrono::hours(24 * 8));
    missing(1000);
    w.put(c, 0, 1);
    w.expect<Done>(c, Clear{w.ns});
    missing(0);
    // Each object for itself.
    w.step(ClientGone{c});
    const ClientId d = w.connect("b");
    w.put(d, 11, 1, "b");
    Get each{w.ns, w.objects(10, 3), 1s};
    each.stop_at_miss = false;
    const Got got = w.expect<Got>(d, each);
    EXPECT_EQ(got.status, (std::vector{S::kMiss, S::kOk, S::kMiss}));
    EXPECT_EQ(got.contiguous, 0U);
    w.expect_content(got);
}

// K4: a prompt of a million tokens, every block looked at, not only counted.
TEST(Node, AMillionTokens_K4) {
    NodeWorld::Setup setup = no_ssd();
    setup.arena_bytes = 40 << 20;
    setup.history_bytes = 1000;
    setup.geometry = {.block_tokens = 128, .history_bytes = 1000};
    setup.index_entries = 16384;
    NodeWorld w(setup);
    const ClientId c = w.connect();
    constexpr std::uint32_t kBlocks = 8192;
    w.put(c, 0, kBlocks);
    const auto found = w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, kBlocks), 128 * kBlocks});
    EXPECT_EQ(found.blocks, kBlocks);
    EXPECT_EQ(found.hit.blocks, kBlocks - 1);
    const Got got = w.get(c, 0, kBlocks);
    EXPECT_EQ(got.contiguous, kBlocks);
    w.expect_content(got);
}

TEST(Node, ListShowsWhatThereIs) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 3);
    w.finish_append();
    const Got got = w.get(c, 1, 1);
    std::map<std::uint32_t, Node::Listed> listed;
    w.node->list([&](const Node::Listed& l) { listed[l.block] = l; });
    EXPECT_EQ(listed.size(), 3U);
    EXPECT_EQ(listed[0].key, test_key(0));
    EXPECT_EQ(listed[2].place.length, 4000U);
    std::uint32_t pins = 0;
    std::uint32_t on_ssd = 0;
    for (const auto& [block, l] : listed) {
        pins += l.pins;
        on_ssd += l.ssd.tier == Tier::kSsd ? 1 : 0;
    }
    EXPECT_EQ(pins, 1U);
    EXPECT_EQ(on_ssd, 1U);
}

}  // namespace
}  // namespace nereid::kv
