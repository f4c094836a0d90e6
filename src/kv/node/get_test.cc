// What is asked for: hits, misses, joined reads and writes, leases.
#include <gtest/gtest.h>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

TEST(Node, PutThenGetGivesTheBytesBack) {
    NodeWorld w(NodeWorld::without_ssd());
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

TEST(Node, GetMayJoinAWrite) {
    NodeWorld w(NodeWorld::without_ssd());
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
    NodeWorld w(NodeWorld::without_ssd());
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

TEST(Node, AGetThatFindsNoRoomSaysSo) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 3);
    w.run_effects();
    const std::uint32_t all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    w.put(c, 1000, all);
    w.run_effects();
    const Got held = w.get(c, 1000, all);
    EXPECT_EQ(held.contiguous, all);
    Get each{w.ns, w.objects(0, 3), 10s, 5s};
    each.stop_at_miss = false;
    const Got got = w.expect<Got>(c, each);
    EXPECT_EQ(got.status, std::vector(3, S::kNoSpace));
    EXPECT_EQ(got.lease.value, 0U);
    w.expect<Done>(c, Release{held.lease});
    const Got later = w.get(c, 0, 3, 5s);
    EXPECT_EQ(later.contiguous, 3U);
    w.expect_content(later);
}

TEST(Node, WithoutWaitAGetTakesOnlyWhatIsInDram) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 2);
    w.run_effects();
    w.restart();
    w.step(Scanned{w.scan()});
    const ClientId d = w.connect();
    const Got got = w.expect<Got>(d, Get{w.ns, w.objects(0, 2), 10s});
    EXPECT_EQ(got.status, (std::vector{S::kTimedOut}));
    EXPECT_TRUE(w.reads.empty());
}

// K38: a stampede on one prefix is one read of each block; all attach and none waits in a queue.
TEST(Node, FiftyGetsAreOneRead_K38) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 4);
    w.run_effects();
    w.restart();
    w.step(Scanned{w.scan()});
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
    w.step(Scanned{w.scan()});
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
    w.step(Scanned{w.scan()});
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

// K13: with stored states a hit is where history and state are both.
TEST(Node, StoredStates_K13) {
    NodeWorld::Setup setup = NodeWorld::without_ssd();
    setup.geometry = NodeWorld::with_states();
    NodeWorld w(setup);
    const ClientId c = w.connect();
    w.put(c, 0, 10);
    const auto hit = [&](TokenCount tokens) {
        return w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, 10), tokens}).hit;
    };
    EXPECT_EQ(hit(165).blocks, 0U);
    EXPECT_EQ(hit(165).raw_blocks, 10U);
    std::vector<ObjectName> state{{test_key(3), ObjectKind::kState, 3}};
    w.put_state(c, state[0]);
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
    NodeWorld w(NodeWorld::without_ssd());
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
    NodeWorld::Setup setup = NodeWorld::without_ssd();
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

}  // namespace
}  // namespace nereid::kv
