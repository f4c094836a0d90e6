#include "engine/host/engine_host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <vector>

#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/sim_loop.h"
#include "io/sim_network.h"
#include "model/engine_wire.h"

namespace nereid::engine {
namespace {

namespace wire = model::wire;

// One token per request and step; remembers what it was told and when.
class FakeEngine final : public Engine {
  public:
    FakeEngine() {
        info_.engine = "fake";
        info_.max_running = 8;
    }
    const model::EngineInfo& info() const override { return info_; }
    void submit(model::Command command, TimePoint) override {
        if (auto* add = std::get_if<model::AddRequest>(&command))
            left[add->id.value] = add->max_tokens;
        if (auto* abort = std::get_if<model::AbortRequest>(&command)) {
            aborted_at_step[abort->id.value] = steps;
            if (left.erase(abort->id.value) > 0) ended.push_back(abort->id.value);
        }
    }
    bool has_work() const override { return !left.empty(); }
    bool has_output() const override { return !ended.empty() || broken; }
    Result<model::StepFrame> step(TimePoint) override {
        if (broken) return Error{Code::kInternal, "the kernel is on fire"};
        model::StepFrame frame;
        frame.step = {++steps};
        for (const auto id : std::exchange(ended, {}))
            frame.finished.push_back(finished(id, model::EndReason::kAborted));
        for (auto it = left.begin(); it != left.end();) {
            model::TokenOut token;
            token.id = {it->first};
            token.top.resize(top);
            frame.tokens.push_back(token);
            if (--it->second == 0) {
                frame.finished.push_back(finished(it->first, model::EndReason::kLength));
                it = left.erase(it);
            } else {
                ++it;
            }
        }
        return frame;
    }
    static model::Finished finished(std::uint64_t id, model::EndReason reason) {
        model::Finished f;
        f.id = {id};
        f.reason = reason;
        return f;
    }

    std::map<std::uint64_t, TokenCount> left;
    std::map<std::uint64_t, std::uint64_t> aborted_at_step;
    std::vector<std::uint64_t> ended;
    std::uint64_t steps = 0;
    std::size_t top = 0;
    bool broken = false;

  private:
    model::EngineInfo info_;
};

model::AddRequest add(std::uint64_t id, TokenCount tokens) {
    model::AddRequest r;
    r.id = {id};
    r.prompt = {1};
    r.max_tokens = tokens;
    return r;
}

struct SimWorld {
    io::SimScheduler scheduler{11};
    io::SimLoop loop{scheduler};
    io::SimNetwork net{scheduler, {}};
    io::SimHost network{net, "host", loop};
    bool run_until(const std::function<bool()>& done) {
        return scheduler.run_until(done, 1h) == io::SimEnd::kDone;
    }
};
struct RealWorld {
    io::RealLoop loop;
    io::RealNetwork network{loop};
    bool run_until(const std::function<bool()>& done) { return loop.run_until(done, 20s); }
};

// A host with its engine, and clients on the same loop.
template <class World>
class Bench {
  public:
    class Client {
      public:
        Client(Bench& bench, bool reading) : bench_(bench), reading_(reading) {
            bench_.world.loop.spawn(live());
        }
        void send(const wire::Message& m) {
            wire::encode(m, out_);
            if (stream && !writing_) bench_.world.loop.spawn(flush());
        }
        void send_raw(std::string_view bytes) {
            out_ += bytes;
            if (stream && !writing_) bench_.world.loop.spawn(flush());
        }
        void close() { stream->close(); }
        void read_on() { bench_.world.loop.spawn(read()); }
        template <class T>
        std::size_t count() const {
            std::size_t n = 0;
            for (const auto& m : received) n += std::holds_alternative<T>(m);
            return n;
        }
        std::size_t tokens() const {
            std::size_t n = 0;
            for (const auto& m : received) {
                if (const auto* f = std::get_if<model::StepFrame>(&m)) n += f->tokens.size();
            }
            return n;
        }
        std::unique_ptr<io::Stream> stream;
        std::deque<wire::Message> received;
        std::function<void(const wire::Message&)> on_message = [](const wire::Message&) {};
        bool ended = false;

