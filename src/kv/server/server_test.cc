// The whole surface: a server on a loop of its own, clients through the C ABI.
#include "kv/server/server.h"

#include <gtest/gtest.h>
#include <nereid_kv.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "base/prng.h"
#include "kv/server/node_thread.h"

namespace nereid::kv {
namespace {

constexpr std::uint32_t kLongMs = 60'000;  // no answer takes so long, however busy the machine

class KvServer : public testing::Test {
  protected:
    KvServer() { std::filesystem::create_directories(root_); }
    ~KvServer() override { std::filesystem::remove_all(root_); }
    CacheServerOptions options(bool ssd = false) const {
        CacheServerOptions o;
        o.socket_path = root_ + "/s";
        o.arena_bytes = 32 << 20;
        o.index_entries = 10'000;
        o.huge_pages = false;
        if (ssd) {
            o.ssd.folder = root_ + "/ssd";
            o.ssd.capacity_bytes = 64 << 20;
        }
        return o;
    }
    static std::unique_ptr<NodeThread> start(CacheServerOptions o) {
        auto r = NodeThread::start(std::move(o));
        EXPECT_TRUE(r.ok()) << r.error().message;
        return r.ok() ? std::move(*r) : nullptr;
    }
    static bool until(const std::function<bool()>& done) {
        for (int i = 0; i < 12'000; ++i) {
            if (done()) return true;
            poll(nullptr, 0, 5);
        }
        return false;
    }
    static bool loaded(NodeThread& node) {
        return until([&] { return node.look([](CacheServer& s) { return s.runner().loaded(); }); });
    }
    static bool saved(NodeThread& node) {
        return until([&] {
            return node.look([](CacheServer& s) {
                const NodeHeld h = s.runner().node().held();
                return h.appends + h.append_queue == 0;
            });
        });
    }
    // Everything that clients can hold, until it is nothing.
    static bool nothing_held(NodeThread& node) {
        return until([&] {
            return node.look([](CacheServer& s) {
                const NodeHeld h = s.runner().node().held();
                return h.leases + h.pinned_slots + h.reservations + h.writing_slots +
                           h.waiting_gets + h.followers + h.pollers + s.clients() ==
                       0;
            });
        });
    }
    nereid_kv* connect(std::uint64_t staging = 8 << 20) const {
        nereid_kv* kv = nullptr;
        EXPECT_EQ(nereid_kv_connect((root_ + "/s").c_str(), "test", staging, kLongMs, &kv), 0)
            << nereid_kv_error(nullptr);
        return kv;
    }
    static nereid_kv_namespace ns(std::uint8_t n, std::string_view secret = {}) {
        nereid_kv_namespace out{};
        model::Namespace name;
        name.digest.fill(n);
        std::memset(out.digest, n, 32);
        const auto capability = capability_of(secret, name);
        std::memcpy(out.capability, capability.data(), 32);
        out.history_bytes = kBytes;
        out.block_tokens = 64;
        out.keep_tokens = 1;
        return out;
    }
    int raw_connection() const {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, (root_ + "/s").c_str());
        EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        return fd;
    }
    static std::uint32_t open(nereid_kv* kv, const nereid_kv_namespace& name) {
        std::uint64_t tag = 0;
        nereid_kv_completion c;
        EXPECT_EQ(nereid_kv_submit_open(kv, &name, &tag), 0);
        EXPECT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0) << nereid_kv_error(kv);
        EXPECT_EQ(c.status, 0) << nereid_kv_error(kv);
        return c.ns;
    }
    static nereid_kv_object object(std::uint32_t n) {
        nereid_kv_object o{};
        std::memcpy(o.key.bytes, &n, sizeof n);
        o.key.bytes[15] = 9;
        o.block = n;
        return o;
    }
    static std::string payload(std::uint32_t n) {
        Prng rng(n + 1);
        std::string out(kBytes, '\0');
        for (char& c : out) c = static_cast<char>(rng.next());
        return out;
    }
    static void put(nereid_kv* kv, std::uint32_t name, std::uint32_t n,
                    std::uint8_t expected = NEREID_KV_OBJECT_OK) {
        const auto o = object(n);
        const std::string data = payload(n);
        std::uint8_t status = 99;
        EXPECT_EQ(nereid_kv_put(kv, name, &o, data.data(), kBytes, 0, kLongMs, &status), 0)
            << nereid_kv_error(kv);
        EXPECT_EQ(status, expected);
    }
    // The completion of a get of objects [0, count).
    static nereid_kv_completion get(nereid_kv* kv, std::uint32_t name, std::uint32_t count,
                                    std::uint32_t wait_ms = kLongMs) {
        std::vector<nereid_kv_object> objects;
        for (std::uint32_t i = 0; i < count; ++i) objects.push_back(object(i));
        std::uint64_t tag = 0;
        nereid_kv_completion c{};
        EXPECT_EQ(nereid_kv_submit_get(kv, name, objects.data(), count, kLongMs, wait_ms, 0, &tag),
                  0);
        EXPECT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0) << nereid_kv_error(kv);
        EXPECT_EQ(c.status, 0) << nereid_kv_error(kv);
        return c;
    }
    static void release(nereid_kv* kv, std::uint64_t lease) {
        std::uint64_t tag = 0;
        nereid_kv_completion c;
        EXPECT_EQ(nereid_kv_submit_release(kv, lease, &tag), 0);
        EXPECT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        EXPECT_EQ(c.status, 0) << nereid_kv_error(kv);
    }
    static constexpr std::uint32_t kBytes = 100'000;
    std::string root_ = testing::TempDir() + "nereid-kvs-" + std::to_string(getpid());
};

