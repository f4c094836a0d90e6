// LocalWorker against children in the simulator: its shell, its threads of delivery, and random
// lives.
#include "pools/local/local_worker.h"

#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"
#include "engine/host/engine_host.h"
#include "io/root_task.h"
#include "io/sim_loop.h"
#include "io/sim_network.h"
#include "io/sim_process.h"
#include "model/engine_wire.h"
#include "pools/local/fake_child.h"

namespace nereid::pools {
namespace {

enum class Mood : std::uint8_t {
    kWell,
    kExitsAtOnce,
    kBadConfig,
    kNeverListens,
    kTalksGarbage,
    kIgnoresEverything,
    kClosesLink
};

// A link loop, a second gateway loop, and children whose moods are drawn by the test.
class World {
  public:
    explicit World(std::uint64_t seed, LocalWorkerOptions o = {}) : scheduler(seed), rng(seed) {
        o.argv = {"/nereid", "worker"};
        o.socket_path = "/run/worker.sock";
        launcher.program("/nereid", [this](io::SimChild& child) { return live(child); });
        worker = make_local_worker(loop, network, launcher, log, metrics, std::move(o));
    }
    ~World() { worker.reset(); }

    io::Task<io::ExitStatus> live(io::SimChild& child) {
        const Mood mood = next_mood();
        if (mood == Mood::kExitsAtOnce) co_return io::ExitStatus{.code = 1};
        if (mood == Mood::kBadConfig) {
            child.print("model.gguf: not a GGUF file", true);
            co_return io::ExitStatus{.code = 2};
        }
        if (mood == Mood::kNeverListens) co_await child.loop().sleep_for(1h);
        auto listener = network.listen({.host = {}, .port = 0, .unix_path = "/run/worker.sock"});
        EXPECT_TRUE(listener.ok());
        if (mood != Mood::kWell) co_return co_await misbehave(child, mood, std::move(*listener));
        CountingEngine engine(child.loop(), running, queued, step_time);
        current = &engine;
        engine::EngineHost host(child.loop(), engine, log);
        io::Channel<int> end(child.loop(), 4);
        die = &end;
        struct Gone {  // also when the child is killed: its frame is destroyed where it waits
            World& world;
            ~Gone() {
                world.die = nullptr;
                world.current = nullptr;
            }
        } gone{*this};
        child.trap(15);
        const auto run = [](engine::EngineHost& h, std::unique_ptr<io::Listener> l,
                            io::Channel<int>& e) -> io::Task<void> {
            (void)co_await h.run(std::move(l));
            e.push(0);
        };
        const auto term = [](io::SimChild& c, io::Channel<int>& e) -> io::Task<void> {
            if ((co_await c.signals().pop()).ok()) e.push(0);
        };
        io::RootTask hosting, terminating;
        hosting.start(run(host, std::move(*listener), end));
        terminating.start(term(child, end));
        const auto signal = co_await end.pop();
        co_return io::ExitStatus{.code = 0, .signal = *signal};
    }

    io::Task<io::ExitStatus> misbehave(io::SimChild& child, Mood mood,
                                       std::unique_ptr<io::Listener> listener) {
        auto stream = co_await listener->accept();
        if (!stream.ok()) co_return io::ExitStatus{.code = 1};
        std::string out;
        if (mood == Mood::kTalksGarbage) out = "this is no message, and it is longer than a header";
        if (mood != Mood::kTalksGarbage) {
            model::EngineInfo info;
            info.max_running = running;
            model::wire::encode(
                model::wire::Message{model::wire::Welcome{model::wire::kVersion, info}}, out);
        }
        const std::string_view pieces[] = {out};
        (void)co_await (*stream)->write(pieces);
        if (mood == Mood::kClosesLink) (*stream)->close();
        co_await child.loop().sleep_for(1h);
        co_return io::ExitStatus{.code = 1};
    }

    Mood next_mood() {
        if (moods.empty()) return Mood::kWell;
        const Mood m = moods.front();
        moods.erase(moods.begin());
        return m;
    }
    bool kill(int signal = 9) { return die != nullptr && die->push(signal); }

    bool until(const std::function<bool()>& done, Duration limit = 10min) {
        return scheduler.run_until(done, limit) == io::SimEnd::kDone;
    }
    bool ready() {
        return until([&] { return worker->status().state == WorkerState::kReady; });
    }

