// Random commands, outcomes, deaths and times against a naive model, with every invariant checked
// on the way; and a soak after which nothing is held.
//
// The model is the set of objects whose commit was answered kOk or whose owner died in time. Safety
// holds always: what is given has the bytes of its name and was committed. With room for everything
// nothing may be missing either.
#include <gtest/gtest.h>

#include <set>

#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

using S = ObjectStatus;

struct Play {
    struct Client {
        ClientId id;
        std::vector<std::pair<ReservationId, std::uint64_t>> reservations;  // with its key
        std::vector<LeaseId> leases;
    };
    struct Asked {  // commands whose answer is not there yet
        ClientId client;
        std::uint64_t tag;
        std::vector<std::uint64_t> keys;
        std::set<std::uint64_t> sure;  // were there when it was asked
        enum { kCommit, kGet, kReserve } kind;
    };

    Play(std::uint64_t seed, bool roomy, bool with_ssd)
        : rng(seed), roomy_(roomy), world(setup(roomy, with_ssd)) {
        universe = roomy ? 120 : 400;
        for (int i = 0; i < 4; ++i) join();
    }

    static NodeWorld::Setup setup(bool roomy, bool with_ssd) {
        NodeWorld::Setup s;
        s.arena_bytes = roomy ? 4 << 20 : 700 << 10;
        s.options.ssd = with_ssd;
        s.options.append_queue_bytes = 5 * 4000;
        s.options.tenant_quota_bytes = 0;
        s.options.event_ring = 64;
        s.index_entries = roomy ? 4096 : 512;
        return s;
    }

    void join() { clients.push_back({world.connect(), {}, {}}); }
    Client& someone() { return clients[rng.below(clients.size())]; }
    std::uint64_t some_key() { return rng.below(universe); }
    std::vector<ObjectName> some_objects(std::vector<std::uint64_t>& keys) {
        std::vector<ObjectName> objects;
        const std::uint64_t first = some_key();
        const std::uint64_t n = 1 + rng.below(12);
        for (std::uint64_t i = 0; i < n; ++i) {
            const std::uint64_t key = rng.chance(0.9) ? (first + i) % universe : some_key();
            keys.push_back(key);
            objects.push_back({test_key(key), ObjectKind::kHistory, static_cast<std::uint32_t>(i)});
        }
        return objects;
    }

    void check_got(const Asked& a, Client* client, const Got& got) {
        std::vector<std::uint8_t> out;
        ASSERT_LE(got.status.size(), a.keys.size());
        for (std::size_t i = 0; i < got.status.size(); ++i) {
            const std::uint64_t key = a.keys[i];
            if (got.status[i] == S::kOk) {
                ASSERT_TRUE(committed.contains(key)) << "never committed: " << key;
                const SlotRef& place = got.places[i];
                ASSERT_EQ(place.key, object_key(NodeWorld::namespace_of("a"), test_key(key),
                                                ObjectKind::kHistory));
                out.resize(place.length);
                ASSERT_TRUE(world.reader->copy(place, out).ok());
                ASSERT_EQ(out, content_of(place.key, place.length));
            } else if (roomy_ && got.status[i] == S::kMiss) {
                ASSERT_FALSE(a.sure.contains(key)) << "lost: " << key;
            }
        }
        if (client != nullptr && got.lease.value != 0) client->leases.push_back(got.lease);
    }

    Client* alive(ClientId id) {
        for (Client& c : clients) {
            if (c.id == id) return &c;
        }
        return nullptr;
    }

