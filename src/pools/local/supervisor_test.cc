#include "pools/local/supervisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/prng.h"

namespace nereid::pools {
namespace {

model::TokenOut token_out(std::uint64_t id, TokenId token) {
    model::TokenOut out;
    out.id = {id};
    out.token = token;
    return out;
}

// Drives a Supervisor with virtual time, and remembers what it was told to do.
class Driver {
  public:
    explicit Driver(SupervisorConfig config = {}) : supervisor(config) {}

    Actions step(SupervisorEvent e) {
        Actions a = supervisor.step(std::move(e), now);
        for (auto& c : a.send) {
            if (const auto* add = std::get_if<model::AddRequest>(&c)) sent.push_back(add->id.value);
            if (const auto* abort = std::get_if<model::AbortRequest>(&c))
                aborts.push_back(abort->id.value);
        }
        for (auto& d : a.deliver) delivered.push_back(d);
        return a;
    }
    // Lets time pass to the next thing the supervisor waits for.
    Actions tick() {
        EXPECT_NE(supervisor.wake_at(), TimePoint::never());
        now = std::max(now, supervisor.wake_at());
        return step(TickEvent{});
    }
    Actions submit(std::uint64_t id) {
        model::AddRequest r;
        r.id = {id};
        r.prompt = {1, 2, 3};
        return step(SubmitEvent{7, std::move(r)});
    }
    void become_ready(std::uint32_t running = 4, std::uint32_t queued = 4) {
        if (supervisor.status().state == WorkerState::kStarting) step(SpawnedEvent{100});
        model::EngineInfo info;
        info.max_running = running;
        info.max_queued = queued;
        step(GreetedEvent{info});
    }
    void start_ready() {
        step(StartEvent{});
        become_ready();
    }
    Actions token(std::uint64_t id) {
        model::StepFrame f;
        f.tokens.push_back(token_out(id, 5));
        return step(FrameEvent{f});
    }
    Actions finish(std::uint64_t id, model::EndReason reason = model::EndReason::kStop) {
        model::StepFrame f;
        f.finished.push_back({.id = {id}, .reason = reason});
        return step(FrameEvent{f});
    }
    Actions exited(int code, int signal = 0, std::string last = {}) {
        return step(ExitedEvent{code, signal, signal != 0 ? "killed" : "exit", std::move(last)});
    }
    std::uint64_t deaths(DeathCause c) const {
        return supervisor.counters().deaths[static_cast<std::size_t>(c)];
    }
    WorkerState state() const { return supervisor.status().state; }