    io::SimScheduler scheduler;
    Prng rng;
    io::SimLoop loop{scheduler}, other{scheduler};
    io::SimNetwork net{scheduler, {}};
    io::SimHost network{net, "host", loop};
    io::SimProcessLauncher launcher{loop};
    ops::Logger log;
    ops::Registry metrics;
    std::vector<Mood> moods;
    std::uint32_t running = 4, queued = 100;
    Duration step_time = 5ms;
    CountingEngine* current = nullptr;
    io::Channel<int>* die = nullptr;
    std::unique_ptr<LocalWorker> worker;
};

// What one request's owner sees.
struct Watch {
    std::unique_ptr<Session> session;
    TokenId tokens = 0;
    std::optional<model::Finished> finished;
    std::optional<Error> error;
    bool destroyed = false;
    bool ended() const { return finished || error; }
};

UpdateFn watching(Watch& w) {
    return [&w](Update&& u) {
        EXPECT_FALSE(w.destroyed) << "nothing is delivered after the session's destruction";
        EXPECT_FALSE(w.ended()) << "nothing follows the end";
        for (const auto& t : u.tokens)
            EXPECT_EQ(t.token, w.tokens++) << "tokens in order, none twice, none missing";
        if (u.finished) w.finished = u.finished;
        if (u.error) w.error = u.error;
    };
}

model::AddRequest request(TokenCount tokens) {
    model::AddRequest r;
    r.prompt = {1, 2, 3};
    r.max_tokens = tokens;
    return r;
}

double metric(World& w, std::string_view line) {
    const std::string text = w.metrics.render();
    const auto at = text.find(std::string(line) + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size()));
}

TEST(LocalWorker, AnswersOnEachLoop) {
    World w(1);
    const auto here = w.worker->handle_for(w.loop);
    const auto there = w.worker->handle_for(w.other);
    Watch a, b;
    a.session = here->submit(request(3), watching(a));  // before the start: it waits
    w.other.post([&] { b.session = there->submit(request(5), watching(b)); });
    w.worker->start();
    ASSERT_TRUE(w.until([&] { return a.ended() && b.ended(); }));
    EXPECT_EQ(a.tokens, 3);
    EXPECT_EQ(b.tokens, 5);
    EXPECT_EQ(there->status().state, WorkerState::kReady);
    EXPECT_EQ(there->status().info->engine, "counting");
    EXPECT_GT(there->status().steps, 0u);
}

TEST(LocalWorker, NothingIsCalledInsideSubmit) {
    LocalWorkerOptions o;
    o.queue_max = 1;
    World w(2, o);
    const auto handle = w.worker->handle_for(w.loop);
    Watch a, b;
    a.session = handle->submit(request(1), watching(a));
    b.session = handle->submit(request(1), watching(b));
    EXPECT_FALSE(b.ended());
    ASSERT_TRUE(w.until([&] { return b.ended(); }));
    EXPECT_EQ(b.error->code, Code::kOverloaded);
}

TEST(LocalWorker, DestroyingASessionAbortsOnce_A55) {
    World w(3);
    const auto here = w.worker->handle_for(w.loop);
    const auto there = w.worker->handle_for(w.other);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    Watch a, b;
    a.session = here->submit(request(1'000'000), watching(a));
    w.other.post([&] { b.session = there->submit(request(1'000'000), watching(b)); });
    ASSERT_TRUE(w.until([&] { return a.tokens > 3 && b.tokens > 3; }));
    a.destroyed = true;
    a.session.reset();
    w.other.post([&] {
        b.destroyed = true;
        b.session.reset();
    });
    ASSERT_TRUE(w.until(
        [&] { return there->status().load.running == 0 && here->status().in_flight == 0; }));
    EXPECT_EQ(metric(w, "nereid_worker_requests_aborted_total{worker=\"local\"}"), 2);
    EXPECT_EQ(metric(w, "nereid_worker_unknown_results_total{worker=\"local\"}"), 0);
}

TEST(LocalWorker, ARequestBeyondTheWireIsRefusedAndNothingElse) {
    World w(12);
    const auto handle = w.worker->handle_for(w.loop);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    Watch huge, other;
    auto r = request(3);
    r.grammar.assign(model::wire::kMaxPayload, 'x');
    huge.session = handle->submit(std::move(r), watching(huge));
    other.session = handle->submit(request(3), watching(other));
    ASSERT_TRUE(w.until([&] { return huge.ended() && other.ended(); }));
    ASSERT_TRUE(huge.error.has_value());
    EXPECT_EQ(huge.error->code, Code::kTooLarge);
    EXPECT_TRUE(other.finished.has_value());
    ASSERT_TRUE(w.until([&] { return handle->status().in_flight == 0; }));
    EXPECT_EQ(
        metric(w, "nereid_worker_requests_refused_total{worker=\"local\",cause=\"too_large\"}"), 1);
}

TEST(LocalWorker, ASessionMayBeDestroyedInsideItsOwnUpdate) {
    World w(4);
    const auto handle = w.worker->handle_for(w.loop);
    std::unique_ptr<Session> session;
    int calls = 0;
    session = handle->submit(request(1'000'000), [&](Update&&) {
        ++calls;
        session.reset();
    });
    w.worker->start();
    ASSERT_TRUE(w.until([&] { return calls > 0; }));
    w.scheduler.run_for(10s);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(w.worker->status().in_flight, 0u);
}

TEST(LocalWorker, ADeathLosesStreamsAndAnswersTheOthersInOrder) {
    World w(5);
    w.running = 1;
    const auto handle = w.worker->handle_for(w.loop);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    std::vector<Watch> watches(5);
    for (auto& x : watches) x.session = handle->submit(request(50), watching(x));
    ASSERT_TRUE(w.until([&] { return watches[0].tokens > 3; }));
    EXPECT_EQ(w.current->adds.size(), 5u);
    w.kill();
    ASSERT_TRUE(w.until([&] { return watches[0].ended(); }));
    EXPECT_EQ(watches[0].error->code, Code::kWorkerLost);
    ASSERT_TRUE(w.until([&] { return watches[4].ended(); }));
    EXPECT_EQ(w.current->adds, (std::vector<std::uint64_t>{2, 3, 4, 5}));
    for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(watches[i].tokens, 50) << i;
    EXPECT_EQ(metric(w, "nereid_worker_restarts_total{worker=\"local\",cause=\"signal\"}"), 1);
    EXPECT_EQ(metric(w, "nereid_worker_requests_readmitted_total{worker=\"local\"}"), 4);
    EXPECT_EQ(metric(w, "nereid_worker_requests_lost_total{worker=\"local\"}"), 1);
}

TEST(LocalWorker, BadConfigurationIsToldAndNotTriedAgain) {
    World w(6);
    w.moods = {Mood::kBadConfig};
    const auto handle = w.worker->handle_for(w.other);
    WorkerStatus last;
    w.worker->on_state([&](const WorkerStatus& s) { last = s; });
    Watch a;
    w.other.post([&] { a.session = handle->submit(request(1), watching(a)); });
    w.worker->start();
    ASSERT_TRUE(w.until([&] { return a.ended(); }));
    EXPECT_EQ(a.error->code, Code::kUnavailable);
    EXPECT_EQ(last.state, WorkerState::kFailed);
    EXPECT_EQ(last.last_error, "model.gguf: not a GGUF file");
    w.scheduler.run_for(1h);
    EXPECT_EQ(w.launcher.starts(), 1u);
}

TEST(LocalWorker, EveryKindOfBadChildIsReplaced) {
    const std::pair<Mood, const char*> cases[] = {{Mood::kExitsAtOnce, "exit"},
                                                  {Mood::kNeverListens, "start_timeout"},
                                                  {Mood::kTalksGarbage, "bad_message"},
                                                  {Mood::kIgnoresEverything, "stalled"},
                                                  {Mood::kClosesLink, "link_closed"}};
    for (const auto& [mood, cause] : cases) {
        SCOPED_TRACE(cause);
        World w(7);
        w.moods = {mood};
        const auto handle = w.worker->handle_for(w.loop);
        Watch a;
        a.session = handle->submit(request(3), watching(a));
        w.worker->start();
        ASSERT_TRUE(w.until([&] { return a.ended(); }));
        EXPECT_EQ(a.tokens, 3);
        EXPECT_EQ(metric(w, "nereid_worker_restarts_total{worker=\"local\",cause=\"" +
                                std::string(cause) + "\"}"),
                  1);
        EXPECT_EQ(w.launcher.live(), 1);
    }
}

TEST(LocalWorker, AStartThatIsRefusedIsTriedAgain) {
    World w(8);
    w.launcher.fail_starts(3);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    EXPECT_EQ(metric(w, "nereid_worker_restarts_total{worker=\"local\",cause=\"spawn_failed\"}"),
              3);
}

TEST(LocalWorker, AnEngineThatStopsIsAskedAndItsHostAnswers) {
    World w(9);
    const auto handle = w.worker->handle_for(w.loop);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    Watch a;
    a.session = handle->submit(request(1'000'000), watching(a));
    ASSERT_TRUE(w.until([&] { return a.tokens > 1; }));
    w.current->stuck = true;
    w.scheduler.run_for(10min);
    EXPECT_GT(metric(w, "nereid_worker_pings_total{worker=\"local\"}"), 5);
    EXPECT_EQ(w.launcher.starts(), 1u);
}

TEST(LocalWorker, DrainLetsStreamsEnd) {
    World w(10);
    const auto handle = w.worker->handle_for(w.loop);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    Watch a, late;
    a.session = handle->submit(request(100), watching(a));
    bool drained = false;
    const auto drain = [](World& world, bool& done) -> io::Task<void> {
        co_await world.worker->drain(world.loop.now() + 30s);
        done = true;
    };
    w.loop.spawn(drain(w, drained));
    late.session = handle->submit(request(1), watching(late));
    ASSERT_TRUE(w.until([&] { return drained; }));
    EXPECT_EQ(a.tokens, 100);
    EXPECT_EQ(late.error->code, Code::kOverloaded);
    EXPECT_EQ(w.launcher.live(), 0);
    EXPECT_EQ(w.worker->status().state, WorkerState::kStopped);
}

TEST(LocalWorker, DestroyingItKillsTheChild) {
    World w(11);
    w.worker->start();
    ASSERT_TRUE(w.ready());
    w.worker.reset();
    w.scheduler.run_for(1s);
    EXPECT_EQ(w.launcher.live(), 0);
    EXPECT_EQ(w.loop.live_tasks(), 0u);
}

// ---------------------------------------------------------------- random lives

class RandomLife {
  public:
    explicit RandomLife(std::uint64_t seed) : w_(seed, options(seed)), rng_(seed ^ 0x5eed) {
        w_.running = static_cast<std::uint32_t>(1 + rng_.below(4));
        w_.queued = static_cast<std::uint32_t>(rng_.below(6));
        handles_.push_back(w_.worker->handle_for(w_.loop));
        handles_.push_back(w_.worker->handle_for(w_.other));
        w_.worker->start();
    }
    static LocalWorkerOptions options(std::uint64_t seed) {
        LocalWorkerOptions o;
        o.queue_max = static_cast<std::int64_t>(1 + seed % 20);
        o.start_timeout = 5s;
        o.progress_timeout = 2s;
        return o;
    }

