// The link against a real node on a thread of its own, and against things that only look like one.
#include "pools/cache/kv_link.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/prng.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "kv/node/probe.h"
#include "kv/server/node_thread.h"
#include "ops/metrics.h"

namespace nereid::pools {
namespace {

using Fetched = engine::llama::BlockTier::Fetched;
namespace fs = std::filesystem;

constexpr std::size_t kBytes = 300'000;
constexpr Duration kForever = 120s;  // when a test gives up

struct Folder {
    Folder() {
        static int n = 0;
        path = fs::temp_directory_path() /
               ("nereid-kv-link-" + std::to_string(getpid()) + "-" + std::to_string(n++));
        fs::create_directories(path);
    }
    ~Folder() { fs::remove_all(path); }
    std::string socket() const { return path / "kv.sock"; }
    fs::path path;
};

model::Namespace name_space(std::string_view salt) {
    model::NamespaceParts parts;
    parts.salt = salt;
    return model::make_namespace(parts);
}

std::vector<model::BlockKey> chain_of(const model::Namespace& ns, std::size_t blocks, int salt) {
    std::vector<TokenId> tokens(blocks * 64, salt);
    return model::block_chain(ns, tokens, 64);
}

engine::llama::BlockBytes bytes_of(const model::BlockKey& key) {
    auto out = std::make_shared<std::string>(kBytes, '\0');
    Prng prng(key.bytes[0] + 256u * key.bytes[1]);
    for (std::size_t i = 0; i < kBytes; i += 8) {
        const std::uint64_t v = prng.next();
        std::memcpy(out->data() + i, &v, std::min<std::size_t>(8, kBytes - i));
    }
    return out;
}

// No limit that a busy machine could reach; tests that are about one set it.
KvLinkOptions patient() {
    KvLinkOptions o;
    o.fetch_deadline = 60s;
    o.answer_deadline = 60s;
    o.retry = 20ms;
    o.retry_max = 100ms;
    return o;
}

struct World {
    explicit World(bool ssd = false, ByteCount arena = 16 << 20) : arena_bytes(arena) {
        if (ssd) ssd_folder = folder.path / "ssd";
    }
    void start_node(kv::NodeProbe* probe = nullptr) {
        kv::CacheServerOptions o;
        o.socket_path = folder.socket();
        fs::remove(o.socket_path);
        o.arena_bytes = arena_bytes;
        o.index_entries = 10'000;
        o.huge_pages = false;
        o.ssd.folder = ssd_folder;
        o.ssd.capacity_bytes = 256 << 20;
        auto started = kv::NodeThread::start(std::move(o), probe);
        ASSERT_TRUE(started.ok()) << started.error().message;
        node = std::move(*started);
    }
    KvLink& start_link() {
        options.socket = folder.socket();
        link = std::make_unique<KvLink>(loop, options);
        model::KvLayout layout;
        layout.block_tokens = 64;
        layout.block_bytes = kBytes;
        layout.replay_tokens = 64;
        link->open(layout);
        return *link;
    }
    // The link's thread makes things true without waking this loop: look again.
    bool until(const std::function<bool()>& done) {
        const TimePoint deadline = loop.now() + kForever;
        while (!done()) {
            if (loop.now() >= deadline) return false;
            loop.run_until([] { return false; }, 2ms);
        }
        return true;
    }
    bool wait_idle() {
        return until([this] { return link->idle(); });
    }
    void save(const std::vector<model::BlockKey>& chain, const model::Namespace& of) {
        for (std::uint32_t i = 0; i < chain.size(); ++i)
            link->save(of, chain[i], i, bytes_of(chain[i]));
        ASSERT_TRUE(wait_idle());
    }
    // What a fetch of chain[from ..) brings; nullopt: not asked.
    std::optional<Fetched> fetch(const std::vector<model::BlockKey>& chain,
                                 const model::Namespace& of, std::uint32_t from = 0) {
        const RequestId id{++last_id};
        if (!link->fetch({.id = id, .ns = of, .chain = chain, .from = from})) return std::nullopt;
        EXPECT_TRUE(loop.run_until([this] { return link->has_fetched(); }, kForever));
        auto got = link->take();
        EXPECT_EQ(got.size(), 1u);
        EXPECT_EQ(got.at(0).id, id);
        return std::move(got.at(0));
    }
    void expect_right(const Fetched& f, const std::vector<model::BlockKey>& chain) {
        for (std::size_t i = 0; i < f.blocks.size(); ++i)
            EXPECT_EQ(*f.blocks[i], *bytes_of(chain[f.from + i])) << i;
    }