    Supervisor supervisor;
    TimePoint now;
    std::vector<std::uint64_t> sent, aborts;
    std::vector<Delivery> delivered;
};

TEST(Supervisor, RequestsWaitForTheGreetingAndGoOutInOrder) {
    Driver d;
    d.submit(1);
    EXPECT_TRUE(d.step(StartEvent{}).start_child);
    d.submit(2);
    EXPECT_TRUE(d.sent.empty());
    EXPECT_EQ(d.state(), WorkerState::kStarting);
    d.become_ready();
    EXPECT_EQ(d.state(), WorkerState::kReady);
    EXPECT_EQ(d.sent, (std::vector<std::uint64_t>{1, 2}));
    EXPECT_EQ(d.supervisor.status().in_flight, 2u);
    EXPECT_EQ(d.supervisor.status().pid, 100);
}

TEST(Supervisor, OneUpdatePerRequestAndFrame) {
    Driver d;
    d.start_ready();
    d.submit(1);
    d.submit(2);
    model::StepFrame f;
    f.started.push_back({.id = {1}});
    for (const std::uint64_t id : {1u, 2u, 1u}) f.tokens.push_back(token_out(id, 5));
    f.finished.push_back({.id = {2}});
    const Actions a = d.step(FrameEvent{f});
    ASSERT_EQ(a.deliver.size(), 2u);
    EXPECT_EQ(a.deliver[0].route, 7u);
    EXPECT_TRUE(a.deliver[0].update.started);
    EXPECT_EQ(a.deliver[0].update.tokens.size(), 2u);
    EXPECT_TRUE(a.deliver[1].update.finished);
    EXPECT_EQ(d.supervisor.status().in_flight, 1u);
}

TEST(Supervisor, NoMoreIsSentThanTheEngineTakes) {
    Driver d;
    d.step(StartEvent{});
    d.become_ready(1, 1);
    for (std::uint64_t i = 1; i <= 4; ++i) d.submit(i);
    EXPECT_EQ(d.sent, (std::vector<std::uint64_t>{1, 2}));
    d.finish(1);
    EXPECT_EQ(d.sent, (std::vector<std::uint64_t>{1, 2, 3}));
    // An aborted one keeps its place until the engine says that it has ended.
    d.step(AbortEvent{{2}});
    EXPECT_EQ(d.sent.size(), 3u);
    d.finish(2, model::EndReason::kAborted);
    EXPECT_EQ(d.sent.size(), 4u);
}

TEST(Supervisor, TheQueueIsBounded) {
    Driver d({.queue_max = 2});
    d.submit(1);
    d.submit(2);
    const Actions a = d.submit(3);
    ASSERT_EQ(a.deliver.size(), 1u);
    EXPECT_EQ(a.deliver[0].update.error->code, Code::kOverloaded);
    EXPECT_EQ(d.supervisor.counters().refused_overloaded, 1u);
    d.step(AbortEvent{{1}});
    EXPECT_TRUE(d.submit(4).deliver.empty());
    // Requests with output no longer wait for anything.
    d.start_ready();
    d.token(2);
    EXPECT_TRUE(d.submit(5).deliver.empty());
    EXPECT_EQ(d.submit(6).deliver.size(), 1u);
}

TEST(Supervisor, AbortIsSentOnceAndNothingFollows_A55) {
    Driver d;
    d.start_ready();
    d.submit(1);
    d.step(AbortEvent{{1}});
    d.step(AbortEvent{{1}});
    EXPECT_EQ(d.aborts, (std::vector<std::uint64_t>{1}));
    EXPECT_TRUE(d.token(1).deliver.empty());
    EXPECT_TRUE(d.finish(1, model::EndReason::kAborted).deliver.empty());
    d.step(AbortEvent{{1}});
    EXPECT_EQ(d.aborts.size(), 1u);
    EXPECT_EQ(d.supervisor.counters().unknown_ids, 0u);
    EXPECT_EQ(d.supervisor.at_engine(), 0u);
}

TEST(Supervisor, AbortOfAWaitingRequestNeverReachesTheEngine) {
    Driver d;
    d.submit(1);
    d.step(AbortEvent{{1}});
    d.start_ready();
    EXPECT_TRUE(d.sent.empty());
    EXPECT_TRUE(d.aborts.empty());
}

TEST(Supervisor, ADeathLosesStreamsAndAdmitsTheOthersAgainInOrder) {
    Driver d;
    d.start_ready();
    for (std::uint64_t i = 1; i <= 4; ++i) d.submit(i);
    d.token(2);
    d.step(AbortEvent{{3}});
    d.sent.clear();
    d.delivered.clear();
    d.exited(0, 9);
    EXPECT_EQ(d.state(), WorkerState::kBackoff);
    ASSERT_EQ(d.delivered.size(), 1u);
    EXPECT_EQ(d.delivered[0].id.value, 2u);
    EXPECT_EQ(d.delivered[0].update.error->code, Code::kWorkerLost);
    EXPECT_EQ(d.supervisor.counters().readmitted, 2u);
    EXPECT_EQ(d.supervisor.counters().lost, 1u);
    EXPECT_EQ(d.deaths(DeathCause::kSignal), 1u);
    EXPECT_EQ(d.supervisor.status().retry_in, 100ms);
    d.submit(5);
    EXPECT_TRUE(d.tick().start_child);
    d.become_ready();
    EXPECT_EQ(d.sent, (std::vector<std::uint64_t>{1, 4, 5}));
    EXPECT_EQ(d.supervisor.status().restarts, 1u);
}

TEST(Supervisor, StartedIsToldOnceAlsoWhenTheRequestStartsAgain) {
    Driver d;
    d.start_ready();
    d.submit(1);
    model::StepFrame f;
    f.started.push_back({.id = {1}});
    EXPECT_EQ(d.step(FrameEvent{f}).deliver.size(), 1u);
    d.exited(1);
    d.tick();
    d.become_ready();
    EXPECT_TRUE(d.step(FrameEvent{f}).deliver.empty());
    EXPECT_EQ(d.token(1).deliver.size(), 1u);
}

TEST(Supervisor, ARequestThatKillsEnginesIsGivenUp) {
    Driver d;
    d.start_ready();
    d.submit(1);
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(d.delivered.empty());
        d.exited(0, 11);
        d.tick();
        d.become_ready();
    }
    ASSERT_EQ(d.delivered.size(), 1u);
    EXPECT_EQ(d.delivered[0].update.error->code, Code::kWorkerLost);
    EXPECT_EQ(d.sent.size(), 3u);
}

TEST(Supervisor, BackOffDoublesToItsBoundAndHealthClearsIt) {
    Driver d;
    d.step(StartEvent{});
    std::vector<std::int64_t> ms;
    for (int i = 0; i < 9; ++i) {
        d.step(SpawnedEvent{1});
        d.exited(1);
        ms.push_back(d.supervisor.status().retry_in / 1ms);
        EXPECT_TRUE(d.tick().start_child);
    }
    EXPECT_EQ(ms, (std::vector<std::int64_t>{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000}));
    d.become_ready();
    d.now = d.now + 59s;
    d.exited(1);
    EXPECT_EQ(d.supervisor.status().retry_in, 10s);
    d.tick();
    d.become_ready();
    d.now = d.now + 60s;
    d.exited(1);
    EXPECT_EQ(d.supervisor.status().retry_in, 100ms);
}

TEST(Supervisor, AConfigurationErrorIsNotTriedAgain) {
    Driver d;
    d.step(StartEvent{});
    d.step(SpawnedEvent{1});
    d.submit(1);
    d.exited(2, 0, "model.gguf: not a GGUF file");
    EXPECT_EQ(d.state(), WorkerState::kFailed);
    ASSERT_EQ(d.delivered.size(), 1u);
    EXPECT_EQ(d.delivered[0].update.error->code, Code::kUnavailable);
    EXPECT_NE(d.delivered[0].update.error->message.find("not a GGUF"), std::string::npos);
    EXPECT_EQ(d.supervisor.wake_at(), TimePoint::never());
    EXPECT_EQ(d.submit(2).deliver[0].update.error->code, Code::kUnavailable);
    EXPECT_EQ(d.supervisor.status().last_error, "model.gguf: not a GGUF file");
}

TEST(Supervisor, ExitTwoAfterTheGreetingIsAnOrdinaryDeath) {
    Driver d;
    d.start_ready();
    d.exited(2);
    EXPECT_EQ(d.state(), WorkerState::kBackoff);
}

TEST(Supervisor, ARefusedGreetingIsNotTriedAgain) {
    Driver d;
    d.step(StartEvent{});
    d.step(SpawnedEvent{1});
    const Actions a = d.step(RefusedEvent{{Code::kUnsupported, "version 2"}});
    EXPECT_TRUE(a.kill_child);
    EXPECT_EQ(d.state(), WorkerState::kFailed);
    EXPECT_FALSE(d.exited(0, 9).start_child);
    EXPECT_EQ(d.state(), WorkerState::kFailed);
}

TEST(Supervisor, NoGreetingInTimeIsAKill) {
    Driver d;
    d.step(StartEvent{});
    d.step(SpawnedEvent{1});
    const Actions a = d.tick();
    EXPECT_EQ(d.now.since_origin, 120s);
    EXPECT_TRUE(a.kill_child && a.close_link);
    d.exited(0, 9);
    EXPECT_EQ(d.deaths(DeathCause::kStartTimeout), 1u);
    EXPECT_EQ(d.state(), WorkerState::kBackoff);
}

TEST(Supervisor, ASpawnThatFailsIsTriedAgain) {
    Driver d;
    d.step(StartEvent{});
    d.step(SpawnFailedEvent{{Code::kIo, "no such file"}});
    EXPECT_EQ(d.deaths(DeathCause::kSpawnFailed), 1u);
    EXPECT_TRUE(d.tick().start_child);
}

TEST(Supervisor, SilenceUnderWorkIsAPingThenAKill) {
    Driver d;
    d.start_ready();
    EXPECT_EQ(d.supervisor.wake_at(), TimePoint::never());  // nothing is asked of an idle engine
    d.now = d.now + 500s;
    d.submit(1);
    Actions a = d.tick();
    EXPECT_TRUE(a.ping);
    EXPECT_EQ(d.now.since_origin, 530s);
    d.step(PongEvent{});
    a = d.tick();
    EXPECT_TRUE(a.ping);
    EXPECT_EQ(d.now.since_origin, 560s);
    a = d.tick();
    EXPECT_EQ(d.now.since_origin, 590s);
    EXPECT_TRUE(a.kill_child && a.close_link);
    EXPECT_EQ(d.supervisor.counters().pings, 2u);
    d.exited(0, 9);
    EXPECT_EQ(d.deaths(DeathCause::kStalled), 1u);
    EXPECT_EQ(d.supervisor.counters().readmitted, 1u);
}

TEST(Supervisor, ABadMessageIsAKill) {
    Driver d;
    d.start_ready();
    d.submit(1);
    d.token(1);
    const Actions a = d.step(BadMessageEvent{{Code::kCorrupt, "crc"}});
    EXPECT_TRUE(a.kill_child && a.close_link);
    EXPECT_EQ(d.supervisor.counters().bad_messages, 1u);
    EXPECT_EQ(d.delivered.back().update.error->code, Code::kWorkerLost);
    d.exited(0, 9);
    EXPECT_EQ(d.deaths(DeathCause::kBadMessage), 1u);
}

TEST(Supervisor, AClosedLinkWaitsForTheExitThatExplainsIt) {
    Driver d;
    d.start_ready();
    Actions a = d.step(LinkClosedEvent{"reset"});
    EXPECT_FALSE(a.kill_child);
    d.exited(0, 11);
    EXPECT_EQ(d.deaths(DeathCause::kSignal), 1u);
    d.tick();
    d.become_ready();
    d.step(LinkClosedEvent{"reset"});
    a = d.tick();  // it lives on without a link
    EXPECT_TRUE(a.kill_child);
    d.exited(0, 9);
    EXPECT_EQ(d.deaths(DeathCause::kLinkClosed), 1u);
}

TEST(Supervisor, ResultsOfRequestsWeDoNotKnowAreCounted) {
    Driver d;
    d.start_ready();
    EXPECT_TRUE(d.token(99).deliver.empty());
    EXPECT_TRUE(d.finish(99).deliver.empty());
    EXPECT_EQ(d.supervisor.counters().unknown_ids, 2u);
}

TEST(Supervisor, DrainLetsRequestsEndThenTerminates) {
    Driver d;
    d.start_ready();
    d.submit(1);
    EXPECT_FALSE(d.step(DrainEvent{d.now + 30s}).terminate_child);
    EXPECT_EQ(d.state(), WorkerState::kDraining);
    EXPECT_EQ(d.submit(2).deliver[0].update.error->code, Code::kOverloaded);
    EXPECT_TRUE(d.finish(1).terminate_child);
    EXPECT_TRUE(d.exited(0, 15).stopped);
    EXPECT_EQ(d.state(), WorkerState::kStopped);
    EXPECT_EQ(d.supervisor.counters().deaths, (std::array<std::uint64_t, kDeathCauses>{}));
    EXPECT_EQ(d.supervisor.wake_at(), TimePoint::never());
}

TEST(Supervisor, DrainEndsAtItsDeadlineAndKillsWhoDoesNotGo) {
    Driver d;
    d.start_ready();
    d.submit(1);
    d.submit(2);
    d.token(1);
    d.delivered.clear();
    d.step(DrainEvent{d.now + 30s});
    Actions a;
    while (!a.terminate_child) a = d.tick();
    EXPECT_EQ(d.now.since_origin, 30s);
    ASSERT_EQ(d.delivered.size(), 2u);
    EXPECT_EQ(d.delivered[0].update.error->code, Code::kWorkerLost);
    EXPECT_EQ(d.delivered[1].update.error->code, Code::kUnavailable);
    EXPECT_TRUE(d.tick().kill_child);
    EXPECT_EQ(d.now.since_origin, 35s);
    EXPECT_TRUE(d.exited(0, 9).stopped);
}

TEST(Supervisor, ADeathWhileDrainingIsTheEnd) {
    Driver d;
    d.start_ready();
    d.submit(1);
    d.step(DrainEvent{d.now + 30s});
    const Actions a = d.exited(1);
    EXPECT_TRUE(a.stopped);
    EXPECT_FALSE(a.start_child);
    EXPECT_EQ(a.deliver[0].update.error->code, Code::kUnavailable);
}

TEST(Supervisor, DrainBeforeStartAndDuringStart) {
    Driver idle;
    EXPECT_TRUE(idle.step(DrainEvent{TimePoint::never()}).stopped);
    EXPECT_FALSE(idle.step(StartEvent{}).start_child);
    Driver d;
    d.step(StartEvent{});
    d.step(SpawnedEvent{1});
    EXPECT_TRUE(d.step(DrainEvent{TimePoint::never()}).terminate_child);
    d.step(GreetedEvent{});
    EXPECT_EQ(d.state(), WorkerState::kDraining);
    EXPECT_TRUE(d.exited(0).stopped);
}

// ---------------------------------------------------------------- random lives

// A naive engine and child: knows what it was given, answers at random, dies at random.
class World {
  public:
    explicit World(std::uint64_t seed) : rng(seed), d(config()) { apply(StartEvent{}); }

