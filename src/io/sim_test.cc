// The simulated loop and network: virtual time, seeds, faults. What they share with the real ones
// is in loop_test.cc and stream_test.cc.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "io/channel.h"
#include "io/memory_stream.h"
#include "io/sim_loop.h"
#include "io/sim_network.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

using StreamPtr = std::unique_ptr<Stream>;

Task<Result<void>> write_text(Stream& s, std::string_view text,
                              TimePoint deadline = TimePoint::never()) {
    const std::array pieces{text};
    co_return co_await s.write(pieces, deadline);
}
Task<Result<std::string>> read_exactly(Stream& s, std::size_t bytes) {
    std::string out;
    std::string into(64, '\0');
    while (out.size() < bytes) {
        CO_TRY(const auto n, co_await s.read(into));
        if (n == 0) break;
        out.append(into, 0, n);
    }
    co_return out;
}

TEST(SimLoop, TimeMovesOnlyWhenNothingIsReady) {
    SimScheduler sched(1);
    SimLoop loop(sched);
    bool fired = false;
    loop.arm(TimePoint{5s}, [&] { fired = true; });
    sched.run_for(4s);
    EXPECT_FALSE(fired);
    EXPECT_EQ(loop.now(), TimePoint{4s});
    sched.run_for(1s);
    EXPECT_TRUE(fired);
    EXPECT_EQ(loop.now(), TimePoint{5s});
    EXPECT_EQ(sched.run_until_idle(), SimEnd::kStalled);
}

TEST(SimLoop, DeadlockIsFoundAndTheLimitKept) {
    SimScheduler sched(1);
    SimLoop loop(sched);
    Channel<int> never(loop, 1);
    loop.spawn(
        [](Channel<int>& ch) -> Task<void> { [[maybe_unused]] auto r = co_await ch.pop(); }(never));
    const auto done = [&] { return loop.live_tasks() == 0; };
    EXPECT_EQ(sched.run_until(done, 1h), SimEnd::kStalled);
    loop.arm(TimePoint{2h}, [] {});
    EXPECT_EQ(sched.run_until(done, 1h), SimEnd::kLimit);
    EXPECT_EQ(sched.now(), TimePoint{1h});
}

TEST(SimLoop, PostsOfOneLoopKeepOrderLoopsInterleaveBySeed) {
    std::set<std::string> orders;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SimScheduler sched(seed);
        SimLoop a(sched);
        SimLoop b(sched);
        std::string order;
        for (const char c : {'1', '2', '3'}) a.post([&order, c] { order += c; });
        for (const char c : {'x', 'y', 'z'}) b.post([&order, c] { order += c; });
        sched.run_until_idle();
        std::string of_a, of_b;
        for (const char c : order) (c < 'a' ? of_a : of_b) += c;
        EXPECT_EQ(of_a, "123");
        EXPECT_EQ(of_b, "xyz");
        orders.insert(order);
    }
    EXPECT_GT(orders.size(), 5U);
}

TEST(SimLoop, TimersDueAtOneInstantFireInSeededOrder) {
    std::set<std::string> orders;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SimScheduler sched(seed);
        SimLoop loop(sched);
        std::string order;
        for (const char c : {'1', '2', '3'}) loop.arm(TimePoint{1s}, [&order, c] { order += c; });
        sched.run_until_idle();
        orders.insert(order);
    }
    EXPECT_GT(orders.size(), 2U);
}

TEST(SimLoop, AKilledLoopDropsItsWorkAndOthersGoOn) {
    SimScheduler sched(3);
    SimLoop killer(sched);
    auto victim = std::make_unique<SimLoop>(sched);
    auto token = std::make_shared<int>(0);
    victim->spawn([](Loop& loop, std::shared_ptr<int>) -> Task<void> {
        co_await loop.sleep_for(1h);
    }(*victim, token));
    victim->arm(TimePoint{2s}, [token] { FAIL(); });
    killer.arm(TimePoint{1s}, [&] {
        victim->post([token] { FAIL(); });
        victim.reset();
    });
    sched.run_until_idle();
    EXPECT_EQ(token.use_count(), 1);
    EXPECT_EQ(sched.now(), TimePoint{1s});
}

