// Namespaces, clears, events, bounds, lists.
#include <gtest/gtest.h>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

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
    NodeWorld::Setup setup = NodeWorld::without_ssd();
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
    NodeWorld::Setup setup = NodeWorld::without_ssd();
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
    NodeWorld w(NodeWorld::without_ssd());
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