      private:
        io::Task<void> live() {
            auto s = co_await bench_.world.network.connect(bench_.at, bench_.world.loop.now() + 5s);
            EXPECT_TRUE(s.ok());
            stream = std::move(*s);
            co_await flush();
            if (reading_) co_await read();
        }
        io::Task<void> flush() {
            writing_ = true;
            while (!out_.empty()) {
                const std::string bytes = std::exchange(out_, {});
                const std::string_view pieces[] = {bytes};
                if (!(co_await stream->write(pieces)).ok()) break;
            }
            writing_ = false;
        }
        io::Task<void> read() {
            char buffer[4096];
            for (;;) {
                auto n = co_await stream->read(buffer);
                if (!n.ok() || *n == 0) break;
                decoder_.feed({buffer, *n});
                for (;;) {
                    auto m = decoder_.next();
                    EXPECT_TRUE(m.ok());
                    if (!m.ok() || !*m) break;
                    received.push_back(**m);
                    on_message(**m);
                }
            }
            ended = true;
        }
        Bench& bench_;
        bool reading_;
        bool writing_ = false;
        std::string out_;
        wire::Decoder decoder_;
    };

    Bench() {
        auto listener = world.network.listen(at);
        EXPECT_TRUE(listener.ok());
        world.loop.spawn(run(std::move(*listener)));
    }
    Client& client(bool reading = true) {
        clients.push_back(std::make_unique<Client>(*this, reading));
        return *clients.back();
    }
    Client& greeted() {
        Client& c = client();
        c.send(wire::Hello{});
        EXPECT_TRUE(world.run_until([&] { return c.template count<wire::Welcome>() == 1; }));
        return c;
    }

    // Destroyed from the last: the loop with its tasks is the first member, so it outlives what the
    // tasks refer to.
    std::vector<std::unique_ptr<Client>> clients;
    FakeEngine engine;
    ops::Logger log;
    std::optional<Result<void>> result;
    io::Endpoint at{.host = {},
                    .port = 0,
                    .unix_path = testing::TempDir() + "nereid-host-" + std::to_string(getpid())};
    World world;
    EngineHost host{world.loop, engine, log};

