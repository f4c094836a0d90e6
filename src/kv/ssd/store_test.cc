#include "kv/ssd/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kv/ssd/store_testing.h"

namespace nereid::kv::ssd {
namespace {

using io::run_in;
using io::Task;
using StorePtr = std::unique_ptr<SegmentStore>;

StoreOptions small(const std::string& root) {
    return {.folder = root,
            .capacity_bytes = 64 << 20,
            .segment_bytes = 2 << 20,
            .batch_bytes = 256 << 10,
            .writes_in_flight = 4,
            .queue_bytes = 16 << 20};
}

Task<Result<Location>> put(io::Loop& loop, SegmentStore& store, std::uint64_t key,
                           std::size_t bytes, Duration ttl = 72h, std::uint32_t depth = 0) {
    const std::string text = payload_of(key, bytes);
    Block block(text);
    co_return co_await store.append(info_for(key, text, loop.wall_now(), ttl, depth),
                                    block.bytes());
}
Task<Code> check(SegmentStore& store, std::uint64_t key, std::size_t bytes, Location at) {
    Block block(bytes);
    const auto r = co_await store.read(at, object_key(ns_of(1), key_of(key), ObjectKind::kHistory),
                                       block.bytes());
    if (!r.ok()) co_return r.code();
    EXPECT_EQ(r->length, bytes);
    EXPECT_EQ(r->key, key_of(key));
    co_return block.text() == payload_of(key, bytes) ? Code::kConflict : Code::kInternal;
}
constexpr Code kGood = Code::kConflict;  // of check(): no read says it

std::size_t size_for(std::uint64_t key) {
    switch (key % 5) {
        case 0:
            return 1 + key % 100;
        case 1:
            return 64 << 10;
        case 2:
            return 300'000;  // paged
        case 3:
            return kPagedFrom;
        default:
            return 4096 - kRecordFixedBytes + key % 3;  // around a page's end
    }
}

template <class World>
class SegmentStoreTest : public testing::Test {
  protected:
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    World world_;
};
using Worlds = testing::Types<SimStoreWorld, UringStoreWorld, ThreadStoreWorld>;
TYPED_TEST_SUITE(SegmentStoreTest, Worlds);

// Several segments, many writes in flight, then everything once more after a restart: sealed, or
// killed in the middle.
TYPED_TEST(SegmentStoreTest, ReadsWhatWasWrittenAlsoAfterARestart_K17_K34) {
    this->run([&]() -> Task<void> {
        auto& w = this->world_;
        std::map<std::uint64_t, Location> where;
        for (const bool sealed : {true, false}) {
            StorePtr store = *co_await SegmentStore::open(w.loop, w.disk(), small(w.root));
            while (!(*co_await store->scan_next()).done) {
            }
            const std::uint64_t first = sealed ? 0 : 60;
            int left = 0;
            for (std::uint64_t key = first; key < first + 60; ++key) {
                ++left;
                w.loop.spawn([](auto& world, SegmentStore& s, std::uint64_t k,
                                std::map<std::uint64_t, Location>& out, int& count) -> Task<void> {
                    const auto at = co_await put(world.loop, s, k, size_for(k));
                    EXPECT_TRUE(at.ok());
                    if (at.ok()) out[k] = *at;
                    --count;
                }(w, *store, key, where, left));
            }
            while (left > 0) co_await w.loop.sleep_for(1ms);
            for (std::uint64_t key = first; key < first + 60; ++key)
                EXPECT_EQ(co_await check(*store, key, size_for(key), where[key]), kGood) << key;
            EXPECT_GT(store->stats().used_bytes, 6U << 20);
            if (sealed) co_await store->close();
            co_await store->quiesce();
        }
        StorePtr store = *co_await SegmentStore::open(w.loop, w.disk(), small(w.root));
        std::map<ObjectKey, Location> found;
        for (bool done = false; !done;) {
            const auto batch = *co_await store->scan_next();
            done = batch.done;
            for (const auto& e : batch.entries) found[e.key] = e.location;
        }
        EXPECT_EQ(found.size(), 120U);
        EXPECT_EQ(store->stats().records, 120U);
        for (std::uint64_t key = 0; key < 120; ++key) {
            const auto at = found[object_key(ns_of(1), key_of(key), ObjectKind::kHistory)];
            EXPECT_EQ(co_await check(*store, key, size_for(key), at), kGood) << key;
        }
        EXPECT_EQ(store->stats().corrupt, 0U);
        // And appends go on behind it.
        const auto at = co_await put(w.loop, *store, 500, 5000);
        EXPECT_EQ(co_await check(*store, 500, 5000, *at), kGood);
        co_await store->quiesce();
    });
}

TYPED_TEST(SegmentStoreTest, WhatIsAskedForIsCompared_K2) {
    this->run([&]() -> Task<void> {
        auto& w = this->world_;
        StorePtr store = *co_await SegmentStore::open(w.loop, w.disk(), small(w.root));
        const auto a = *co_await put(w.loop, *store, 1, 5000);
        const auto b = *co_await put(w.loop, *store, 2, 300'000);
        EXPECT_EQ(co_await check(*store, 2, 5000, a), Code::kNotFound);
        EXPECT_EQ(co_await check(*store, 1, 300'000, b), Code::kNotFound);
        EXPECT_EQ(co_await check(*store, 1, 4999, a), Code::kInvalidArgument);
        EXPECT_EQ(co_await check(*store, 2, 300'001, b), Code::kInvalidArgument);
        EXPECT_EQ(co_await check(*store, 1, 5000, {Tier::kSsd, 0xffffff0001}), Code::kNotFound);
        EXPECT_EQ(co_await check(*store, 1, 5000, {Tier::kDram, a.value}), Code::kNotFound);
        // Same key, another namespace or kind.
        Block block(5000);
        EXPECT_EQ((co_await store->read(a, object_key(ns_of(2), key_of(1), ObjectKind::kHistory),
                                        block.bytes()))
                      .code(),
                  Code::kNotFound);
        EXPECT_EQ((co_await store->read(a, object_key(ns_of(1), key_of(1), ObjectKind::kState),
                                        block.bytes()))
                      .code(),
                  Code::kNotFound);
        // A payload that changed between its CRC and the write is not acknowledged.
        const std::string text = payload_of(3, 5000);
        Block changed(text);
        changed.bytes()[17] ^= 4;
        EXPECT_EQ(
            (co_await store->append(info_for(3, text, w.loop.wall_now(), 1h), changed.bytes()))
                .code(),
            Code::kCorrupt);
        EXPECT_EQ((co_await store->append(info_for(3, "", w.loop.wall_now(), 1h), {})).code(),
                  Code::kInvalidArgument);
        co_await store->quiesce();
    });
}

TYPED_TEST(SegmentStoreTest, OneNodePerFolder_K10) {
    this->run([&]() -> Task<void> {
        auto& w = this->world_;
        StorePtr store = *co_await SegmentStore::open(w.loop, w.disk(), small(w.root));
        EXPECT_EQ((co_await SegmentStore::open(w.loop, w.disk(), small(w.root))).code(),
                  Code::kConflict);
        store.reset();
        EXPECT_TRUE((co_await SegmentStore::open(w.loop, w.disk(), small(w.root))).ok());
    });
}

// ------------------------------------------------------------------ on the simulated disk

class StoreSim : public testing::Test {
  protected:
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    Task<void> open(StoreOptions options) {
        store_.reset();
        store_ = *co_await SegmentStore::open(world_.loop, world_.view, std::move(options));
        store_->set_listener(&listener_);
        while (!(*co_await store_->scan_next()).done) {
        }
    }
    Task<void> sleep_to(WallTime at) {
        co_await world_.loop.sleep_for(at.since_epoch - world_.loop.wall_now().since_epoch);
    }
    WallTime now() { return world_.loop.wall_now(); }
    static ObjectKey name(std::uint64_t key) {
        return object_key(ns_of(1), key_of(key), ObjectKind::kHistory);
    }
    SimStoreWorld world_;
    Listener listener_;
    StorePtr store_;
};

TEST_F(StoreSim, ExpiryIsBySegment) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        const auto a = *co_await put(world_.loop, *store_, 1, 5000, 24h);
        const auto b = *co_await put(world_.loop, *store_, 2, 5000, 72h);
        co_await world_.loop.sleep_for(2h);
        co_await store_->tick(now());
        co_await store_->quiesce();
        EXPECT_EQ((co_await world_.view.list("/kv"))->size(), 3U);
        co_await world_.loop.sleep_for(21h);
        co_await store_->tick(now());
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), kGood);  // never early
        co_await world_.loop.sleep_for(2h);
        co_await store_->tick(now());
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), Code::kNotFound);
        EXPECT_EQ(co_await check(*store_, 2, 5000, b), kGood);
        EXPECT_EQ(listener_.gone.size(), 1U);
        EXPECT_EQ(listener_.gone.at(0).first.key, name(1));
        EXPECT_EQ(listener_.gone.at(0).first.location, a);
        EXPECT_EQ(listener_.gone.at(0).second, GoneCause::kExpired);
        EXPECT_EQ((co_await world_.view.list("/kv"))->size(), 2U);
        // A node that was down meanwhile does not bring it back.
        co_await store_->quiesce();
        co_await world_.loop.sleep_for(72h);
        co_await open(small("/kv"));
        EXPECT_EQ(store_->stats().records, 1U);
        co_await store_->tick(now());
        EXPECT_EQ(store_->stats().records, 0U);
        EXPECT_EQ((co_await world_.view.list("/kv"))->size(), 1U);
    });
}