TEST_F(KvServer, PutLookupGetAcrossClients) {
    const auto node = start(options());
    ASSERT_TRUE(node);
    nereid_kv* a = connect();
    nereid_kv* b = connect(0);  // a reader
    const auto na = open(a, ns(1));
    const auto nb = open(b, ns(1));
    for (std::uint32_t i = 0; i < 5; ++i) put(a, na, i);
    put(a, na, 3, NEREID_KV_OBJECT_EXISTS);

    std::vector<nereid_kv_key> keys;
    for (std::uint32_t i = 0; i < 8; ++i) keys.push_back(object(i).key);
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    ASSERT_EQ(nereid_kv_submit_lookup(b, nb, 0, keys.data(), 8, 8 * 64, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(b, tag, kLongMs, &c), 0);
    EXPECT_EQ(c.blocks, 5U);
    EXPECT_EQ(c.usable_blocks, 5U);
    EXPECT_EQ(c.compute_from, 320U);

    c = get(b, nb, 8);
    EXPECT_EQ(c.contiguous, 5U);
    ASSERT_EQ(c.object_status[5], NEREID_KV_OBJECT_MISS);
    const std::vector<nereid_kv_place> places(c.places, c.places + 5);
    const std::uint64_t lease = c.lease;
    for (std::uint32_t i = 0; i < 5; ++i) {
        const std::string expected = payload(i);
        const void* view = nereid_kv_view(b, &places[i]);
        ASSERT_NE(view, nullptr) << nereid_kv_error(b);
        EXPECT_EQ(std::memcmp(view, expected.data(), kBytes), 0);
        EXPECT_EQ(nereid_kv_valid(b, &places[i]), 0);
        // Scattered: three layers, two pieces each, and news of each layer as it is whole.
        std::string out(kBytes, '\0');
        std::vector<nereid_kv_piece> pieces;
        for (std::uint32_t p = 0; p < 6; ++p) {
            const std::uint64_t at = p * (kBytes / 6);
            pieces.push_back({.to = out.data() + at,
                              .at = at,
                              .length = p == 5 ? kBytes - at : kBytes / 6,
                              .layer = p / 2,
                              .reserved = 0});
        }
        std::vector<std::uint32_t> layers;
        EXPECT_EQ(nereid_kv_copy(
                      b, &places[i], pieces.data(), pieces.size(),
                      [](void* to, std::uint32_t layer) {
                          static_cast<std::vector<std::uint32_t>*>(to)->push_back(layer);
                      },
                      &layers),
                  0);
        EXPECT_EQ(out, expected);
        EXPECT_EQ(layers, (std::vector<std::uint32_t>{0, 1, 2}));
        nereid_kv_piece outside{
            .to = out.data(), .at = kBytes - 1, .length = 2, .layer = 0, .reserved = 0};
        EXPECT_EQ(nereid_kv_copy(b, &places[i], &outside, 1, nullptr, nullptr), NEREID_KV_INVALID);
    }
    // Not from the other handle's lease, and not twice.
    ASSERT_EQ(nereid_kv_submit_release(a, lease, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(a, tag, kLongMs, &c), 0);
    EXPECT_NE(c.status, 0);
    release(b, lease);
    // The arena is not ours to write.
    EXPECT_NE(
        mprotect(const_cast<void*>(nereid_kv_view(b, &places[0])), 4096, PROT_READ | PROT_WRITE),
        0);

    ASSERT_EQ(nereid_kv_submit_stats(b, 0, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(b, tag, kLongMs, &c), 0);
    const auto stats = Json::parse(c.text);
    ASSERT_TRUE(stats.ok()) << c.text;
    nereid_kv_close(a);
    nereid_kv_close(b);
    EXPECT_TRUE(nothing_held(*node));
}

TEST_F(KvServer, ComesBackFromSsd_K17) {
    {
        const auto node = start(options(true));
        ASSERT_TRUE(node);
        nereid_kv* kv = connect();
        const auto n = open(kv, ns(1));
        for (std::uint32_t i = 0; i < 20; ++i) put(kv, n, i);
        nereid_kv_close(kv);
    }
    const auto node = start(options(true));
    ASSERT_TRUE(node);
    ASSERT_TRUE(loaded(*node));
    nereid_kv* kv = connect();
    const auto n = open(kv, ns(1));
    const auto c = get(kv, n, 20);
    ASSERT_EQ(c.contiguous, 20U);
    for (std::uint32_t i = 0; i < 20; ++i) {
        std::string out(kBytes, '\0');
        const nereid_kv_piece whole{
            .to = out.data(), .at = 0, .length = kBytes, .layer = 0, .reserved = 0};
        EXPECT_EQ(nereid_kv_copy(kv, &c.places[i], &whole, 1, nullptr, nullptr), 0);
        EXPECT_EQ(out, payload(i));
    }
    nereid_kv_close(kv);
    EXPECT_TRUE(nothing_held(*node));
}

TEST_F(KvServer, AClearHoldsAfterARestart_K24) {
    for (int run = 0; run < 3; ++run) {
        const auto node = start(options(true));
        ASSERT_TRUE(node);
        ASSERT_TRUE(loaded(*node));
        nereid_kv* kv = connect();
        const auto cleared = open(kv, ns(1));
        const auto other = open(kv, ns(2));
        EXPECT_EQ(get(kv, cleared, 3).contiguous, 0U) << run;
        EXPECT_EQ(get(kv, other, 3).contiguous, run == 0 ? 0U : 3U) << run;
        for (std::uint32_t i = 0; i < 3; ++i) {
            put(kv, cleared, i);
            put(kv, other, i, run == 0 ? NEREID_KV_OBJECT_OK : NEREID_KV_OBJECT_EXISTS);
        }
        EXPECT_EQ(get(kv, cleared, 3).contiguous, 3U);
        ASSERT_TRUE(saved(*node));
        std::uint64_t tag = 0;
        nereid_kv_completion c;
        ASSERT_EQ(nereid_kv_submit_clear(kv, cleared, &tag), 0);
        ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        EXPECT_EQ(c.status, 0);
        EXPECT_EQ(get(kv, cleared, 3).contiguous, 0U);
        nereid_kv_close(kv);
        EXPECT_TRUE(nothing_held(*node));
    }
    // Notes that are damaged may have told of a clear: then nothing is there.
    std::filesystem::resize_file(root_ + "/ssd/notes", 100);
    const auto node = start(options(true));
    ASSERT_TRUE(node);
    ASSERT_TRUE(loaded(*node));
    nereid_kv* kv = connect();
    EXPECT_EQ(get(kv, open(kv, ns(2)), 3).contiguous, 0U);
    nereid_kv_close(kv);
}

TEST_F(KvServer, WhatClientsReportIsCounted) {
    const auto node = start(options());
    nereid_kv* kv = connect();
    nereid_kv_client_counts counts{};
    counts.saved = 3;
    counts.fetch_timeouts = 2;
    counts.troubles = 1;
    ASSERT_EQ(nereid_kv_report(kv, &counts), 0);
    ASSERT_EQ(nereid_kv_report(kv, &counts), 0);
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    ASSERT_EQ(nereid_kv_submit_stats(kv, 0, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
    const std::string text = c.text;
    EXPECT_NE(text.find(R"("saved":6)"), std::string::npos) << text;
    EXPECT_NE(text.find(R"("fetch_timeouts":4)"), std::string::npos) << text;
    EXPECT_NE(text.find(R"("node_given_up":2)"), std::string::npos) << text;
    nereid_kv_close(kv);
}

TEST_F(KvServer, ACapabilityPerNamespace_K43) {
    auto o = options();
    o.secret = "of the node";
    const auto node = start(o);
    nereid_kv* kv = connect();
    open(kv, ns(1, "of the node"));
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    for (const auto& bad : {ns(2), ns(2, "guessed")}) {
        ASSERT_EQ(nereid_kv_submit_open(kv, &bad, &tag), 0);
        ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        EXPECT_EQ(c.status, NEREID_KV_DENIED);
    }
    // A number that nobody gave this client is not a namespace.
    const auto key = object(0).key;
    ASSERT_EQ(nereid_kv_submit_lookup(kv, 77, 0, &key, 1, 0, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
    EXPECT_NE(c.status, 0);
    nereid_kv_close(kv);
}

TEST_F(KvServer, CommitsThatCannotBe) {
    const auto node = start(options());
    nereid_kv* kv = connect();
    const auto n = open(kv, ns(1));
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    const auto reserve = [&](std::uint32_t number) {
        const auto o = object(number);
        EXPECT_EQ(nereid_kv_submit_reserve(kv, n, &o, 1, kLongMs, 0, 0, &tag), 0);
        EXPECT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        EXPECT_EQ(c.object_status[0], NEREID_KV_OBJECT_OK);
        return c.reservations[0];
    };
    const auto commit = [&](nereid_kv_commit_item item) {
        EXPECT_EQ(nereid_kv_submit_commit(kv, &item, 1, &tag), 0);
        EXPECT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        return c.count == 1 ? c.object_status[0] : 255;
    };
    std::uint64_t offset = 0;
    void* to = nereid_kv_stage(kv, kBytes, &offset);
    const std::string data = payload(1);
    std::memcpy(to, data.data(), kBytes);
    const std::uint32_t crc = nereid_kv_crc32c(to, kBytes);
    const auto first = reserve(1);
    EXPECT_NE(commit({.reservation = first, .offset = ~0ULL - 5, .length = kBytes, .crc = crc}), 0);
    const auto second = reserve(2);
    EXPECT_EQ(commit({.reservation = second, .offset = offset, .length = kBytes, .crc = crc + 1}),
              NEREID_KV_OBJECT_CORRUPT);
    const auto third = reserve(3);
    EXPECT_NE(commit({.reservation = third, .offset = offset, .length = kBytes - 1, .crc = crc}),
              0);
    EXPECT_EQ(commit({.reservation = 12345, .offset = offset, .length = kBytes, .crc = crc}),
              NEREID_KV_OBJECT_UNKNOWN);
    const auto good = reserve(4);
    EXPECT_EQ(commit({.reservation = good, .offset = offset, .length = kBytes, .crc = crc}), 0);
    nereid_kv_unstage(kv, offset);
    nereid_kv_close(kv);
    EXPECT_TRUE(nothing_held(*node));
}

// Nonsense, greetings of other kinds, and descriptors that are none: dropped, and nobody else
// notices.
TEST_F(KvServer, HostileConnections_K41) {
    const auto node = start(options());
    nereid_kv* good = connect();
    const auto n = open(good, ns(1));
    Prng rng(3);
    for (int i = 0; i < 60; ++i) {
        const int fd = raw_connection();
        std::string bytes;
        if (i % 3 != 0)
            ASSERT_TRUE(
                wire::encode(wire::Hello{.version = i % 3 == 1 ? 99U : 1U, .client = "x"}, bytes));
        if (i % 3 == 2) {
            const wire::Message messages[] = {
                wire::Region{.region = 0, .bytes = 4096}, wire::Welcome{}, wire::Hello{},
                wire::Call{1, {}, Get{.ns = 5, .objects = {{}}}},
                wire::Call{1, {}, Commit{.items = {{{1}, 7, 0, 10, 0}}}}};
            ASSERT_TRUE(wire::encode(messages[rng.below(5)], bytes));
        }
        if (rng.chance(0.5)) bytes.append(rng.below(300), static_cast<char>(rng.next()));
        if (rng.chance(0.3)) bytes.resize(rng.below(bytes.size() + 1));
        EXPECT_GE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
        if (rng.chance(0.5)) shutdown(fd, SHUT_WR);
        close(fd);
    }
    put(good, n, 1);
    nereid_kv_close(good);
    EXPECT_TRUE(nothing_held(*node));
}

// Answers wait for who does not read them, up to a bound; then it is dropped, and nobody else
// waits.
TEST_F(KvServer, AClientThatDoesNotReadIsDropped) {
    auto o = options();
    o.max_unsent_bytes = 64 << 10;
    const auto node = start(o);
    ASSERT_TRUE(node);
    const int fd = raw_connection();
    std::string bytes;
    ASSERT_TRUE(wire::encode(wire::Hello{.client = "deaf"}, bytes));
    const std::size_t hello = bytes.size();
    ASSERT_TRUE(wire::encode(wire::StatsCall{.tag = 1}, bytes));
    ASSERT_EQ(send(fd, bytes.data(), hello, MSG_NOSIGNAL), static_cast<ssize_t>(hello));
    const std::string question = bytes.substr(hello);
    bool cut = false;
    for (int i = 0; i < 100'000 && !cut; ++i)
        cut = send(fd, question.data(), question.size(), MSG_NOSIGNAL) < 0;
    EXPECT_TRUE(cut);
    EXPECT_TRUE(until([&] {
        return node->look(
            [](CacheServer& s) { return s.counters().dropped_slow == 1 && s.clients() == 0; });
    }));
    close(fd);
    nereid_kv* good = connect();
    put(good, open(good, ns(1)), 1);
    nereid_kv_close(good);
    EXPECT_TRUE(nothing_held(*node));
}

// 1,280 commands under way at once, on few blocks: each is answered once, nothing stays.
TEST_F(KvServer, ManyAtOnce_K36) {
    const auto node = start(options(true));
    constexpr std::size_t kHandles = 40;
    constexpr std::size_t kEach = 32;
    std::vector<nereid_kv*> handles;
    std::vector<std::uint32_t> names;
    for (std::size_t h = 0; h < kHandles; ++h) {
        handles.push_back(connect(0));
        names.push_back(open(handles.back(), ns(1)));
    }
    nereid_kv* writer = connect();
    const auto name = open(writer, ns(1));
    for (std::uint32_t i = 0; i < 8; ++i) put(writer, name, i);
    std::vector<std::vector<std::uint64_t>> tags(kHandles);
    Prng rng(4);
    for (std::size_t i = 0; i < kEach; ++i) {
        for (std::size_t h = 0; h < kHandles; ++h) {
            std::vector<nereid_kv_object> objects;
            for (std::uint32_t b = 0; b < 12; ++b) objects.push_back(object(b));
            std::uint64_t tag = 0;
            const int r = rng.chance(0.2)
                              ? nereid_kv_submit_reserve(handles[h], names[h], &objects[8], 4,
                                                         kLongMs, 0, 0, &tag)
                              : nereid_kv_submit_get(handles[h], names[h], objects.data(), 12,
                                                     kLongMs, 50, NEREID_KV_JOIN_WRITES, &tag);
            ASSERT_EQ(r, 0);
            tags[h].push_back(tag);
        }
    }
    for (std::size_t h = 0; h < kHandles; ++h) {
        for (const std::uint64_t tag : tags[h]) {
            nereid_kv_completion c;
            ASSERT_EQ(nereid_kv_wait(handles[h], tag, kLongMs, &c), 0)
                << nereid_kv_error(handles[h]);
            ASSERT_EQ(c.status, 0) << nereid_kv_error(handles[h]);
            if (c.op == NEREID_KV_OP_GET) EXPECT_GE(c.contiguous, 8U);
        }
    }
    for (nereid_kv* kv : handles) nereid_kv_close(kv);
    nereid_kv_close(writer);
    EXPECT_TRUE(nothing_held(*node));
}

// K28, K29, K30: a client that goes at any point leaves nothing held. (A killed process is a closed
// socket; tests/e2e/test_kv_cache.py kills real ones.)
TEST_F(KvServer, AClientThatGoesAtAnyPointLeavesNothing_K28_K29_K30_K31) {
    const auto node = start(options());
    {
        nereid_kv* kv = connect();
        const auto n = open(kv, ns(1));
        for (std::uint32_t i = 0; i < 4; ++i) put(kv, n, i);
        nereid_kv_close(kv);
    }
    Prng rng(8);
    for (int round = 0; round < 60; ++round) {
        nereid_kv* kv = connect(1 << 20);
        const auto name = ns(1);
        std::uint64_t tag = 0;
        nereid_kv_completion c;
        ASSERT_EQ(nereid_kv_submit_open(kv, &name, &tag), 0);
        ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
        const std::uint32_t n = c.ns;
        for (std::uint64_t steps = rng.below(6); steps > 0; --steps) {
            const auto o = object(static_cast<std::uint32_t>(rng.below(8)));
            switch (rng.below(4)) {
                case 0:
                    nereid_kv_submit_get(kv, n, &o, 1, 60'000, 60'000, NEREID_KV_JOIN_WRITES, &tag);
                    break;
                case 1:
                    nereid_kv_submit_reserve(kv, n, &o, 1, 60'000, 0, NEREID_KV_ATTACH, &tag);
                    break;
                case 2:
                    nereid_kv_submit_subscribe(kv, 0, 10, 60'000, &tag);
                    break;
                default: {
                    std::uint64_t offset = 0;
                    if (nereid_kv_stage(kv, kBytes, &offset) == nullptr) break;
                    const nereid_kv_commit_item item{.reservation = 1 + rng.below(100),
                                                     .offset = offset,
                                                     .length = kBytes,
                                                     .crc = 0};
                    nereid_kv_submit_commit(kv, &item, 1, &tag);
                }
            }
            if (rng.chance(0.5)) nereid_kv_wait(kv, tag, 2, &c);
        }
        nereid_kv_close(kv);
    }
    EXPECT_TRUE(nothing_held(*node));
}

TEST_F(KvServer, CompletionsComeThroughTheDescriptor) {
    const auto node = start(options());
    nereid_kv* kv = connect();
    const auto n = open(kv, ns(1));
    std::uint64_t first = 0;
    std::vector<std::uint64_t> tags(10);
    const auto key = object(0).key;
    for (auto& tag : tags) ASSERT_EQ(nereid_kv_submit_lookup(kv, n, 0, &key, 1, 0, &tag), 0);
    first = tags[0];
    std::vector<std::uint64_t> got;
    while (got.size() < tags.size()) {
        pollfd p{.fd = nereid_kv_fd(kv), .events = POLLIN, .revents = 0};
        ASSERT_EQ(poll(&p, 1, kLongMs), 1);
        std::array<nereid_kv_completion, 3> c;
        const int k = nereid_kv_poll(kv, c.data(), c.size(), 0);
        ASSERT_GE(k, 0);
        for (int i = 0; i < k; ++i) got.push_back(c[static_cast<std::size_t>(i)].tag);
    }
    EXPECT_EQ(got, tags);
    pollfd p{.fd = nereid_kv_fd(kv), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&p, 1, 0), 0);
    nereid_kv_completion c;
    EXPECT_EQ(nereid_kv_poll(kv, &c, 1, 10), 0);
    EXPECT_EQ(nereid_kv_wait(kv, first, 10, &c), NEREID_KV_INVALID);
    // A follower's news come under the tag of its reserve.
    nereid_kv* other = connect();
    const auto n2 = open(other, ns(1));
    const auto o = object(5);
    std::uint64_t tag = 0;
    ASSERT_EQ(nereid_kv_submit_reserve(kv, n, &o, 1, kLongMs, 0, 0, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(kv, tag, kLongMs, &c), 0);
    const std::uint64_t reservation = c.reservations[0];
    std::uint64_t follow = 0;
    ASSERT_EQ(nereid_kv_submit_reserve(other, n2, &o, 1, kLongMs, 0, NEREID_KV_ATTACH, &follow), 0);
    ASSERT_EQ(nereid_kv_wait(other, follow, kLongMs, &c), 0);
    EXPECT_EQ(c.object_status[0], NEREID_KV_OBJECT_IN_FLIGHT);
    ASSERT_EQ(nereid_kv_submit_abort(kv, &reservation, 1, &tag), 0);
    ASSERT_EQ(nereid_kv_wait(other, follow, kLongMs, &c), 0);
    EXPECT_EQ(c.op, NEREID_KV_OP_FLIGHT);
    EXPECT_EQ(c.object_status[0], NEREID_KV_OBJECT_MISS);
    nereid_kv_close(kv);
    nereid_kv_close(other);
    EXPECT_TRUE(nothing_held(*node));
}

TEST_F(KvServer, ANodeThatGoesIsNoCrash_K23) {
    nereid_kv* kv = nullptr;
    EXPECT_EQ(nereid_kv_connect((root_ + "/s").c_str(), "t", 0, 100, &kv), NEREID_KV_UNAVAILABLE);
    EXPECT_EQ(nereid_kv_connect(std::string(200, 'x').c_str(), "t", 0, 100, &kv),
              NEREID_KV_INVALID);
    auto node = start(options());
    kv = connect();
    const auto n = open(kv, ns(1));
    put(kv, n, 0);
    const auto c = get(kv, n, 1);
    const nereid_kv_place place = c.places[0];
    node.reset();
    std::uint64_t tag = 0;
    nereid_kv_completion out;
    const auto key = object(0).key;
    int r = nereid_kv_submit_lookup(kv, n, 0, &key, 1, 0, &tag);
    if (r == 0) r = nereid_kv_wait(kv, tag, kLongMs, &out);
    EXPECT_EQ(r, NEREID_KV_UNAVAILABLE);
    EXPECT_EQ(nereid_kv_poll(kv, &out, 1, 100), NEREID_KV_UNAVAILABLE);
    static_cast<void>(nereid_kv_view(kv, &place));  // the mapping is still ours
    nereid_kv_close(kv);
}

}  // namespace
}  // namespace nereid::kv