  private:
    io::Task<void> run(std::unique_ptr<io::Listener> listener) {
        result = co_await host.run(std::move(listener));
    }
};

using Sim = Bench<SimWorld>;

TEST(EngineHost, GreetsWithItsInfo) {
    Sim b;
    auto& c = b.greeted();
    EXPECT_EQ(std::get<wire::Welcome>(c.received[0]).info.engine, "fake");
    EXPECT_EQ(b.host.counters().connections, 1u);
}

TEST(EngineHost, RefusesAVersionThatItDoesNotSpeak) {
    Sim b;
    auto& c = b.client();
    c.send(wire::Hello{.version_min = 7, .version_max = 9, .client = {}});
    ASSERT_TRUE(b.world.run_until([&] { return c.ended; }));
    ASSERT_EQ(c.template count<wire::Refuse>(), 1u);
    EXPECT_EQ(std::get<wire::Refuse>(c.received[0]).error.code, Code::kUnsupported);
    EXPECT_EQ(b.host.counters().refused, 1u);
    b.greeted();
}

TEST(EngineHost, StreamsOneFramePerStep) {
    Sim b;
    auto& c = b.greeted();
    c.send(add(1, 3));
    c.send(add(2, 2));
    ASSERT_TRUE(b.world.run_until([&] { return c.tokens() == 5; }));
    std::size_t finished = 0;
    for (const auto& m : c.received) {
        if (const auto* f = std::get_if<model::StepFrame>(&m)) finished += f->finished.size();
    }
    EXPECT_EQ(finished, 2u);
    EXPECT_EQ(c.template count<model::StepFrame>(), b.host.counters().steps);
    EXPECT_EQ(b.host.counters().commands, 2u);
}

TEST(EngineHost, GarbageClosesTheConnectionAndTheNextClientIsServed) {
    for (const bool greeted : {false, true}) {
        Sim b;
        auto& c = greeted ? b.greeted() : b.client();
        c.send_raw("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        ASSERT_TRUE(b.world.run_until([&] { return c.ended; }));
        EXPECT_EQ(b.host.counters().bad_messages, 1u);
        b.greeted();
    }
}

TEST(EngineHost, AMessageThatAClientMayNotSendClosesTheConnection) {
    for (const bool greeted : {false, true}) {
        Sim b;
        auto& c = greeted ? b.greeted() : b.client();
        c.send(model::StepFrame{});
        ASSERT_TRUE(b.world.run_until([&] { return c.ended; }));
        EXPECT_EQ(b.host.counters().bad_messages, 1u);
    }
}

TEST(EngineHost, AClientThatDiesTakesItsRequestsAlong) {
    Sim b;
    auto& c = b.greeted();
    c.send(add(1, 1'000'000));
    c.send(add(2, 1'000'000));
    ASSERT_TRUE(b.world.run_until([&] { return c.tokens() > 10; }));
    c.close();
    ASSERT_TRUE(b.world.run_until([&] { return b.engine.left.empty(); }));
    EXPECT_EQ(b.host.counters().orphans, 2u);
    EXPECT_TRUE(b.engine.aborted_at_step.contains(1) && b.engine.aborted_at_step.contains(2));
    // Nothing of it is told to the next one.
    auto& next = b.greeted();
    next.send(add(3, 2));
    ASSERT_TRUE(b.world.run_until([&] { return next.tokens() == 2; }));
    for (const auto& m : next.received) {
        if (const auto* f = std::get_if<model::StepFrame>(&m)) {
            for (const auto& t : f->tokens) EXPECT_EQ(t.id.value, 3u);
            for (const auto& e : f->finished) EXPECT_EQ(e.id.value, 3u);
        }
    }
}

TEST(EngineHost, NoStepIsMadeForAClientThatDoesNotRead) {
    Sim b;
    b.engine.top = 100;  // 800 bytes a frame
    auto& c = b.client(false);
    c.send(wire::Hello{});
    c.send(add(1, 1'000'000));
    b.world.scheduler.run_for(10s);
    const auto steps = b.host.counters().steps;
    EXPECT_GT(steps, 0u);
    EXPECT_LT(steps, 200u);  // the sockets' buffers, and one frame
    b.world.scheduler.run_for(60s);
    EXPECT_EQ(b.host.counters().steps, steps);
    c.read_on();
    EXPECT_TRUE(b.world.run_until([&] { return b.host.counters().steps > steps + 500; }));
}

TEST(EngineHost, ACancelThatHasArrivedIsAppliedBeforeTheNextStep_A54) {
    Bench<RealWorld> b;
    auto& c = b.greeted();
    c.send(add(1, 1'000'000));
    std::optional<std::uint64_t> sent_at;
    c.on_message = [&](const wire::Message&) {
        if (c.tokens() >= 5 && !sent_at) {
            sent_at = b.engine.steps;
            c.send(model::AbortRequest{{1}});  // in the host's socket when this returns
        }
    };
    ASSERT_TRUE(b.world.run_until([&] { return b.engine.aborted_at_step.contains(1); }));
    EXPECT_LE(b.engine.aborted_at_step[1], *sent_at + 1);
    ASSERT_TRUE(b.world.run_until([&] {
        const auto* f = std::get_if<model::StepFrame>(&c.received.back());
        return f != nullptr && !f->finished.empty();
    }));
}

TEST(EngineHost, ASecondClientWaitsForTheFirstToGo) {
    Sim b;
    auto& first = b.greeted();
    auto& second = b.client();
    second.send(wire::Hello{});
    b.world.scheduler.run_for(60s);
    EXPECT_TRUE(second.received.empty());
    first.close();
    EXPECT_TRUE(b.world.run_until([&] { return second.template count<wire::Welcome>() == 1; }));
}

TEST(EngineHost, AnswersPingsIdleAndAtWork) {
    Sim b;
    auto& c = b.greeted();
    c.send(wire::Ping{41});
    ASSERT_TRUE(b.world.run_until([&] { return c.template count<wire::Pong>() == 1; }));
    EXPECT_EQ(std::get<wire::Pong>(c.received.back()).nonce, 41u);
    c.send(add(1, 1'000'000));
    ASSERT_TRUE(b.world.run_until([&] { return c.tokens() > 5; }));
    c.send(wire::Ping{42});
    EXPECT_TRUE(b.world.run_until([&] { return c.template count<wire::Pong>() == 2; }));
}

TEST(EngineHost, ASilentClientIsDropped) {
    Sim b;
    auto& c = b.client();
    b.world.scheduler.run_for(11s);
    EXPECT_TRUE(c.ended);
    EXPECT_EQ(b.host.counters().greeting_timeouts, 1u);
    b.greeted();
}

TEST(EngineHost, ABrokenEngineEndsTheHost) {
    Sim b;
    auto& c = b.greeted();
    c.send(add(1, 1'000'000));
    ASSERT_TRUE(b.world.run_until([&] { return c.tokens() > 5; }));
    b.engine.broken = true;
    ASSERT_TRUE(b.world.run_until([&] { return b.result.has_value(); }));
    ASSERT_FALSE(b.result->ok());
    EXPECT_EQ(b.result->code(), Code::kInternal);
}

TEST(EngineHost, StopEndsItIdleOrAtWork) {
    for (const bool busy : {false, true}) {
        Sim b;
        auto& c = b.greeted();
        if (busy) c.send(add(1, 1'000'000));
        if (busy) ASSERT_TRUE(b.world.run_until([&] { return c.tokens() > 5; }));
        b.world.loop.post([&] { b.host.stop(); });
        ASSERT_TRUE(b.world.run_until([&] { return b.result.has_value() && c.ended; }));
        EXPECT_TRUE(b.result->ok());
        EXPECT_TRUE(b.engine.left.empty());
    }
}

}  // namespace
}  // namespace nereid::engine