    SupervisorConfig config() {
        SupervisorConfig c;
        c.queue_max = queue_max;
        c.max_attempts = static_cast<std::uint32_t>(1 + rng.below(4));
        c.progress_timeout = 2s;
        c.start_timeout = 3s;
        return c;
    }

    void apply(SupervisorEvent e) {
        const Actions a = d.step(std::move(e));
        for (const auto& delivery : a.deliver) check(delivery);
        if (a.close_link) greeted = false;
        if (a.kill_child || a.terminate_child) dying = true;
        if (a.start_child) {
            ASSERT_FALSE(alive) << "one child at a time";
            alive = true;
            dying = false;
            engine.clear();
            launched = true;
        }
        for (const auto& c : a.send) {
            ASSERT_TRUE(greeted);
            if (const auto* add = std::get_if<model::AddRequest>(&c)) {
                ASSERT_FALSE(add->prompt.empty()) << "a request that is sent again is whole";
                engine.push_back(add->id.value);
            }
            if (const auto* abort = std::get_if<model::AbortRequest>(&c))
                ending.push_back(abort->id.value);
        }
        ASSERT_LE(engine.size(), takes);
    }

    void check(const Delivery& delivery) {
        Request& r = requests[delivery.id.value];
        ASSERT_FALSE(r.ended) << "nothing follows the end";
        ASSERT_FALSE(r.aborted) << "nothing follows the abort";
        for (const auto& t : delivery.update.tokens)
            ASSERT_EQ(t.token, r.next++) << "tokens in order, none twice";
        if (delivery.update.finished || delivery.update.error) {
            r.ended = true;
            --live;
        }
    }

