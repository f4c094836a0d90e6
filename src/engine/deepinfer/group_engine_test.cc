// GroupEngine against ranks in the simulator: a program that prints the launches, and children that
// are engine hosts over scripted engines.
#include "engine/deepinfer/group_engine.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/host/engine_host.h"
#include "engine/scripted/scripted_engine.h"
#include "io/channel.h"
#include "io/root_task.h"
#include "io/sim_loop.h"
#include "io/sim_network.h"
#include "io/sim_process.h"
#include "model/engine_wire.h"

namespace nereid::engine::deepinfer {
namespace {

enum class Mood : std::uint8_t { kWell, kBadConfig, kExits, kGarbage, kNeverListens, kMute };

struct World {
    explicit World(std::size_t n) : ranks(n) {
        launcher.program("/usr/bin/python3",
                         [this](io::SimChild& child) { return print_launches(child); });
        launcher.program("/rank", [this](io::SimChild& child) { return live(child); });
        GroupOptions options;
        options.config = "group.toml";
        options.python = "/usr/bin/python3";
        options.socket_prefix = "/run/rank-";
        options.start_timeout = 60s;
        options.progress_timeout = 10s;
        group = std::make_unique<GroupEngine>(loop, network, launcher, log, options);
    }
    ~World() { group.reset(); }

    io::Task<io::ExitStatus> print_launches(io::SimChild& child) {
        if (bad_file) {
            child.print("group.toml: model = '': name the model's folder", true);
            co_return io::ExitStatus{.code = 2};
        }
        for (std::size_t r = 0; r < ranks; ++r) {
            child.print("rank " + std::to_string(r) + " " + std::to_string(ranks) + " /rank");
            child.print("RANK=" + std::to_string(r));
        }
        co_return io::ExitStatus{.code = 0};
    }

    io::Task<io::ExitStatus> live(io::SimChild& child) {
        std::size_t rank = 0;
        for (const auto& [name, value] : child.spec().env_extra)
            if (name == "RANK") rank = std::stoul(value);
        ++started;
        const Mood mood = moods[rank];
        co_await child.loop().sleep_for(1s);  // weights
        if (mood == Mood::kBadConfig) {
            child.print("DeepInfer 0.2.0 is not known here", true);
            co_return io::ExitStatus{.code = 2};
        }
        if (mood == Mood::kExits) co_return io::ExitStatus{.code = 1};
        if (mood == Mood::kNeverListens) co_await child.loop().sleep_for(1h);
        auto listener = network.listen(
            {.host = {}, .port = 0, .unix_path = "/run/rank-" + std::to_string(rank) + ".sock"});
        if (mood == Mood::kGarbage || mood == Mood::kMute)
            co_return co_await misbehave(child, mood, std::move(*listener));
        scripted::Script script;
        script.parallel = 8;
        script.model_id = "m";
        script.itl = 5ms;
        scripted::ScriptedEngine engine(std::move(script));
        EngineHost host(child.loop(), engine, log);
        io::Channel<int> end(child.loop(), 4);
        struct Gone {  // also when it is killed: its frame is destroyed where it waits
            std::map<std::size_t, io::Channel<int>*>& dies;
            std::size_t rank;
            ~Gone() { dies.erase(rank); }
        } gone{dies, rank};
        dies[rank] = &end;
        const auto run = [](EngineHost& h, std::unique_ptr<io::Listener> l,
                            io::Channel<int>& e) -> io::Task<void> {
            (void)co_await h.run(std::move(l));
            e.push(0);
        };
        io::RootTask hosting;
        hosting.start(run(host, std::move(*listener), end));
        const auto signal = co_await end.pop();
        co_return io::ExitStatus{.code = 0, .signal = *signal};
    }