TEST_F(StoreSim, HitsInTheFinalQuarterAreCopiedForwardHeadFirst) {
    run([&]() -> Task<void> {
        auto options = small("/kv");
        options.forward_share = 0.1;
        options.seal_after = 10min;
        co_await open(options);
        std::map<std::uint64_t, Location> at;
        // Depth runs against the order of the appends.
        for (std::uint64_t k = 0; k < 40; ++k) {
            at[k] = *co_await put(world_.loop, *store_, k, 40'000, 100h,
                                  static_cast<std::uint32_t>(100 - k));
        }
        const WallTime begin = now();
        for (std::uint64_t k = 0; k < 5; ++k) store_->touch(at[k], now());  // too early to count
        co_await world_.loop.sleep_for(20min);
        co_await store_->tick(now());
        co_await sleep_to({begin.since_epoch + 80h});
        for (std::uint64_t k = 20; k < 30; ++k) store_->touch(at[k], now());
        co_await sleep_to({begin.since_epoch + 100h + 50min});
        co_await store_->tick(now());
        co_await world_.loop.sleep_for(1h);
        co_await store_->tick(now());
        std::set<ObjectKey> moved;
        for (const auto& m : listener_.moved) {
            moved.insert(m.key);
            EXPECT_TRUE(expired(expiry_hour(begin, 190h), m.expiry));
        }
        // 29 is the least deep of those that were hit; a tenth of 1.6 MB, once for what was written
        // and once for a turn of its life, is 7 or 8 blocks.
        const std::size_t n = moved.size();
        EXPECT_GE(n, 6U);
        EXPECT_LE(n, 9U);
        EXPECT_EQ(store_->stats().budget_overruns, 10 - n);
        EXPECT_EQ(listener_.gone.size(), 40 - n);
        for (std::uint64_t k = 29; k > 29 - n; --k) {
            const auto it = std::ranges::find(listener_.moved, name(k), &Listener::Moved::key);
            EXPECT_NE(it, listener_.moved.end()) << k;
            if (it == listener_.moved.end()) continue;
            EXPECT_EQ(it->from, at[k]);
            EXPECT_EQ(co_await check(*store_, k, 40'000, it->to), kGood);
            EXPECT_EQ(co_await check(*store_, k, 40'000, it->from), Code::kNotFound);
        }
        co_await store_->quiesce();
    });
}

// What was hit before a restart, sealed or killed, is still copied forward after it.
TEST_F(StoreSim, HitsOutliveARestart) {
    run([&]() -> Task<void> {
        auto options = small("/kv");
        options.forward_share = 4;
        options.seal_after = 10min;
        co_await open(options);
        std::map<std::uint64_t, Location> at;
        for (std::uint64_t k = 0; k < 20; ++k)
            at[k] = *co_await put(world_.loop, *store_, k, 40'000, 100h, 0);
        const WallTime begin = now();
        co_await world_.loop.sleep_for(20min);
        co_await store_->tick(now());
        co_await sleep_to({begin.since_epoch + 80h});
        for (std::uint64_t k = 3; k < 6; ++k) store_->touch(at[k], now());
        co_await store_->tick(now());  // written down
        store_->touch(at[6], now());
        co_await store_->close();  // and this one here
        store_.reset();
        co_await open(options);
        co_await sleep_to({begin.since_epoch + 100h + 50min});
        co_await store_->tick(now());
        std::set<ObjectKey> moved;
        for (const auto& m : listener_.moved) moved.insert(m.key);
        EXPECT_EQ(moved, (std::set<ObjectKey>{name(3), name(4), name(5), name(6)}));
        co_await store_->quiesce();
    });
}

// Three turns of a TTL under steady puts, a tenth of what is kept is hit late in its life.
TEST_F(StoreSim, WriteAmplificationOverATurn) {
    run([&]() -> Task<void> {
        auto options = small("/kv");
        options.capacity_bytes = 512 << 20;
        options.seal_after = 4h;
        co_await open(options);
        constexpr std::size_t kBytes = 114'048;  // V4.1-Flash
        std::map<ObjectKey, std::pair<std::uint64_t, Location>> live;
        Prng rng(5);
        std::uint64_t key = 0;
        std::size_t seen = 0;
        for (int hour = 0; hour < 3 * 24; ++hour) {
            for (int i = 0; i < 6; ++i) {
                ++key;
                const auto at = co_await put(world_.loop, *store_, key, kBytes, 24h);
                EXPECT_TRUE(at.ok());
                live[name(key)] = {key, *at};
            }
            co_await world_.loop.sleep_for(1h);
            for (const auto& [k, v] : live)
                if (rng.chance(0.02)) store_->touch(v.second, now());
            co_await store_->tick(now());
            for (; seen < listener_.moved.size(); ++seen) {
                const auto& m = listener_.moved[seen];
                live[m.key].second = m.to;
            }
            for (const auto& [e, cause] : listener_.gone) {
                const auto it = live.find(e.key);
                if (it != live.end() && it->second.second == e.location) live.erase(it);
            }
            listener_.gone.clear();
        }
        const SsdStats s = store_->stats();
        EXPECT_GT(listener_.moved.size(), 8U);
        const double amplification =
            static_cast<double>(s.written_bytes) / static_cast<double>(s.payload_bytes);
        RecordProperty("write_amplification", std::to_string(amplification));
        EXPECT_LE(amplification, 1.1);
        EXPECT_GE(amplification, 1.0);
        for (const auto& [k, v] : live)
            EXPECT_EQ(co_await check(*store_, v.first, kBytes, v.second), kGood);
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, WhatHasNoRoomGoesByTheEarliestExpiry) {
    run([&]() -> Task<void> {
        auto options = small("/kv");
        options.capacity_bytes = 16 << 20;  // 16 segments of 1 MiB
        co_await open(options);
        std::map<std::uint64_t, Location> at;
        for (std::uint64_t k = 0; k < 60; ++k) {
            const auto r = co_await put(world_.loop, *store_, k, 500'000, k % 2 == 0 ? 24h : 72h);
            EXPECT_TRUE(r.ok()) << k;
            at[k] = *r;
        }
        EXPECT_LE(store_->stats().used_bytes, 16U << 20);
        EXPECT_GT(listener_.gone.size(), 20U);
        for (const auto& [e, cause] : listener_.gone) EXPECT_EQ(cause, GoneCause::kSpace);
        // All short-lived ones had to go before the first long-lived one.
        int good_long = 0;
        for (std::uint64_t k = 0; k < 60; ++k) {
            if (co_await check(*store_, k, 500'000, at[k]) == kGood && k % 2 == 1) ++good_long;
        }
        EXPECT_GE(good_long, 22);
        EXPECT_TRUE(listener_.writable.empty());
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, AFullDeviceStopsWritesAndTheyComeBack_K1) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        const auto a = *co_await put(world_.loop, *store_, 1, 5000);
        world_.sim.set_capacity(world_.sim.used() + 1000);
        const auto full = co_await put(world_.loop, *store_, 2, 5000, 24h);
        EXPECT_EQ(full.code(), Code::kNoSpace);
        EXPECT_EQ(listener_.writable, std::vector<bool>{false});
        EXPECT_EQ((co_await put(world_.loop, *store_, 3, 5000)).code(), Code::kNoSpace);
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), kGood);
        co_await store_->tick(now());
        EXPECT_EQ(listener_.writable, std::vector<bool>{false});
        world_.sim.set_capacity(ByteCount{1} << 40);
        co_await world_.loop.sleep_for(11s);
        co_await store_->tick(now());
        EXPECT_EQ(listener_.writable, (std::vector{false, true}));
        const auto again = co_await put(world_.loop, *store_, 2, 5000, 24h);
        EXPECT_TRUE(again.ok());
        EXPECT_EQ(co_await check(*store_, 2, 5000, *again), kGood);
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, AFailingDeviceIsAMissAndTheNodeLives_K1_K5) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        const auto a = *co_await put(world_.loop, *store_, 1, 5000);
        world_.sim.fail_operations(1);
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), Code::kIo);
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), kGood);
        world_.sim.fail_operations(1);
        EXPECT_EQ((co_await put(world_.loop, *store_, 2, 5000)).code(), Code::kIo);
        const auto b = co_await put(world_.loop, *store_, 2, 5000);  // in another segment
        EXPECT_TRUE(b.ok());
        EXPECT_EQ(co_await check(*store_, 2, 5000, *b), kGood);
        EXPECT_TRUE(listener_.writable.empty());
        world_.sim.fail_operations(1'000'000);
        for (std::uint64_t k = 10; k < 14; ++k)
            EXPECT_EQ((co_await put(world_.loop, *store_, k, 5000)).code(), Code::kIo);
        EXPECT_EQ(listener_.writable, std::vector<bool>{false});
        world_.sim.fail_operations(0);
        EXPECT_EQ(co_await check(*store_, 1, 5000, a), kGood);
        EXPECT_GE(store_->stats().io_errors, 4U);
        co_await store_->quiesce();
        // The footer of the failed one holds what was good.
        co_await store_->close();
        co_await open(small("/kv"));
        EXPECT_EQ(store_->stats().records, 2U);
    });
}

// Every bit of header and payload, small and paged: a flipped one is a miss and is counted.
TEST_F(StoreSim, EveryFlippedBitIsFound_K2_K11_K12) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        const auto a = *co_await put(world_.loop, *store_, 1, 150);
        const auto b = *co_await put(world_.loop, *store_, 2, kPagedFrom);
        const std::string path = "/kv/" + segment_name(1);
        auto file = *co_await world_.view.open(path, io::OpenMode::kReadWrite);
        std::uint64_t found = 0;
        const auto flip = [&](std::uint64_t at, int bit) -> Task<void> {
            char c = 0;
            EXPECT_TRUE((co_await file->read_at(std::span(&c, 1), at)).ok());
            c = static_cast<char>(c ^ (1 << bit));
            EXPECT_TRUE((co_await file->write_at(std::span<const char>(&c, 1), at)).ok());
        };
        const std::uint64_t first = (a.value & 0xffff) * kPage;
        for (std::uint64_t i = 0; i < kRecordFixedBytes + 150; ++i) {
            for (int bit = 0; bit < 8; ++bit) {
                co_await flip(first + i, bit);
                const Code code = co_await check(*store_, 1, 150, a);
                EXPECT_EQ(code, Code::kCorrupt) << i << " " << bit;
                ++found;
                co_await flip(first + i, bit);
            }
        }
        const std::uint64_t second = (b.value & 0xffff) * kPage;
        for (std::uint64_t i = 0; i < kRecordFixedBytes; ++i) {
            co_await flip(second + i, static_cast<int>(i % 8));
            EXPECT_EQ(co_await check(*store_, 2, kPagedFrom, b), Code::kCorrupt) << i;
            ++found;
            co_await flip(second + i, static_cast<int>(i % 8));
        }
        Prng rng(2);
        for (int i = 0; i < 200; ++i) {
            const auto at = second + kPage + rng.below(kPagedFrom);
            const auto bit = static_cast<int>(rng.below(8));
            co_await flip(at, bit);
            EXPECT_EQ(co_await check(*store_, 2, kPagedFrom, b), Code::kCorrupt);
            ++found;
            co_await flip(at, bit);
        }
        EXPECT_EQ(store_->stats().corrupt, found);
        EXPECT_EQ(co_await check(*store_, 1, 150, a), kGood);
        EXPECT_EQ(co_await check(*store_, 2, kPagedFrom, b), kGood);
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, ScrubFindsRot) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        for (std::uint64_t k = 0; k < 30; ++k)
            static_cast<void>(co_await put(world_.loop, *store_, k, 200'000));
        co_await store_->close();
        co_await open(small("/kv"));
        EXPECT_TRUE(world_.sim.flip_bits("/kv/" + segment_name(2), 1));
        std::uint64_t records = 0;
        std::uint64_t corrupt = 0;
        for (bool done = false; !done;) {
            const auto r = co_await store_->scrub_next();
            records += r.records;
            corrupt += r.corrupt;
            done = r.wrapped;
        }
        EXPECT_EQ(records, 30U);
        EXPECT_LE(corrupt, 1U);  // or it hit what no record covers
        EXPECT_EQ(listener_.gone.size(), corrupt);
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, TheQueueIsBounded) {
    run([&]() -> Task<void> {
        auto options = small("/kv");
        options.queue_bytes = 100'000;
        co_await open(options);
        int ok = 0;
        int refused = 0;
        for (std::uint64_t k = 0; k < 30; ++k) {
            world_.loop.spawn([](io::Loop& loop, SegmentStore& store, std::uint64_t n, int& good,
                                 int& bad) -> Task<void> {
                const auto r = co_await put(loop, store, n, 20'000);
                ++(r.ok() ? good : bad);
                if (!r.ok()) {
                    EXPECT_EQ(r.code(), Code::kOverloaded);
                }
            }(world_.loop, *store_, k, ok, refused));
        }
        while (ok + refused < 30) co_await world_.loop.sleep_for(1ms);
        EXPECT_EQ(ok, 5);
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, SegmentsOfAnotherFolderStayAndDamagedOnesGo) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        static_cast<void>(co_await put(world_.loop, *store_, 1, 5000));
        co_await store_->close();
        auto other = small("/other");
        co_await open(other);
        static_cast<void>(co_await put(world_.loop, *store_, 2, 5000));
        co_await store_->close();
        store_.reset();
        EXPECT_TRUE(
            (co_await world_.view.rename("/kv/" + segment_name(1), "/other/" + segment_name(7)))
                .ok());
        auto junk = *co_await world_.view.open("/other/" + segment_name(5), io::OpenMode::kCreate);
        EXPECT_TRUE((co_await junk->write_at(std::string(20'000, 'j'), 0)).ok());
        co_await open(other);
        EXPECT_EQ(store_->stats().records, 1U);
        EXPECT_EQ(*co_await world_.view.list("/other"),
                  (std::vector{segment_name(1), segment_name(7), std::string("superblock")}));
        // New segments do not take the name of what lies there.
        EXPECT_TRUE((co_await put(world_.loop, *store_, 3, 5000)).ok());
        co_await store_->quiesce();
    });
}

TEST_F(StoreSim, LayerMapIsInTheHeaderOfPagedRecords) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        store_->set_layer_map(ns_of(1), {{.layer = 0, .role = {'k', 0}, .length = 100'000},
                                         {.layer = 0, .role = {'v', 0}, .length = 200'000}});
        const auto a = *co_await put(world_.loop, *store_, 1, 300'000);
        const auto b = *co_await put(world_.loop, *store_, 2, 300'001);  // not that layout
        EXPECT_EQ(co_await check(*store_, 1, 300'000, a), kGood);
        EXPECT_EQ(co_await check(*store_, 2, 300'001, b), kGood);
        auto file = *co_await world_.view.open("/kv/" + segment_name(1), io::OpenMode::kRead);
        std::string page(kPage, '\0');
        EXPECT_TRUE((co_await file->read_at(page, (a.value & 0xffff) * kPage)).ok());
        const auto r = decode_record_header(page);
        EXPECT_EQ(r->slices, 2U);
        EXPECT_EQ(record_slices(page, *r)[1].length, 200'000U);
        co_await store_->quiesce();
    });
}

// Destroying what waits leaves nothing behind but the write itself.
TEST_F(StoreSim, AnAppendThatNobodyWaitsForAnyMore) {
    run([&]() -> Task<void> {
        co_await open(small("/kv"));
        const std::string text = payload_of(9, 300'000);
        Block block(text);
        auto task = store_->append(info_for(9, text, now(), 24h), block.bytes()).release();
        task.resume();
        task.destroy();
        co_await store_->quiesce();
        EXPECT_EQ(store_->stats().records, 1U);
        co_await store_->close();
        co_await open(small("/kv"));
        EXPECT_EQ(store_->stats().records, 1U);
    });
}

}  // namespace
}  // namespace nereid::kv::ssd