    void run(int turns) {
        for (int i = 0; i < turns; ++i) {
            turn();
            w_.scheduler.run_for(Duration(static_cast<std::int64_t>(rng_.below(40'000'000))));
        }
        finish();
    }

  private:
    void turn() {
        switch (rng_.below(10)) {
            case 0:
            case 1:
            case 2:
            case 3:
                submit();
                break;
            case 4:
            case 5:
                abort();
                break;
            case 6:
                if (rng_.chance(0.2)) w_.kill(rng_.chance(0.5) ? 9 : 0);
                break;
            case 7:
                if (rng_.chance(0.2)) w_.net.reset("host", "host");
                break;
            case 8:
                if (rng_.chance(0.2)) w_.moods.push_back(static_cast<Mood>(rng_.below(7)));
                std::erase(w_.moods, Mood::kBadConfig);  // would be the end
                break;
            default:
                break;
        }
    }
    void submit() {
        auto watch = std::make_unique<Watch>();
        Watch* p = watch.get();
        watches_.push_back(std::move(watch));
        const std::size_t which = rng_.below(2);
        const auto tokens = static_cast<TokenCount>(1 + rng_.below(20));
        io::Loop& loop = which == 0 ? static_cast<io::Loop&>(w_.loop) : w_.other;
        loop_of_[p] = &loop;
        loop.post([this, p, which, tokens] {
            p->session = handles_[which]->submit(request(tokens), watching(*p));
        });
    }
    void abort() {
        if (watches_.empty()) return;
        Watch* p = watches_[rng_.below(watches_.size())].get();
        loop_of_[p]->post([p] {
            p->destroyed = true;
            p->session.reset();
        });
    }
    void finish() {
        w_.moods.clear();
        const bool all = w_.until([&] {
            for (const auto& x : watches_) {
                if (x->session && !x->ended()) return false;
            }
            return true;
        });
        ASSERT_TRUE(all) << "every request ends once faults stop";
        ASSERT_EQ(w_.worker->status().in_flight, 0u);
        bool drained = false;
        const auto drain = [](World& world, bool& done) -> io::Task<void> {
            co_await world.worker->drain(world.loop.now() + 5s);
            done = true;
        };
        w_.loop.spawn(drain(w_, drained));
        ASSERT_TRUE(w_.until([&] { return drained; }));
        ASSERT_EQ(w_.launcher.live(), 0);
        w_.scheduler.run_for(5s);
        ASSERT_EQ(w_.loop.live_tasks(), 0u);
        ASSERT_EQ(w_.other.live_tasks(), 0u);
    }

    World w_;
    Prng rng_;
    std::vector<std::unique_ptr<WorkerHandle>> handles_;
    std::vector<std::unique_ptr<Watch>> watches_;
    std::map<Watch*, io::Loop*> loop_of_;
};

TEST(LocalWorkerProperty, RandomSubmitsAbortsAndKills) {
    for (std::uint64_t seed = 1; seed <= 40 && !testing::Test::HasFatalFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomLife(seed).run(150);
    }
}

}  // namespace
}  // namespace nereid::pools
