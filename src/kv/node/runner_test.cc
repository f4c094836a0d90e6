#include "kv/node/runner.h"

#include <gtest/gtest.h>

#include <map>

#include "base/hash.h"
#include "io/memory_region.h"
#include "io/sim_loop.h"
#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

// An SSD tier in memory that takes its time.
class SlowMemory final : public SsdTier {
  public:
    explicit SlowMemory(io::Loop& loop) : loop_(loop) {}
    void set_listener(SsdListener* l) override { listener = l; }
    io::Task<Result<Location>> append(RecordInfo info,
                                      std::span<const std::uint8_t> payload) override {
        ++flying;
        co_await loop_.sleep_for(2ms);
        --flying;
        const Location at{Tier::kSsd, next++};
        records[at.value] = {info, {payload.begin(), payload.end()}};
        co_return at;
    }
    io::Task<Result<RecordInfo>> read(Location location, ObjectKey expected,
                                      std::span<std::uint8_t> into) override {
        ++flying;
        co_await loop_.sleep_for(3ms);
        --flying;
        const auto it = records.find(location.value);
        if (it == records.end() || it->second.first.object() != expected) {
            co_return err(Code::kNotFound, "another record");
        }
        std::copy(it->second.second.begin(), it->second.second.end(), into.begin());
        co_return it->second.first;
    }
    io::Task<Result<ScanBatch>> scan_next() override {
        co_await loop_.sleep_for(1ms);
        if (scan_fails) co_return err(Code::kIo, "no folder");
        ScanBatch batch;
        auto it = records.upper_bound(scanned);
        for (int n = 0; n < 3 && it != records.end(); ++n, ++it) {
            batch.entries.push_back(
                {it->second.first.object(), {Tier::kSsd, it->first}, it->second.first.expiry, 0});
            scanned = it->first;
        }
        batch.done = it == records.end();
        co_return batch;
    }
    void touch(Location, WallTime) override { ++touches; }
    io::Task<void> tick(WallTime) override {
        ++ticks;
        co_await loop_.sleep_for(10ms);
    }
    io::Task<Result<void>> remember_clear(const model::Namespace& ns, std::uint64_t n) override {
        co_await loop_.sleep_for(1ms);
        if (clear_fails) co_return err(Code::kIo, "no disk");
        clears[ns.digest] = n;
        co_return Result<void>{};
    }
    std::map<Digest256, std::uint64_t> clears;
    bool clear_fails = false;
    io::Task<void> quiesce() override {
        while (flying > 0) co_await loop_.sleep_for(1ms);
    }
    SsdStats stats() const override {
        SsdStats s;
        s.capacity_bytes = 1000;
        s.payload_bytes = 100;
        s.written_bytes = 107;
        s.corrupt = 2;
        return s;
    }

    std::map<std::uint64_t, std::pair<RecordInfo, std::vector<std::uint8_t>>> records;
    SsdListener* listener = nullptr;
    std::uint64_t next = 1;
    std::uint64_t scanned = 0;
    bool scan_fails = false;
    int flying = 0;
    int touches = 0;
    int ticks = 0;

  private:
    io::Loop& loop_;
};

struct World {
    static constexpr std::uint32_t kBytes = 4000;

    World() : ssd(loop), probe(registry) { boot(); }
    ~World() { shut(); }

    void boot() {
        memory = std::move(*io::MemoryRegion::anonymous(1 << 20, false));
        arena = std::move(
            *Arena::create(memory.bytes(), {.page_bytes = 64 << 10, .min_slot_bytes = 4096}));
        index = std::move(*Index::create({.entries = 1000, .huge_pages = false}));
        node = std::make_unique<Node>(NodeOptions{}, *arena, *index);
        NodeRunner::Hooks hooks;
        hooks.reply = [this](Reply r) { replies.push_back(std::move(r)); };
        hooks.staging = [this](ClientId, std::uint32_t region, std::uint64_t offset,
                               std::uint64_t length) -> Result<std::span<const std::uint8_t>> {
            if (region != 0 || offset + length > staging.size()) {
                return err(Code::kInvalidArgument, "outside the region");
            }
            return std::span<const std::uint8_t>(staging).subspan(offset, length);
        };
        runner = std::make_unique<NodeRunner>(loop, *node, &ssd, std::move(hooks), &probe);
        ssd.scanned = 0;
        runner->start();
    }
    void shut() {
        bool done = false;
        loop.spawn([](NodeRunner& r, bool& flag) -> io::Task<void> {
            co_await r.stop();
            flag = true;
        }(*runner, done));
        EXPECT_EQ(scheduler.run_until([&] { return done; }, 10s), io::SimEnd::kDone);
        runner.reset();
        node.reset();
    }
    template <class T>
    T ask(ClientId client, Command command) {
        const std::uint64_t tag = ++tags;
        runner->submit({client, tag, std::move(command)});
        std::optional<Answer> answer;
        scheduler.run_until(
            [&] {
                for (auto& r : replies) {
                    if (r.client == client && r.tag == tag) answer = r.answer;
                }
                return answer.has_value();
            },
            5s);
        return NodeWorld::as<T>(answer);
    }
    void open(ClientId client) {
        ask<NamespaceOpened>(client, OpenNamespace{NodeWorld::namespace_of("a"),
                                                   {.block_tokens = 16, .history_bytes = kBytes},
                                                   1});
    }
    void put(ClientId client, std::uint64_t key) {
        const auto r = ask<Reserved>(client, Reserve{0, NodeWorld::objects(key, 1), 10s});
        const auto bytes = content_of(
            object_key(NodeWorld::namespace_of("a"), test_key(key), ObjectKind::kHistory), kBytes);
        staging = bytes;
        const auto done = ask<Committed>(client, Commit{{{r.ids[0], 0, 0, kBytes, crc32c(bytes)}}});
        EXPECT_EQ(done.status[0], ObjectStatus::kOk);
    }