    // Takes the answers that have come.
    void collect() {
        for (auto it = asked.begin(); it != asked.end();) {
            if (alive(it->client) == nullptr) {
                it = asked.erase(it);
                continue;
            }
            auto answer = world.take(it->client, it->tag);
            if (!answer) {
                ++it;
                continue;
            }
            if (auto* got = std::get_if<Got>(&*answer)) {
                check_got(*it, alive(it->client), *got);
            } else if (auto* done = std::get_if<Committed>(&*answer)) {
                ASSERT_EQ(done->status.size(), it->keys.size());
                for (std::size_t i = 0; i < it->keys.size(); ++i) {
                    if (done->status[i] == S::kOk) {
                        ASSERT_TRUE(committed.contains(it->keys[i]));
                    }
                }
            } else if (auto* flight = std::get_if<Flight>(&*answer)) {
                if (flight->reservation.value != 0) {
                    alive(it->client)
                        ->reservations.emplace_back(flight->reservation, it->keys[flight->object]);
                }
                ++it;  // more may come
                continue;
            }
            it = asked.erase(it);
        }
        world.replies.clear();
    }

    void reserve() {
        Client& c = someone();
        Asked a{c.id, 0, {}, committed, Asked::kReserve};
        auto objects = some_objects(a.keys);
        const bool attach = rng.chance(0.5);
        auto answer = world.send(
            c.id, Reserve{world.ns, objects, Duration(1s) * static_cast<int>(1 + rng.below(20)),
                          100h, attach});
        a.tag = world.last_tag;
        if (!answer || !std::holds_alternative<Reserved>(*answer)) return;
        const auto& r = std::get<Reserved>(*answer);
        for (std::size_t i = 0; i < r.ids.size(); ++i) {
            ASSERT_EQ(r.ids[i].value != 0, r.status[i] == S::kOk);
            if (r.ids[i].value != 0) c.reservations.emplace_back(r.ids[i], a.keys[i]);
        }
        if (attach) asked.push_back(std::move(a));
    }

    void commit() {
        Client& c = someone();
        if (c.reservations.empty()) return;
        Asked a{c.id, 0, {}, committed, Asked::kCommit};
        Commit command;
        for (std::uint64_t n = 1 + rng.below(4); n > 0 && !c.reservations.empty(); --n) {
            const std::size_t at = rng.below(c.reservations.size());
            const auto [id, key] = c.reservations[at];
            CommitItem item = world.item(id, key);
            switch (rng.below(20)) {
                case 0:
                    item.crc ^= 1;
                    break;
                case 1:
                    item.region = 9;
                    break;
                case 2:
                    item.length -= 1;
                    break;
                case 3:
                    if (Client& other = someone();
                        other.id != c.id && !other.reservations.empty()) {
                        item.reservation = other.reservations.front().first;
                    } else {
                        item.reservation = ReservationId{1ULL << 40};
                    }
                    break;
                default:
                    break;
            }
            command.items.push_back(item);
            a.keys.push_back(key);
            // Some are committed again later.
            if (rng.chance(0.8))
                c.reservations.erase(c.reservations.begin() + static_cast<long>(at));
        }
        auto answer = world.send(c.id, command);
        a.tag = world.last_tag;
        if (answer) {
            world.replies.push_back({c.id, a.tag, std::move(*answer)});
        }
        asked.push_back(std::move(a));
    }

    void get() {
        Client& c = someone();
        Asked a{c.id, 0, {}, committed, Asked::kGet};
        Get command{world.ns,
                    some_objects(a.keys),
                    Duration(1s) * static_cast<int>(1 + rng.below(10)),
                    Duration(1s) * static_cast<int>(rng.below(5)),
                    rng.chance(0.3),
                    rng.chance(0.7)};
        auto answer = world.send(c.id, command);
        a.tag = world.last_tag;
        if (answer) world.replies.push_back({c.id, a.tag, std::move(*answer)});
        asked.push_back(std::move(a));
    }

