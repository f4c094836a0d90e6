// Process: real children (/bin/sh) and scripted ones.
#include "io/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "io/disk.h"
#include "io/line_splitter.h"
#include "io/real_process.h"
#include "io/sim_process.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

struct RealShell : RealWorld {
    RealProcessLauncher launcher{loop};
    ProcessSpec sh(const std::string& script) {
        return {
            .argv = {"/bin/sh", "-c", script}, .env_extra = {}, .inherit_fds = {}, .on_line = {}};
    }
};
// Enough of a shell for the bodies below.
struct SimShell : SimWorld {
    SimProcessLauncher launcher{loop};
    SimShell() {
        launcher.program("/bin/sh", [](SimChild& child) -> Task<ExitStatus> {
            const std::string script = child.spec().argv.at(2);
            if (script.starts_with("exit "))
                co_return ExitStatus{.code = std::stoi(script.substr(5)), .signal = 0};
            if (script.starts_with("echo ")) {
                child.print("out");
                child.print("err", true);
                co_return ExitStatus{};
            }
            if (script.starts_with("trap ")) {
                child.trap(SIGTERM);
                child.print("ready");
                [[maybe_unused]] auto s = co_await child.signals().pop();
                co_return ExitStatus{.code = 7, .signal = 0};
            }
            child.print("ready");
            co_await child.loop().sleep_for(1h);
            co_return ExitStatus{};
        });
    }
    ProcessSpec sh(const std::string& script) {
        return {
            .argv = {"/bin/sh", "-c", script}, .env_extra = {}, .inherit_fds = {}, .on_line = {}};
    }
};

template <class World>
class ProcessTest : public testing::Test {
  protected:
    World world_;
};
using Shells = testing::Types<RealShell, SimShell>;
TYPED_TEST_SUITE(ProcessTest, Shells);

TYPED_TEST(ProcessTest, ExitCodeIsReported) {
    run_in(this->world_, [&]() -> Task<void> {
        auto p = *this->world_.launcher.start(this->world_.sh("exit 3"));
        EXPECT_GT(p->pid(), 0);
        const auto status = co_await p->wait();
        EXPECT_EQ(status.code, 3);
        EXPECT_EQ(status.to_string(), "exit 3");
    });
}

TYPED_TEST(ProcessTest, OutputArrivesAsLinesBeforeTheEnd) {
    run_in(this->world_, [&]() -> Task<void> {
        std::vector<std::string> lines;
        auto spec = this->world_.sh("echo out; echo err >&2");
        spec.on_line = [&](std::string_view line, bool is_stderr) {
            lines.push_back((is_stderr ? "2:" : "1:") + std::string(line));
        };
        auto p = *this->world_.launcher.start(std::move(spec));
        EXPECT_EQ((co_await p->wait()).code, 0);
        std::ranges::sort(lines);
        EXPECT_EQ(lines, (std::vector<std::string>{"1:out", "2:err"}));
    });
}

TYPED_TEST(ProcessTest, KilledBySignalIsReported) {
    for (const int number : {SIGKILL, SIGTERM}) {
        run_in(this->world_, [&]() -> Task<void> {
            auto p = *this->world_.launcher.start(this->world_.sh("sleep 1000"));
            p->signal(number);
            const auto status = co_await p->wait();
            EXPECT_EQ(status.signal, number);
            EXPECT_EQ(status.to_string(),
                      number == SIGKILL ? "killed by SIGKILL" : "killed by SIGTERM");
        });
    }
}