    void submit() {
        const std::uint64_t id = ++last_id;
        requests[id] = {};
        ++live;
        model::AddRequest r;
        r.id = {id};
        r.prompt = {1};
        apply(SubmitEvent{0, std::move(r)});
    }

    void frame() {
        if (!alive || !greeted || dying) return;
        model::StepFrame f;
        std::vector<std::uint64_t> left;
        for (const std::uint64_t id : engine) {
            const bool aborted = std::find(ending.begin(), ending.end(), id) != ending.end();
            TokenId& t = produced[id];
            if (!aborted && rng.chance(0.6)) f.tokens.push_back(token_out(id, t++));
            if (aborted || rng.chance(0.2)) {
                f.finished.push_back({.id = {id}});
            } else {
                left.push_back(id);
            }
        }
        engine = left;
        apply(FrameEvent{f});
    }

    void die() {
        if (!alive) return;
        alive = greeted = false;
        // What had no token begins again from its first.
        apply(ExitedEvent{dying ? 0 : 1, dying ? 9 : 0, "exit", ""});
    }

    void turn() {
        d.now = d.now + Duration(static_cast<std::int64_t>(rng.below(50'000'000)));
        if (launched) {
            launched = false;
            if (rng.chance(0.1)) {
                alive = false;
                apply(SpawnFailedEvent{{Code::kIo, "x"}});
            } else {
                apply(SpawnedEvent{1});
            }
        }
        switch (rng.below(12)) {
            case 0:
            case 1:
            case 2:
                submit();
                break;
            case 3:
                if (last_id > 0) {
                    const std::uint64_t id = 1 + rng.below(last_id);
                    Request& r = requests[id];
                    if (!r.ended && !r.aborted) {
                        r.aborted = true;
                        --live;
                    }
                    apply(AbortEvent{{id}});
                }
                break;
            case 4:
                if (alive && !greeted && !dying) {
                    greeted = true;
                    ending.clear();
                    model::EngineInfo info;
                    info.max_running = static_cast<std::uint32_t>(takes);
                    apply(GreetedEvent{info});
                    if (d.state() != WorkerState::kReady) greeted = false;
                }
                break;
            case 5:
                if (rng.chance(0.2)) die();
                break;
            case 6:
                if (dying) die();
                break;
            case 7:
                if (greeted && rng.chance(0.1)) apply(LinkClosedEvent{"x"});
                break;
            case 8:
                if (greeted && rng.chance(0.1)) apply(BadMessageEvent{{Code::kCorrupt, "x"}});
                break;
            case 9:
                if (d.supervisor.wake_at() <= d.now) apply(TickEvent{});
                break;
            default:
                frame();
                break;
        }
    }