TEST(SimLoopDeathTest, CallingIntoAnotherProcessWithoutPostIsFound) {
    EXPECT_DEATH(
        {
            SimScheduler sched(1);
            SimLoop a(sched);
            SimLoop b(sched);
            a.post([&] { b.arm(TimePoint{1s}, [] {}); });
            sched.run_until_idle();
        },
        "on_loop_thread");
}

// ------------------------------------------------------------------ network

// Two processes on two hosts; the server echoes.
struct TwoHosts {
    explicit TwoHosts(std::uint64_t seed) : scheduler(seed) {}
    SimScheduler scheduler;
    SimLoop client{scheduler};
    std::unique_ptr<SimLoop> server = std::make_unique<SimLoop>(scheduler);
    SimNetwork net{scheduler, {}};
    SimHost at_client{net, "c", client};
    std::unique_ptr<SimHost> at_server = std::make_unique<SimHost>(net, "s", *server);
    Endpoint to{.host = "s", .port = 80, .unix_path = {}};

    void serve_echo() {
        server->spawn([](SimLoop& loop, SimHost& host, Endpoint at) -> Task<void> {
            auto listener = *host.listen(at);
            for (;;) {
                auto s = co_await listener->accept();
                if (!s.ok()) co_return;
                loop.spawn([](StreamPtr stream) -> Task<void> {
                    std::string into(1000, '\0');
                    for (;;) {
                        const auto n = co_await stream->read(into);
                        if (!n.ok() || *n == 0) co_return;
                        if (!(co_await write_text(*stream, std::string_view(into).substr(0, *n)))
                                 .ok())
                            co_return;
                    }
                }(std::move(*s)));
            }
        }(*server, *at_server, to));
    }
    bool run_until(const std::function<bool()>& done) {
        return scheduler.run_until(done, 1h) == SimEnd::kDone;
    }
};

std::uint64_t traced_run(std::uint64_t seed) {
    TwoHosts w(seed);
    w.serve_echo();
    int done = 0;
    for (int i = 0; i < 5; ++i) {
        w.client.spawn([](TwoHosts& t, int& n) -> Task<void> {
            auto s = co_await t.at_client.connect(t.to, t.client.now() + 10s);
            EXPECT_TRUE(s.ok());
            const std::string text(3000, 'x');
            t.client.spawn([](Stream& stream, const std::string& bytes) -> Task<void> {
                EXPECT_TRUE((co_await write_text(stream, bytes)).ok());
            }(**s, text));
            EXPECT_EQ(*co_await read_exactly(**s, 3000), text);
            t.scheduler.note("done");
            ++n;
        }(w, done));
    }
    EXPECT_TRUE(w.run_until([&] { return done == 5; }));
    return w.scheduler.trace_hash();
}

TEST(SimNetwork, TheSameSeedIsTheSameTrace) {
    EXPECT_EQ(traced_run(11), traced_run(11));
    EXPECT_NE(traced_run(11), traced_run(12));
}

TEST(SimNetwork, PartitionHoldsBytesHealDelivers) {
    TwoHosts w(5);
    w.serve_echo();
    bool done = false;
    w.client.spawn([](TwoHosts& t, bool& flag) -> Task<void> {
        auto s = *co_await t.at_client.connect(t.to, t.client.now() + 1s);
        t.net.partition("s", "c");
        EXPECT_TRUE((co_await write_text(*s, "hello")).ok());
        std::string into(10, '\0');
        EXPECT_EQ((co_await s->read(into, t.client.now() + 10s)).code(), Code::kDeadlineExceeded);
        const auto other = co_await t.at_client.connect(t.to, t.client.now() + 1s);
        EXPECT_EQ(other.code(), Code::kDeadlineExceeded);
        t.net.heal("c", "s");
        EXPECT_EQ(*co_await read_exactly(*s, 5), "hello");
        flag = true;
    }(w, done));
    EXPECT_TRUE(w.run_until([&] { return done; }));
    EXPECT_GT(w.net.counters().held, 0U);
}