    io::Task<io::ExitStatus> misbehave(io::SimChild& child, Mood mood,
                                       std::unique_ptr<io::Listener> listener) {
        auto stream = co_await listener->accept();
        if (!stream.ok()) co_return io::ExitStatus{.code = 1};
        std::string out = "this is no message, and it is longer than a header";
        if (mood == Mood::kMute) {  // greets, and is never heard of again
            out.clear();
            scripted::Script script;
            script.parallel = 8;
            script.model_id = "m";
            const scripted::ScriptedEngine engine(std::move(script));
            model::wire::encode(
                model::wire::Message{model::wire::Welcome{model::wire::kVersion, engine.info()}},
                out);
        }
        const std::string_view pieces[] = {out};
        (void)co_await (*stream)->write(pieces);
        co_await child.loop().sleep_for(1h);
        co_return io::ExitStatus{.code = 1};
    }

    Result<void> start() {
        Result<void> result;
        bool done = false;
        const auto body = [](GroupEngine& g, Result<void>& r, bool& flag) -> io::Task<void> {
            r = co_await g.start();
            flag = true;
        };
        loop.spawn(body(*group, result, done));
        EXPECT_EQ(scheduler.run_until([&done] { return done; }, 10min), io::SimEnd::kDone);
        return result;
    }
    // Drives the engine as a host would, until `done` or an error.
    Result<void> drive(const std::function<bool()>& done, Duration pause = 1ms) {
        for (int i = 0; i < 200'000 && !done(); ++i) {
            if (group->due(loop.now())) {
                TRY(const auto frame, group->step(loop.now()));
                for (const auto& t : frame.tokens) ++tokens[t.id.value];
                for (const auto& f : frame.finished) finished.emplace(f.id.value, f);
            }
            scheduler.run_for(pause);
        }
        EXPECT_TRUE(done());
        return {};
    }
    void add(std::uint64_t id, TokenCount most) {
        model::AddRequest add;
        add.id = {id};
        add.prompt = {65, 66};
        add.max_tokens = most;
        group->submit(std::move(add), loop.now());
    }