    Folder folder;
    std::string ssd_folder;
    ByteCount arena_bytes;
    KvLinkOptions options = patient();
    io::RealLoop loop;
    std::unique_ptr<kv::NodeThread> node;
    std::unique_ptr<KvLink> link;
    std::uint64_t last_id = 0;
    model::Namespace ns = name_space("tenant");
};

TEST(KvLink, WhatWasSavedComesBackWholeAndInOrder_K6) {
    World w;
    w.start_node();
    KvLink& link = w.start_link();
    const auto chain = chain_of(w.ns, 40, 7);
    w.save(chain, w.ns);
    EXPECT_EQ(link.counters().saved_blocks, 40u);
    const auto all = w.fetch(chain, w.ns);
    ASSERT_TRUE(all.has_value());
    EXPECT_EQ(all->blocks.size(), 40u);
    w.expect_right(*all, chain);
    const auto rest = w.fetch(chain, w.ns, 33);
    EXPECT_EQ(rest->blocks.size(), 7u);
    w.expect_right(*rest, chain);
    // A longer prompt of the same prefix; another; another tenant's (K43).
    auto longer = chain;
    longer.push_back(chain_of(w.ns, 1, 99)[0]);
    EXPECT_EQ(w.fetch(longer, w.ns)->blocks.size(), 40u);
    EXPECT_TRUE(w.fetch(chain_of(w.ns, 3, 8), w.ns)->blocks.empty());
    EXPECT_TRUE(w.fetch(chain, name_space("other"))->blocks.empty());
    // Saved again: nothing is written twice.
    w.save(chain, w.ns);
    EXPECT_EQ(link.counters().saved_blocks, 40u);
    EXPECT_EQ(link.counters().save_failed, 0u);
    EXPECT_EQ(link.counters().fetch_failed + link.counters().fetch_timeouts, 0u);
}

// The link tells the node what it counted at most twice a second; the last of it comes without
// another job, too.
TEST(KvLink, WhatIsCountedLastIsReported) {
    ops::Registry metrics;
    kv::NodeProbe probe(metrics);
    World w;
    w.start_node(&probe);
    w.start_link();
    w.save(chain_of(w.ns, 1, 7), w.ns);
    w.save(chain_of(w.ns, 1, 8), w.ns);
    EXPECT_TRUE(w.until([&] {
        return metrics.render().find("nereid_kv_client_objects_total{outcome=\"saved\"} 2\n") !=
               std::string::npos;
    }));
}

TEST(KvLink, SurvivesTheEngineAndTheNode_K17_K48) {
    World w(true);
    w.start_node();
    w.start_link();
    const auto chain = chain_of(w.ns, 20, 7);
    w.save(chain, w.ns);
    w.link.reset();  // the engine restarts
    w.start_link();
    EXPECT_EQ(w.fetch(chain, w.ns)->blocks.size(), 20u);
    w.node.reset();  // and everything
    w.start_node();
    ASSERT_TRUE(w.until([&] {
        const auto got = w.fetch(chain, w.ns);
        return got.has_value() && got->blocks.size() == 20;
    }));
    const auto got = w.fetch(chain, w.ns);
    w.expect_right(*got, chain);
}

TEST(KvLink, APrefixLargerThanTheArenaComesInPieces) {
    World w(true, 8 << 20);  // 26 blocks
    w.start_node();
    w.start_link();
    const auto chain = chain_of(w.ns, 60, 7);
    // What finds all of memory waiting for the disk is held back, and saved when it is met again.
    std::optional<Fetched> got;
    ASSERT_TRUE(w.until([&] {
        w.save(chain, w.ns);
        got = w.fetch(chain, w.ns);
        return got.has_value() && got->blocks.size() == 60;
    }));
    w.expect_right(*got, chain);
}

TEST(KvLink, NoNodeMeansNoWaiting_K19_K23_K28) {
    World w;
    w.options.retry = w.options.retry_max = 1h;
    KvLink& link = w.start_link();
    const auto chain = chain_of(w.ns, 4, 7);
    // The first one finds out; then nobody waits, until it is time to try again.
    const auto first = w.fetch(chain, w.ns);
    ASSERT_TRUE(first.has_value());
    EXPECT_TRUE(first->blocks.empty());
    EXPECT_FALSE(w.fetch(chain, w.ns).has_value());
    EXPECT_GE(link.counters().skipped, 1u);
    link.save(w.ns, chain[0], 0, bytes_of(chain[0]));
    EXPECT_EQ(link.counters().save_dropped, 1u);
}

// The node comes, it is found; it goes, nobody fails; it comes back.
TEST(KvLink, ANodeThatComesBackIsFound_K23) {
    World w;
    w.start_link();
    const auto chain = chain_of(w.ns, 4, 7);
    for (int i = 0; i < 2; ++i) {
        w.start_node();
        ASSERT_TRUE(w.until([&] {
            w.save(chain, w.ns);
            const auto got = w.fetch(chain, w.ns);
            return got.has_value() && got->blocks.size() == 4;
        }));
        w.node.reset();
        const auto gone = w.fetch(chain, w.ns);
        EXPECT_TRUE(!gone.has_value() || gone->blocks.empty());
    }
}

// Greets like a node, then says nothing.
TEST(KvLink, ASilentNodeCostsOneDeadline_K28_K37) {
    World w;
    w.options.fetch_deadline = 100ms;
    w.options.answer_deadline = 300ms;
    w.options.retry = 1h;
    io::RealNetwork network(w.loop);
    auto listener = network.listen({.host = {}, .port = 0, .unix_path = w.folder.socket()});
    ASSERT_TRUE(listener.ok());
    KvLink& link = w.start_link();
    const auto chain = chain_of(w.ns, 4, 7);
    const auto begin = w.loop.now();
    const auto got = w.fetch(chain, w.ns);
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(got->blocks.empty());
    EXPECT_LT(w.loop.now() - begin, 60s);
    EXPECT_EQ(link.counters().fetch_timeouts, 1u);
    ASSERT_TRUE(w.wait_idle());
    EXPECT_FALSE(w.fetch(chain, w.ns).has_value());  // given up for a while
    EXPECT_EQ(link.counters().troubles, 1u);
}

TEST(KvLink, TheQueueIsBoundedAndACancelledFetchIsNotAnswered) {
    World w;
    w.options.queue_bytes = 5 * kBytes;
    w.start_node();
    KvLink& link = w.start_link();
    const auto chain = chain_of(w.ns, 40, 7);
    for (std::uint32_t i = 0; i < chain.size(); ++i)
        link.save(w.ns, chain[i], i, bytes_of(chain[i]));
    ASSERT_TRUE(w.wait_idle());
    const auto n = link.counters();
    EXPECT_EQ(n.saved_blocks + n.save_dropped, 40u);
    EXPECT_GE(n.saved_blocks, 5u);
    ASSERT_TRUE(link.fetch({.id = {1000}, .ns = w.ns, .chain = chain, .from = 0}));
    link.cancel({1000});
    const auto other = w.fetch(chain, w.ns);
    EXPECT_GE(other->blocks.size(), 5u);
    EXPECT_FALSE(link.has_fetched());
}

TEST(KvLink, AFullNodeIsCounted_K34) {
    World w(false, 4 << 20);  // 13 blocks of memory, no SSD
    w.start_node();
    KvLink& link = w.start_link();
    const auto chain = chain_of(w.ns, 60, 7);
    w.save(chain, w.ns);
    const auto n = link.counters();
    EXPECT_EQ(n.saved_blocks + n.save_failed, 60u);
    const auto got = w.fetch(chain, w.ns);  // tail first: what stayed is a head, if anything
    w.expect_right(*got, chain);
}

TEST(KvLink, DamageOnTheDeviceIsAMiss_K1_K2_K5) {
    World w(true);
    w.start_node();
    w.start_link();
    const auto chain = chain_of(w.ns, 20, 7);
    w.save(chain, w.ns);
    w.link.reset();
    w.node.reset();
    // One flipped bit in the payload of some block, and one file cut.
    std::vector<fs::path> segments;
    for (const auto& e : fs::directory_iterator(w.ssd_folder)) {
        if (e.path().extension() == ".nks") segments.push_back(e.path());
    }
    ASSERT_FALSE(segments.empty());
    for (const auto& path : segments) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(3'000'000);
        char byte = 0;
        f.read(&byte, 1);
        byte = static_cast<char>(byte ^ 0x10);
        f.seekp(3'000'000);
        f.write(&byte, 1);
    }
    w.start_node();
    w.start_link();
    Fetched got;
    ASSERT_TRUE(w.until([&] {
        auto f = w.fetch(chain, w.ns);
        if (f) got = std::move(*f);
        return got.blocks.size() >= 5;
    }));
    EXPECT_LT(got.blocks.size(), 20u);
    w.expect_right(got, chain);
}

}  // namespace
}  // namespace nereid::pools
