// Who leaves memory, who stays, and what goes behind to SSD.
#include <gtest/gtest.h>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

// K15: what is leased or being written to SSD is not taken away, and a slot in use by an effect is
// never given to another.
TEST(Node, PinnedBlocksStay_K15) {
    NodeWorld w(NodeWorld::without_ssd());
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
    NodeWorld w(NodeWorld::without_ssd());
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

// K17: the SSD tier describes itself; a restarted node finds everything again.
TEST(Node, ARestartFindsWhatWasWritten_K17) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 20);
    w.run_effects();
    w.restart();
    const ClientId d = w.connect();
    EXPECT_EQ(w.found(d, 0, 20), 0U);
    w.step(Scanned{w.scan()});
    EXPECT_EQ(w.found(d, 0, 20), 20U);
    const Got got = w.get(d, 0, 20, 5s);
    EXPECT_EQ(got.contiguous, 20U);
    w.expect_content(got);
    EXPECT_TRUE(w.appends.empty());  // not written again
    // Scanned again, with what is in DRAM now: nothing changes.
    w.step(Scanned{w.scan()});
    EXPECT_EQ(w.get(d, 0, 20).contiguous, 20U);
    w.node->check_invariants();
}

TEST(Node, ATenantStaysWithinItsQuotaAndPaysWithItsOwnBlocks) {
    NodeWorld::Setup setup = NodeWorld::without_ssd();
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
    NodeWorld::Setup setup = NodeWorld::without_ssd();
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
    NodeWorld w(NodeWorld::without_ssd());
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
    std::vector<ScanEntry> scan = w.scan();  // the tail is written first: scan[2] is block 0
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

}  // namespace
}  // namespace nereid::kv
