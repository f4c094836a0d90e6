// Clock, Loop, Task, timers, Channel: the same bodies on the real loop and (see sim_loop_test.cc
// for what is its own) on the simulated one.
#include "io/loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/channel.h"
#include "io/real_loop.h"
#include "io/test_worlds.h"
#include "io/timer_heap.h"

namespace nereid::io {
namespace {

template <class World>
class LoopTest : public testing::Test {
  protected:
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    World world_;
    Loop& loop_ = world_.loop;
};
TYPED_TEST_SUITE(LoopTest, LoopWorlds);

Task<int> value_of(int v) { co_return v; }
Task<int> sum_to(int n) {
    int s = 0;
    for (int i = 0; i < n; ++i) s += co_await value_of(1);
    co_return s;
}

TYPED_TEST(LoopTest, MillionImmediateAwaitsDoNotGrowTheStack) {
    int got = 0;
    this->run([&]() -> Task<void> { got = co_await sum_to(1'000'000); });
    EXPECT_EQ(got, 1'000'000);
}

TYPED_TEST(LoopTest, SpawnStartsAtOnceAndEndsAreCounted) {
    int started = 0;
    auto body = [](Loop& loop, int& n) -> Task<void> {
        ++n;
        co_await loop.sleep_for(1ms);
    };
    for (int i = 0; i < 10'000; ++i) this->loop_.spawn(body(this->loop_, started));
    EXPECT_EQ(started, 10'000);
    EXPECT_EQ(this->loop_.live_tasks(), 10'000U);
    ASSERT_TRUE(this->world_.run_until([&] { return this->loop_.live_tasks() == 0; }));
}

TYPED_TEST(LoopTest, TimersFireInOrderAndNotWhenCancelled) {
    std::vector<int> order;
    const TimePoint t = this->loop_.now();
    this->loop_.arm(t + 3ms, [&] { order.push_back(3); });
    const auto gone = this->loop_.arm(t + 2ms, [&] { order.push_back(2); });
    this->loop_.arm(t + 1ms, [&] { order.push_back(1); });
    this->loop_.arm(t + 4ms, [&] { order.push_back(4); });
    this->loop_.cancel(gone);
    this->loop_.cancel(gone);  // again: nothing
    this->loop_.cancel(12345);
    ASSERT_TRUE(this->world_.run_until([&] { return order.size() == 3; }));
    EXPECT_EQ(order, (std::vector{1, 3, 4}));
    EXPECT_GE(this->loop_.now() - t, Duration(4ms));
}

TYPED_TEST(LoopTest, DestroyedLoopDestroysSuspendedTasks) {
    auto token = std::make_shared<int>(1);
    {
        TypeParam world;
        Channel<int> channel(world.loop, 1);
        auto sleeper = [](Loop& loop, std::shared_ptr<int>) -> Task<void> {
            co_await loop.sleep_for(1h);
        };
        auto for_ever = [](Loop& loop, std::shared_ptr<int>) -> Task<void> {
            co_await loop.sleep_until(TimePoint::never());
        };
        auto popper = [](Loop& loop, Channel<int>& ch, std::shared_ptr<int>) -> Task<void> {
            [[maybe_unused]] auto r = co_await ch.pop(loop.now() + 1h);
        };
        auto yielder = [](Loop& loop, std::shared_ptr<int>) -> Task<void> {
            co_await loop.yield();
        };
        world.loop.spawn(sleeper(world.loop, token));
        world.loop.spawn(for_ever(world.loop, token));
        world.loop.spawn(popper(world.loop, channel, token));
        world.loop.spawn(yielder(world.loop, token));
        world.loop.post([token] {});
        EXPECT_EQ(token.use_count(), 6);
    }
    EXPECT_EQ(token.use_count(), 1);
}

TYPED_TEST(LoopTest, ChannelKeepsOrderBoundsAndCloses) {
    Channel<int> channel(this->loop_, 2);
    EXPECT_TRUE(channel.push(1));
    EXPECT_TRUE(channel.push(2));
    EXPECT_FALSE(channel.push(3));
    std::vector<int> got;
    Code end{};
    this->run([&]() -> Task<void> {
        got.push_back(*co_await channel.pop());
        this->loop_.post([&] {
            channel.push(4);
            channel.close();
            EXPECT_FALSE(channel.push(5));
        });
        for (;;) {
            auto r = co_await channel.pop();
            if (!r.ok()) {
                end = r.code();
                break;
            }
            got.push_back(*r);
        }
    });
    EXPECT_EQ(got, (std::vector{1, 2, 4}));
    EXPECT_EQ(end, Code::kCancelled);
}

TYPED_TEST(LoopTest, ChannelPopHasADeadlineAndStaysUsable) {
    Channel<int> channel(this->loop_, 2);
    this->run([&]() -> Task<void> {
        auto late = co_await channel.pop(this->loop_.now() + 1ms);
        EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
        this->loop_.post([&] { channel.push(7); });
        EXPECT_EQ(*co_await channel.pop(this->loop_.now() + 10s), 7);
    });
}

TYPED_TEST(LoopTest, DestroyedChannelCancelsItsConsumer) {
    auto channel = std::make_unique<Channel<int>>(this->loop_, 2);
    this->run([&]() -> Task<void> {
        this->loop_.post([&] { channel.reset(); });
        EXPECT_EQ((co_await channel->pop()).code(), Code::kCancelled);
    });
}

TYPED_TEST(LoopTest, DestroyedConsumerLeavesTheChannelUsable) {
    Channel<int> channel(this->loop_, 4);
    auto pop_once = [](Channel<int>& ch) -> Task<Result<int>> { co_return co_await ch.pop(); };
    {
        // Started by hand, then dropped while it waits and after an item was pushed for it.
        auto task = pop_once(channel);
        auto handle = task.release();
        handle.resume();
        channel.push(1);
        handle.destroy();
    }
    this->run([&]() -> Task<void> { EXPECT_EQ(*co_await channel.pop(), 1); });
}

TYPED_TEST(LoopTest, PostFromOtherThreadsArrives) {
    if constexpr (std::is_same_v<TypeParam, RealWorld>) {
        int count = 0;
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&] {
                for (int i = 0; i < 1000; ++i) this->loop_.post([&] { ++count; });
            });
        }
        EXPECT_TRUE(this->world_.run_until([&] { return count == 4000; }));
        for (auto& t : threads) t.join();
    }
}

TEST(RealLoop, PostedWorkAndDueTimersDoNotStarveEachOther) {
    RealLoop loop;
    int posts = 0;
    bool timer = false;
    std::function<void()> again = [&] {
        ++posts;
        loop.post(again);
    };
    loop.post(again);
    loop.arm(loop.now() + 1ms, [&] { timer = true; });
    EXPECT_TRUE(loop.run_until([&] { return timer; }, 20s));
    EXPECT_GT(posts, 1);
}

TEST(RealLoop, StopFromAnotherThreadEndsRun) {
    RealLoop loop;
    std::thread stopper([&] { loop.stop(); });
    loop.run();
    stopper.join();
    loop.stop();
    loop.run();  // a stop before run() counts
}

TEST(LoopThreads, RunsOnItsOwnThreads) {
    LoopThreads threads(3);
    std::vector<std::thread::id> ids;
    for (std::size_t i = 0; i < threads.size(); ++i) {
        threads.run_on(i, [&] {
            EXPECT_TRUE(threads.loop(i).on_loop_thread());
            ids.push_back(std::this_thread::get_id());
        });
    }
    EXPECT_NE(ids[0], ids[1]);
    EXPECT_NE(ids[1], ids[2]);
    EXPECT_FALSE(threads.loop(0).on_loop_thread());
}

TEST(SignalWatch, CallsBackOnTheLoop) {
    RealLoop loop;
    int seen = 0;
    SignalWatch watch(loop, {SIGHUP, SIGUSR1}, [&](int number) { seen = number; });
    raise(SIGHUP);
    EXPECT_TRUE(loop.run_until([&] { return seen == SIGHUP; }, 20s));
    raise(SIGUSR1);
    EXPECT_TRUE(loop.run_until([&] { return seen == SIGUSR1; }, 20s));
}

// Against the naive model: a sorted multimap.
TEST(TimerHeap, AgreesWithASortedMap) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Prng rng(seed);
        TimerHeap heap;
        std::multimap<TimePoint, int> model;
        std::vector<std::pair<TimerHeap::Id, std::multimap<TimePoint, int>::iterator>> live;
        int next = 0;
        int fired = -1;
        for (int step = 0; step < 3000; ++step) {
            const auto dice = rng.below(10);
            if (dice < 5) {
                const TimePoint at{Duration(static_cast<std::int64_t>(rng.below(50)))};
                const int n = next++;
                const auto it = model.emplace(at, n);
                live.emplace_back(heap.arm(at, [&fired, n] { fired = n; }), it);
            } else if (dice < 8 && !live.empty()) {
                const auto i = rng.below(live.size());
                heap.cancel(live[i].first);
                model.erase(live[i].second);
                live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
            } else if (!model.empty()) {
                ASSERT_EQ(heap.next_at(), model.begin()->first);
                heap.pop()();
                ASSERT_EQ(fired, model.begin()->second);
                std::erase_if(live, [&](const auto& l) { return l.second == model.begin(); });
                model.erase(model.begin());
            }
            ASSERT_EQ(heap.size(), model.size());
        }
    }
}

}  // namespace
}  // namespace nereid::io