TEST(SimNetwork, ResetFailsBothSides) {
    TwoHosts w(5);
    w.serve_echo();
    bool done = false;
    w.client.spawn([](TwoHosts& t, bool& flag) -> Task<void> {
        auto s = *co_await t.at_client.connect(t.to, t.client.now() + 1s);
        t.net.reset("c", "s");
        EXPECT_EQ((co_await read_exactly(*s, 1)).code(), Code::kIo);
        EXPECT_TRUE((co_await s->wait_hangup()).ok());
        EXPECT_EQ((co_await write_text(*s, "x")).code(), Code::kIo);
        flag = true;
    }(w, done));
    EXPECT_TRUE(w.run_until([&] { return done; }));
    w.scheduler.run_for(1s);
    EXPECT_EQ(w.server->live_tasks(), 1U);  // the echo task has ended, the acceptor lives
}

TEST(SimNetwork, AKilledProcessIsAnEndForItsPeersAndRefusesNewOnes) {
    TwoHosts w(5);
    w.serve_echo();
    bool done = false;
    w.client.spawn([](TwoHosts& t, bool& flag) -> Task<void> {
        auto s = *co_await t.at_client.connect(t.to, t.client.now() + 1s);
        EXPECT_TRUE((co_await write_text(*s, "x")).ok());
        EXPECT_EQ(*co_await read_exactly(*s, 1), "x");
        t.at_server.reset();
        t.server.reset();
        EXPECT_EQ(*co_await read_exactly(*s, 1), "");
        EXPECT_EQ((co_await t.at_client.connect(t.to, t.client.now() + 1s)).code(),
                  Code::kUnavailable);
        flag = true;
    }(w, done));
    EXPECT_TRUE(w.run_until([&] { return done; }));
}

TEST(SimNetwork, SlowPairsAreSlow) {
    TwoHosts w(5);
    w.serve_echo();
    w.net.slow("c", "s", 1s);
    bool done = false;
    w.client.spawn([](TwoHosts& t, bool& flag) -> Task<void> {
        auto s = *co_await t.at_client.connect(t.to, t.client.now() + 10s);
        EXPECT_GE(t.client.now(), TimePoint{2s});
        flag = true;
    }(w, done));
    EXPECT_TRUE(w.run_until([&] { return done; }));
}

TEST(SimNetwork, RefusedAcceptsEndInTheCallersDeadlineAndRecover) {
    TwoHosts w(5);
    w.serve_echo();
    w.net.refuse_accepts("s", true);
    bool done = false;
    w.client.spawn([](TwoHosts& t, bool& flag) -> Task<void> {
        EXPECT_EQ((co_await t.at_client.connect(t.to, t.client.now() + 1s)).code(),
                  Code::kDeadlineExceeded);
        t.net.refuse_accepts("s", false);
        EXPECT_TRUE((co_await t.at_client.connect(t.to, t.client.now() + 1s)).ok());
        flag = true;
    }(w, done));
    EXPECT_TRUE(w.run_until([&] { return done; }));
}

// ------------------------------------------------------------------ memory pair

template <class World>
class MemoryPair : public testing::Test {
  protected:
    World world_;
};
TYPED_TEST_SUITE(MemoryPair, LoopWorlds);

TYPED_TEST(MemoryPair, IsAStreamWithBackpressure) {
    run_in(this->world_, [&]() -> Task<void> {
        auto [a, b] = make_memory_pair(this->world_.loop, 100);
        const std::string text(1000, 't');
        EXPECT_EQ((co_await write_text(*a, text, this->world_.loop.now() + 1ms)).code(),
                  Code::kDeadlineExceeded);
        EXPECT_EQ(*co_await read_exactly(*b, 100), std::string(100, 't'));
        EXPECT_TRUE((co_await write_text(*a, "more")).ok());
        a->shutdown_write();
        EXPECT_TRUE((co_await b->wait_hangup()).ok());
        EXPECT_EQ(*co_await read_exactly(*b, 10), "more");
        EXPECT_TRUE((co_await write_text(*b, "back")).ok());
        EXPECT_EQ(*co_await read_exactly(*a, 4), "back");
    });
}

TYPED_TEST(MemoryPair, CloseWithUnreadDataResetsThePeer) {
    run_in(this->world_, [&]() -> Task<void> {
        auto [a, b] = make_memory_pair(this->world_.loop);
        EXPECT_TRUE((co_await write_text(*a, "unread")).ok());
        b->close();
        EXPECT_EQ((co_await read_exactly(*a, 1)).code(), Code::kIo);
    });
}

}  // namespace
}  // namespace nereid::io
