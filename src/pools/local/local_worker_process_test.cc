// LocalWorker with real processes: this program is its own child (see main).
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/host/engine_host.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/real_process.h"
#include "pools/local/fake_child.h"
#include "pools/local/local_worker.h"

namespace nereid::pools {
namespace {

constexpr std::string_view kChild = "--be-a-child";

// argv: program, kChild, mode, socket
int be_a_child(std::string_view mode, const std::string& socket) {
    std::fputs("the child speaks\n", stderr);
    if (mode == "bad-config") return 2;
    io::RealLoop loop;
    io::RealNetwork network(loop);
    CountingEngine engine(loop, 1, 100, 2ms);
    ops::Logger log;
    engine::EngineHost host(loop, engine, log);
    io::Endpoint at;
    at.unix_path = socket;
    auto listener = network.listen(at);
    if (!listener.ok()) return 1;
    const io::SignalWatch watch(loop, {SIGTERM}, [&host](int) { host.stop(); });
    const auto run = [](engine::EngineHost& h, std::unique_ptr<io::Listener> l,
                        io::RealLoop& lp) -> io::Task<void> {
        (void)co_await h.run(std::move(l));
        lp.stop();
    };
    loop.spawn(run(host, std::move(*listener), loop));
    loop.run();
    return 0;
}

class LocalWorkerProcess : public testing::Test {
  protected:
    void make(std::string mode, Duration progress_timeout = 60s) {
        LocalWorkerOptions o;
        const std::string socket = folder + "/worker.sock";
        o.argv = {"/proc/self/exe", std::string(kChild), std::move(mode), socket};
        o.socket_path = socket;
        o.progress_timeout = progress_timeout;
        worker = make_local_worker(loop, network, launcher, log, metrics, o);
        handle = worker->handle_for(loop);
        worker->start();
    }
    bool until(const std::function<bool()>& done) { return loop.run_until(done, 30s); }

    struct Watch {
        std::unique_ptr<Session> session;
        TokenId tokens = 0;
        bool finished = false;
        std::optional<Error> error;
    };
    void submit(Watch& w, TokenCount tokens) {
        model::AddRequest r;
        r.prompt = {1};
        r.max_tokens = tokens;
        w.session = handle->submit(std::move(r), [&w](Update&& u) {
            for (const auto& t : u.tokens) EXPECT_EQ(t.token, w.tokens++);
            if (u.finished) w.finished = true;
            if (u.error) w.error = u.error;
        });
    }
    double restarts(const std::string& cause) {
        return static_cast<double>(
            metrics
                .counter("nereid_worker_restarts_total",
                         "Ends of the engine process that were answered by a new one.",
                         {"worker", "cause"})
                .with({"local", cause})
                .value());
    }
    static std::string make_folder() {
        std::string path = testing::TempDir() + "nereid-pools-XXXXXX";
        EXPECT_NE(mkdtemp(path.data()), nullptr);
        return path;
    }
    void TearDown() override {
        handle.reset();
        worker.reset();
        std::filesystem::remove_all(folder);
    }

    std::string folder = make_folder();
    ops::MemorySink sink;
    io::RealLoop loop;
    ops::Logger log{sink, [this] { return loop.wall_now(); }};
    io::RealNetwork network{loop};
    io::RealProcessLauncher launcher{loop};
    ops::Registry metrics;
    std::unique_ptr<LocalWorker> worker;
    std::unique_ptr<WorkerHandle> handle;
};

TEST_F(LocalWorkerProcess, KillNineIsARestart) {
    make("well");
    Watch streaming, queued;
    submit(streaming, 1'000'000);
    submit(queued, 20);
    ASSERT_TRUE(until([&] { return streaming.tokens > 5; }));
    const int pid = worker->status().pid;
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(until([&] { return queued.finished; }));
    EXPECT_EQ(queued.tokens, 20);
    ASSERT_TRUE(streaming.error);
    EXPECT_EQ(streaming.error->code, Code::kWorkerLost);
    EXPECT_NE(worker->status().pid, pid);
    EXPECT_EQ(restarts("signal"), 1);
    EXPECT_TRUE(sink.contains("the child speaks"));
    EXPECT_TRUE(sink.contains("SIGKILL"));
}

TEST_F(LocalWorkerProcess, AFrozenChildIsKilledAndReplaced) {
    make("well", 300ms);
    Watch a;
    submit(a, 1'000'000);
    ASSERT_TRUE(until([&] { return a.tokens > 5; }));
    ASSERT_EQ(kill(worker->status().pid, SIGSTOP), 0);
    ASSERT_TRUE(until([&] { return a.error.has_value(); }));
    Watch b;
    submit(b, 3);
    ASSERT_TRUE(until([&] { return b.finished; }));
    EXPECT_EQ(restarts("stalled"), 1);
}

TEST_F(LocalWorkerProcess, ABadConfigurationIsNotTriedAgain) {
    make("bad-config");
    ASSERT_TRUE(until([&] { return worker->status().state == WorkerState::kFailed; }));
    EXPECT_EQ(worker->status().last_error, "the child speaks");
}

TEST_F(LocalWorkerProcess, DrainEndsTheChild) {
    make("well");
    Watch a;
    submit(a, 200);
    ASSERT_TRUE(until([&] { return a.tokens > 5; }));
    bool drained = false;
    const auto drain = [](LocalWorker& w, TimePoint deadline, bool& done) -> io::Task<void> {
        co_await w.drain(deadline);
        done = true;
    };
    loop.spawn(drain(*worker, loop.now() + 20s, drained));
    ASSERT_TRUE(until([&] { return drained; }));
    EXPECT_TRUE(a.finished);
    EXPECT_EQ(a.tokens, 200);
    EXPECT_EQ(worker->status().state, WorkerState::kStopped);
    EXPECT_FALSE(std::filesystem::exists(folder + "/worker.sock"));
}

}  // namespace
}  // namespace nereid::pools

int main(int argc, char** argv) {
    if (argc == 4 && nereid::pools::kChild == argv[1])
        return nereid::pools::be_a_child(argv[2], argv[3]);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