    void effect() {
        const bool fail = rng.chance(0.05);
        switch (rng.below(3)) {
            case 0:
                if (!world.copies.empty()) {
                    const std::size_t i = rng.below(world.copies.size());
                    // Whole and as announced: from now on it is there.
                    const CopyIn c = world.copies[i];
                    const std::uint64_t before = world.node->counters().committed;
                    world.finish_copy(i);
                    if (world.node->counters().committed > before) committed.insert(c.offset);
                }
                break;
            case 1:
                if (!world.appends.empty()) {
                    world.finish_append(
                        rng.below(world.appends.size()),
                        fail ? std::optional(
                                   Error{rng.chance(0.5) ? Code::kOverloaded : Code::kIo, "x"})
                             : std::nullopt);
                }
                break;
            default:
                if (!world.reads.empty()) {
                    const std::size_t i = rng.below(world.reads.size());
                    world.finish_read(i,
                                      fail ? std::optional(Error{Code::kIo, "x"}) : std::nullopt);
                }
        }
    }

    void die() {
        const std::size_t i = rng.below(clients.size());
        world.step(ClientGone{clients[i].id});
        clients.erase(clients.begin() + static_cast<long>(i));
        join();
    }

    void other() {
        Client& c = someone();
        switch (rng.below(6)) {
            case 0:
                if (!c.leases.empty()) {
                    world.send(c.id, Release{c.leases.back()});
                    c.leases.pop_back();
                }
                break;
            case 1:
                if (!c.leases.empty()) world.send(c.id, Renew{c.leases.front(), 5s});
                break;
            case 2:
                if (!c.reservations.empty()) {
                    world.send(c.id, Abort{{c.reservations.back().first}});
                    c.reservations.pop_back();
                }
                break;
            case 3:
                world.send(c.id, Subscribe{rng.below(500), 10,
                                           Duration(1s) * static_cast<int>(rng.below(3))});
                break;
            case 4:
                world.send(c.id, Lookup{world.ns, 0, NodeWorld::keys(some_key(), 20), 400,
                                        rng.chance(0.5)});
                break;
            default:
                // Another's: refused.
                if (!c.leases.empty()) world.send(someone().id, Release{LeaseId{rng.below(500)}});
        }
    }

    void run(int steps) {
        for (int i = 0; i < steps; ++i) {
            const std::uint64_t what = rng.below(100);
            if (what < 20) {
                reserve();
            } else if (what < 38) {
                commit();
            } else if (what < 52) {
                get();
            } else if (what < 85) {
                effect();
            } else if (what < 95) {
                other();
            } else if (what < 98) {
                world.advance(Duration(100ms) * static_cast<int>(rng.below(50)));
            } else if (what < 99) {
                die();
            } else {
                world.step(SsdWritable{rng.chance(0.7)});
            }
            collect();
            if (testing::Test::HasFatalFailure()) return;
            if (i % 16 == 0) world.node->check_invariants();
        }
    }

    void end() {
        for (const Client& c : clients) world.step(ClientGone{c.id});
        world.step(SsdWritable{true});
        for (int i = 0; i < 200; ++i) {
            world.run_effects();
            world.advance(1s);
        }
        world.expect_nothing_held();
        EXPECT_EQ(world.node->held().append_queue, 0U);
    }

    Prng rng;
    bool roomy_;
    NodeWorld world;
    std::uint64_t universe = 0;
    std::vector<Client> clients;
    std::vector<Asked> asked;
    std::set<std::uint64_t> committed;
};

TEST(NodeModel, WithRoomForAllNothingIsLost) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(seed);
        Play play(seed, true, seed % 2 == 0);
        play.run(2500);
        if (HasFatalFailure()) return;
        EXPECT_EQ(play.world.node->held().blocks, play.committed.size());
        EXPECT_GT(play.committed.size(), 50U);
        play.end();
    }
}

TEST(NodeModel, UnderPressureWhatIsGivenIsRight) {
    for (std::uint64_t seed = 11; seed <= 18; ++seed) {
        SCOPED_TRACE(seed);
        Play play(seed, false, seed % 4 != 0);
        play.run(2500);
        if (HasFatalFailure()) return;
        EXPECT_GT(play.world.node->counters().evictions[0], 50U);
        play.end();
    }
}

}  // namespace
}  // namespace nereid::kv