    io::SimScheduler scheduler{5};
    io::SimLoop loop{scheduler};
    SlowMemory ssd;
    ops::Registry registry;
    NodeProbe probe;
    io::MemoryRegion memory;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Index> index;
    std::unique_ptr<Node> node;
    std::unique_ptr<NodeRunner> runner;
    std::vector<Reply> replies;
    std::vector<std::uint8_t> staging;
    std::uint64_t tags = 0;
};

TEST(NodeRunner, PutWriteBehindRestartGet) {
    World w;
    const ClientId c{1};
    w.open(c);
    for (std::uint64_t key = 0; key < 10; ++key) w.put(c, key);
    w.scheduler.run_for(100ms);
    EXPECT_EQ(w.ssd.records.size(), 10U);
    w.shut();
    w.boot();
    const ClientId d{2};
    w.open(d);
    ASSERT_EQ(w.scheduler.run_until([&] { return w.runner->loaded(); }, 1s), io::SimEnd::kDone);
    EXPECT_EQ(w.runner->scanned(), 10U);
    const Got got = w.ask<Got>(d, Get{0, NodeWorld::objects(0, 12), 10s, 1s});
    EXPECT_EQ(got.contiguous, 10U);
    const auto reader = ArenaReader::open(w.memory.bytes());
    std::vector<std::uint8_t> out(World::kBytes);
    for (std::uint32_t i = 0; i < got.contiguous; ++i) {
        ASSERT_TRUE(reader->copy(got.places[i], out).ok());
        ASSERT_EQ(out, content_of(got.places[i].key, World::kBytes));
    }
    EXPECT_GT(w.ssd.touches, 0);
}

TEST(NodeRunner, StagingOutsideTheRegionIsAFailedCommit) {
    World w;
    const ClientId c{1};
    w.open(c);
    const auto r = w.ask<Reserved>(c, Reserve{0, NodeWorld::objects(0, 1), 10s});
    w.staging.resize(100);
    const auto done = w.ask<Committed>(c, Commit{{{r.ids[0], 0, 0, World::kBytes, 1}}});
    EXPECT_EQ(done.status[0], ObjectStatus::kFailed);
    EXPECT_EQ(w.node->held().writing_slots, 0U);
}

TEST(NodeRunner, TimersEndHoldsWithoutAnyEvent) {
    World w;
    const ClientId c{1};
    w.open(c);
    w.put(c, 0);
    w.ask<Got>(c, Get{0, NodeWorld::objects(0, 1), 300ms});
    EXPECT_EQ(w.node->held().leases, 1U);
    w.scheduler.run_for(290ms);
    EXPECT_EQ(w.node->held().leases, 1U);
    w.scheduler.run_for(20ms);
    EXPECT_EQ(w.node->held().leases, 0U);
    w.scheduler.run_for(3s);
    EXPECT_GE(w.ssd.ticks, 3);
}

TEST(NodeRunner, NewsOfTheTierReachTheNode) {
    World w;
    const ClientId c{1};
    w.open(c);
    w.put(c, 0);
    w.scheduler.run_for(50ms);
    const ObjectKey key = w.ssd.records.at(1).first.object();
    const ScanEntry gone{key, {Tier::kSsd, 1}, 0, 0};
    w.ssd.listener->on_gone({&gone, 1}, GoneCause::kCorrupt);
    w.scheduler.run_for(50ms);
    EXPECT_EQ(w.ssd.records.size(), 2U);  // written again from DRAM
    w.ssd.listener->on_moved(key, {Tier::kSsd, 2}, {Tier::kSsd, 77}, 0);
    w.ssd.listener->on_writable(false);
    Location ssd;
    w.node->list([&](const Node::Listed& l) { ssd = l.ssd; });
    EXPECT_EQ(ssd.value, 77U);
}

TEST(NodeRunner, AScanThatFailsIsToldAndTheNodeServes) {
    World w;
    w.shut();
    w.ssd.scan_fails = true;
    w.boot();
    ASSERT_EQ(w.scheduler.run_until([&] { return w.runner->loaded(); }, 1s), io::SimEnd::kDone);
    EXPECT_EQ(w.runner->load_error().code, Code::kIo);
    w.open(ClientId{3});
    w.put(ClientId{3}, 5);
}

TEST(NodeProbe, ShowsCountersLevelsAndTheCurve) {
    World w;
    const ClientId c{1};
    w.open(c);
    for (std::uint64_t key = 0; key < 3; ++key) w.put(c, key);
    w.ask<Found>(c, Lookup{0, 0, NodeWorld::keys(0, 5), 80});
    w.ask<Got>(c, Get{0, NodeWorld::objects(0, 3), 10s});
    w.scheduler.run_for(2s);
    const std::string text = w.registry.render();
    for (const std::string_view line :
         {"nereid_kv_committed_total 3\n", "nereid_kv_contiguous_hit_tokens_total 48\n",
          "nereid_kv_dram_hits_total 3\n", "nereid_kv_leases 1\n", "nereid_kv_pinned_slots 3\n",
          "nereid_kv_evictions_total{cause=\"quota\"} 0\n",
          "nereid_kv_tier_capacity_bytes{tier=\"ssd\"} 1000\n",
          "nereid_kv_ssd_write_amplification_ratio 1.07\n", "nereid_kv_ssd_corrupt_total 2\n",
          "nereid_kv_lookup_seconds_count 1\n", "nereid_kv_hit_curve_ratio{blocks=\"240\"}"}) {
        EXPECT_NE(text.find(line), std::string::npos) << line << text;
    }
}

}  // namespace
}  // namespace nereid::kv