    std::size_t ranks;
    std::map<std::size_t, Mood> moods;
    std::map<std::size_t, io::Channel<int>*>
        dies;  // before the loop: children are destroyed with it
    io::SimScheduler scheduler{7};
    io::SimLoop loop{scheduler};
    io::SimNetwork net{scheduler, {}};
    io::SimHost network{net, "host", loop};
    io::SimProcessLauncher launcher{loop};
    ops::Logger log;
    bool bad_file = false;
    int started = 0;
    std::unique_ptr<GroupEngine> group;
    std::map<std::uint64_t, std::size_t> tokens;
    std::map<std::uint64_t, model::Finished> finished;
};

TEST(GroupEngine, RequestsSpreadOverTheRanksAndEachEndsOnce) {
    World w(3);
    ASSERT_TRUE(w.start().ok());
    EXPECT_EQ(w.group->info().max_running, 24u);
    EXPECT_EQ(w.group->pids().size(), 3u);
    for (std::uint64_t id = 1; id <= 24; ++id) w.add(id, 10);
    ASSERT_TRUE(w.drive([&] { return w.finished.size() == 24; }).ok());
    for (const auto& [id, count] : w.tokens) EXPECT_EQ(count, 10u) << id;
}

TEST(GroupEngine, AbortReachesTheRankThatHasTheRequest) {
    World w(2);
    ASSERT_TRUE(w.start().ok());
    for (std::uint64_t id = 1; id <= 4; ++id) w.add(id, 100'000);
    ASSERT_TRUE(w.drive([&] { return w.tokens.size() == 4; }).ok());
    for (std::uint64_t id = 1; id <= 5; ++id)
        w.group->submit(model::AbortRequest{{id}}, w.loop.now());
    ASSERT_TRUE(w.drive([&] { return w.finished.size() == 4; }).ok());
    for (const auto& [id, f] : w.finished) EXPECT_EQ(f.reason, model::EndReason::kAborted);
}

TEST(GroupEngine, OneDeadRankFailsTheGroup) {
    World w(3);
    ASSERT_TRUE(w.start().ok());
    for (std::uint64_t id = 1; id <= 6; ++id) w.add(id, 100'000);
    ASSERT_TRUE(w.drive([&] { return w.tokens.size() == 6; }).ok());
    w.dies[1]->push(9);
    const auto result = w.drive([] { return false; });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::kUnavailable);
    EXPECT_NE(result.error().message.find("rank 1"), std::string::npos) << result.error().message;
    w.group.reset();
    w.scheduler.run_for(1s);
    EXPECT_EQ(w.launcher.live(), 0) << "the others go with it";
}

TEST(GroupEngine, SilentRankIsPingedThenTheGroupFails) {
    World w(2);
    w.moods[1] = Mood::kMute;
    ASSERT_TRUE(w.start().ok());
    const TimePoint from = w.loop.now();
    const auto result = w.drive([] { return false; }, 50ms);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find("rank 1 has said nothing"), std::string::npos)
        << result.error().message;
    EXPECT_GE(w.loop.now() - from, 9s);
    EXPECT_LE(w.loop.now() - from, 12s);
    EXPECT_GE(w.group->counters().pings, 2u) << "an idle rank that answers is no reason";
}

TEST(GroupEngine, IdleGroupThatAnswersPingsLives) {
    World w(2);
    ASSERT_TRUE(w.start().ok());
    const TimePoint until = w.loop.now() + 60s;
    ASSERT_TRUE(w.drive([&] { return w.loop.now() >= until; }, 100ms).ok());
    EXPECT_GE(w.group->counters().pings, 10u);
}

// Found on the real engine: a group that waited a minute for its first client was taken for stuck.
TEST(GroupEngine, GroupWithoutAClientForLongIsNotStuck) {
    World w(2);
    ASSERT_TRUE(w.start().ok());
    w.scheduler.run_for(120s);
    w.add(1, 10);
    ASSERT_TRUE(w.drive([&] { return w.finished.size() == 1; }).ok());
}

TEST(GroupEngine, FaultsAtTheStartAreTold) {
    const struct {
        Mood mood;
        Code code;
        const char* message;
    } cases[] = {{Mood::kBadConfig, Code::kConfig, "0.2.0 is not known"},
                 {Mood::kExits, Code::kUnavailable, "rank 1: exit 1"},
                 {Mood::kGarbage, Code::kCorrupt, "rank 1"},
                 {Mood::kNeverListens, Code::kUnavailable, "start time-out"}};
    for (const auto& c : cases) {
        World w(2);
        w.moods[1] = c.mood;
        const auto result = w.start();
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.code(), c.code) << result.error().message;
        EXPECT_NE(result.error().message.find(c.message), std::string::npos)
            << result.error().message;
    }
}

TEST(GroupEngine, BadFileIsAConfigurationErrorAndNoRankStarts) {
    World w(2);
    w.bad_file = true;
    const auto result = w.start();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::kConfig);
    EXPECT_EQ(result.error().message, "group.toml: model = '': name the model's folder");
    EXPECT_EQ(w.started, 0);
}

TEST(GroupEngine, TooLargeARequestFailsAlone) {
    World w(2);
    ASSERT_TRUE(w.start().ok());
    model::AddRequest add;
    add.id = {1};
    add.prompt = {65};
    add.max_tokens = 5;
    add.grammar.assign(model::wire::kMaxPayload, 'x');
    w.group->submit(std::move(add), w.loop.now());
    w.add(2, 5);
    ASSERT_TRUE(w.drive([&] { return w.finished.size() == 2; }).ok());
    ASSERT_TRUE(w.finished.at(1).error.has_value());
    EXPECT_EQ(w.finished.at(1).error->code, Code::kTooLarge);
    EXPECT_EQ(w.finished.at(2).reason, model::EndReason::kLength);
}

TEST(GroupEngine, KvCommandsForNobodyAreAnswered) {
    World w(1);
    ASSERT_TRUE(w.start().ok());
    w.group->submit(model::ExportBlocks{{9}, 0, 1, 0, 1}, w.loop.now());
    const auto frame = w.group->step(w.loop.now());
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->kv_failed.size(), 1u);
    EXPECT_EQ(frame->kv_failed[0].error.code, Code::kNotFound);
}

}  // namespace
}  // namespace nereid::engine::deepinfer