TYPED_TEST(ProcessTest, ATrappedSignalIsTheChildsBusiness) {
    run_in(this->world_, [&]() -> Task<void> {
        bool ready = false;
        auto spec = this->world_.sh("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        spec.on_line = [&](std::string_view, bool) { ready = true; };
        auto p = *this->world_.launcher.start(std::move(spec));
        while (!ready) co_await this->world_.loop.sleep_for(1ms);
        p->signal(SIGTERM);
        EXPECT_EQ((co_await p->wait()).code, 7);
    });
}

TYPED_TEST(ProcessTest, WhatCannotBeExecutedIsAnErrorThatNamesIt) {
    ProcessSpec spec{
        .argv = {"/no/such/program"}, .env_extra = {}, .inherit_fds = {}, .on_line = {}};
    const auto r = this->world_.launcher.start(std::move(spec));
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.code(), Code::kIo);
    EXPECT_EQ(r.error().message, "cannot start /no/such/program: No such file or directory");
}

TYPED_TEST(ProcessTest, DestroyedWhileItRunsAndWhileSomebodyWaits) {
    run_in(this->world_, [&]() -> Task<void> {
        auto p = *this->world_.launcher.start(this->world_.sh("sleep 1000"));
        bool ended = false;
        this->world_.loop.spawn([](Process& process, bool& flag) -> Task<void> {
            EXPECT_EQ((co_await process.wait()).signal, SIGKILL);
            flag = true;
        }(*p, ended));
        auto waiting =
            (*this->world_.launcher.start(this->world_.sh("sleep 1000")))->wait().release();
        waiting.resume();
        waiting.destroy();
        const int pid = p->pid();
        p.reset();
        while (!ended) co_await this->world_.loop.yield();
        if constexpr (std::is_same_v<TypeParam, RealShell>) {
            EXPECT_EQ(kill(pid, 0), -1);
        }
    });
}

TYPED_TEST(ProcessTest, OnLineMayDestroyTheProcess) {
    run_in(this->world_, [&]() -> Task<void> {
        std::unique_ptr<Process> p;
        bool gone = false;
        auto spec = this->world_.sh("while :; do echo ready; done");
        spec.on_line = [&](std::string_view, bool) {
            EXPECT_FALSE(gone);
            p.reset();
            gone = true;
        };
        p = *this->world_.launcher.start(std::move(spec));
        while (!gone) co_await this->world_.loop.sleep_for(1ms);
        co_await this->world_.loop.sleep_for(1ms);
    });
}

// Of a process that is not our child: init reaps it, until then it is a zombie.
bool is_gone(int pid) {
    if (kill(pid, 0) != 0) return true;
    const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat", 1 << 16);
    return !stat.ok() || stat->find(") Z") != std::string::npos;
}