    std::uint64_t without_output() const {
        std::uint64_t n = 0;
        for (const auto& [id, r] : requests) n += !r.ended && !r.aborted && r.next == 0;
        return n;
    }

    struct Request {
        bool ended = false;
        bool aborted = false;
        TokenId next = 0;
    };
    Prng rng;
    std::uint64_t queue_max = 1 + rng.below(20);
    Driver d;
    std::size_t takes = 1 + rng.below(6);
    std::map<std::uint64_t, Request> requests;
    std::map<std::uint64_t, TokenId> produced;
    std::vector<std::uint64_t> engine, ending;
    std::uint64_t last_id = 0;
    std::size_t live = 0;
    bool alive = false, launched = false, greeted = false, dying = false;
};

TEST(SupervisorProperty, EachRequestEndsExactlyOnceWhateverHappens) {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        World w(seed);
        for (int i = 0; i < 600 && !testing::Test::HasFatalFailure(); ++i) {
            w.turn();
            ASSERT_EQ(w.d.supervisor.status().in_flight, w.live);
            ASSERT_LE(w.without_output(), w.queue_max);
        }
        // No new faults: everything ends.
        w.apply(DrainEvent{w.d.now + 5s});
        for (int i = 0; i < 100 && w.d.state() != WorkerState::kStopped; ++i) {
            if (w.launched) {
                w.launched = false;
                w.apply(SpawnedEvent{1});
            }
            if (w.dying) w.die();
            if (w.d.supervisor.wake_at() != TimePoint::never()) {
                w.d.now = std::max(w.d.now, w.d.supervisor.wake_at());
                w.apply(TickEvent{});
            }
        }
        ASSERT_EQ(w.d.state(), WorkerState::kStopped);
        ASSERT_EQ(w.live, 0u);
        for (const auto& [id, r] : w.requests) ASSERT_TRUE(r.ended || r.aborted) << id;
    }
}

}  // namespace
}  // namespace nereid::pools