TEST(RealProcess, FloodOfOutputIsCountedWholeAndDoesNotStarveTheLoop) {
    RealShell world;
    run_in(world, [&]() -> Task<void> {
        std::size_t lines = 0;
        std::size_t longest = 0;
        bool tick = false;
        auto spec = world.sh(
            "yes 0123456789 | head -n 200000; head -c 100000 /dev/zero | tr '\\0' x; echo; echo "
            "last");
        spec.on_line = [&](std::string_view line, bool) {
            ++lines;
            longest = std::max(longest, line.size());
        };
        auto p = *world.launcher.start(std::move(spec));
        world.loop.arm(world.loop.now() + 1ms, [&] { tick = true; });
        EXPECT_EQ((co_await p->wait()).code, 0);
        EXPECT_EQ(lines, 200'002U);
        EXPECT_EQ(longest, 64U << 10);  // the long line was cut
        EXPECT_TRUE(tick);
    });
}

TEST(RealProcess, ChildStartsClean) {
    RealShell world;
    run_in(world, [&]() -> Task<void> {
        const int leaked = open("/dev/null", O_RDONLY);  // without O_CLOEXEC, as a library would
        const int wanted = open("/dev/null", O_RDONLY | O_CLOEXEC);
        sigset_t blocked;
        sigset_t before;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &blocked, &before);
        std::vector<std::string> lines;
        auto spec = world.sh(
            "ls -l /proc/self/fd | grep -c ' -> /dev/null'; echo $NEREID_TEST_X; "
            "grep SigBlk /proc/self/status; [ $(ps -o pgid= -p $$) = $$ ] && echo leader; cat");
        spec.env_extra = {{"NEREID_TEST_X", "value"}};
        spec.inherit_fds = {wanted};
        spec.on_line = [&](std::string_view line, bool) { lines.emplace_back(line); };
        auto p = *world.launcher.start(std::move(spec));
        EXPECT_EQ((co_await p->wait()).code, 0);
        EXPECT_GE(lines.size(), 3U);
        if (lines.size() >= 3) {
            EXPECT_EQ(lines[0], "2");  // standard input and the wanted one
            EXPECT_EQ(lines[1], "value");
            EXPECT_NE(lines[2].find("0000000000000000"), std::string::npos) << lines[2];
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        close(leaked);
        close(wanted);
    });
}

TEST(RealProcess, GrandchildrenGoWithTheProcess) {
    RealShell world;
    run_in(world, [&]() -> Task<void> {
        int grandchild = 0;
        auto spec = world.sh("sleep 1000 & echo $!; wait");
        spec.on_line = [&](std::string_view line, bool) {
            grandchild = std::stoi(std::string(line));
        };
        auto p = *world.launcher.start(std::move(spec));
        while (grandchild == 0) co_await world.loop.sleep_for(1ms);
        p.reset();
        while (!is_gone(grandchild)) co_await world.loop.sleep_for(1ms);
    });
}

TEST(RealProcess, OurDeathIsTheChildsDeath) {
    std::array<int, 2> fds{};
    ASSERT_EQ(pipe(fds.data()), 0);
    const pid_t starter = fork();
    if (starter == 0) {  // a Nereid that starts a child and is killed before it can clean up
        RealShell world;
        const auto p = world.launcher.start(world.sh("sleep 1000"));
        const int pid = (*p)->pid();
        if (write(fds[1], &pid, sizeof pid) != sizeof pid) _exit(1);
        for (;;) pause();
    }
    int pid = 0;
    ASSERT_EQ(read(fds[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    EXPECT_EQ(kill(pid, 0), 0);
    kill(starter, SIGKILL);
    waitpid(starter, nullptr, 0);
    RealShell world;
    run_in(world, [&]() -> Task<void> {
        while (!is_gone(pid)) co_await world.loop.sleep_for(1ms);
    });
    close(fds[0]);
    close(fds[1]);
}

TEST(RealProcess, TheLoopMayEndBeforeTheChild) {
    int pid = 0;
    {
        RealShell world;
        world.loop.spawn([](RealShell& w, int& out) -> Task<void> {
            auto p = *w.launcher.start(w.sh("sleep 1000"));
            out = p->pid();
            co_await p->wait();
        }(world, pid));
    }
    EXPECT_EQ(kill(pid, 0), -1);
}

TEST(SimProcess, RefusedStartsAndLiveCount) {
    SimShell world;
    world.launcher.fail_starts(1);
    EXPECT_EQ(world.launcher.start(world.sh("exit 0")).code(), Code::kIo);
    auto p = *world.launcher.start(world.sh("sleep"));
    EXPECT_EQ(world.launcher.live(), 1);
    p.reset();
    world.scheduler.run_until_idle();
    EXPECT_EQ(world.launcher.live(), 0);
    EXPECT_EQ(world.scheduler.now(), TimePoint{});  // its sleep went with it
}

TEST(LineSplitter, CutsWhereverThePiecesEnd) {
    const std::string text = "one\ntwo\r\n\nthisistoolong\nend";
    for (std::size_t step = 1; step <= text.size(); ++step) {
        std::vector<std::string> lines;
        LineSplitter splitter(8, [&](std::string_view l) { lines.emplace_back(l); });
        for (std::size_t at = 0; at < text.size(); at += step)
            splitter.add(std::string_view(text).substr(at, step));
        splitter.finish();
        EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "", "thisisto", "end"})) << step;
    }
}

}  // namespace
}  // namespace nereid::io
