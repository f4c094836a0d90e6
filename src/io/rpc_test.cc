// One set of tests for gRPC over 127.0.0.1 and for the memory implementation.
#include "io/rpc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "io/http_testing.h"
#include "io/real_loop.h"
#include "io/root_task.h"
#include "io/rpc_memory.h"

namespace nereid::io {
namespace {

using std::string;

struct GrpcWorld {
    RealLoop loop;
    std::unique_ptr<RpcServer> make_server() { return make_grpc_server(loop); }
    std::unique_ptr<RpcClient> make_client(std::uint16_t port) {
        return make_grpc_client(loop, "127.0.0.1", port);
    }
    bool until(const std::function<bool()>& done) { return loop.run_until(done, 10s); }
};

struct MemoryWorld {
    TestLoop loop;
    MemoryRpc rpc{loop};
    std::unique_ptr<RpcServer> make_server() { return rpc.make_server(); }
    std::unique_ptr<RpcClient> make_client(std::uint16_t port) {
        return rpc.make_client("127.0.0.1", port);
    }
    bool until(const std::function<bool()>& done) {
        for (int i = 0; i < 10'000 && !done(); ++i) loop.advance(1ms);
        return done();
    }
};

template <class World>
class RpcTest : public testing::Test {
  protected:
    void SetUp() override {
        server_ = world_.make_server();
        server_->handle("/t/echo", [](string r) -> Task<Result<string>> { co_return "echo " + r; });
        server_->handle("/t/fail", [](string r) -> Task<Result<string>> {
            co_return Error{code_from_name(r), "because of \xe2\x82\xac", "field[2]"};
        });
        server_->handle("/t/slow", [this](string) -> Task<Result<string>> {
            co_await world_.loop.sleep_for(300ms);
            ++finished_;
            co_return "late";
        });
        server_->handle("/t/hang", [this](string) -> Task<Result<string>> {
            ++hanging_;
            co_await world_.loop.sleep_until(TimePoint::never());
            co_return "never";
        });
        server_->handle_stream(
            "/t/count", [](string r, std::function<Task<bool>(string)> send) -> Task<Result<void>> {
                for (int i = 0; i < std::stoi(r); ++i) {
                    if (!co_await send(fmt::format("{}", i))) break;
                }
                co_return Result<void>{};
            });
        server_->handle_stream(
            "/t/endless",
            [this](string, std::function<Task<bool>(string)> send) -> Task<Result<void>> {
                const string message(100'000, 'x');
                while (co_await send(message)) ++sent_;
                ++saw_gone_;
                co_return Result<void>{};
            });
        server_->handle_stream(
            "/t/breaks", [](string, std::function<Task<bool>(string)> send) -> Task<Result<void>> {
                (void)co_await send("one");
                co_return Error{Code::kWorkerLost, "died"};
            });
        const auto port = server_->start("127.0.0.1", 0);
        ASSERT_TRUE(port.ok()) << port.error().message;
        port_ = *port;
        client_ = world_.make_client(port_);
    }

    TimePoint in(Duration d) { return world_.loop.now() + d; }

    Result<string> call(string method, string request, Duration limit = 5s) {
        Result<string> got = Error{Code::kInternal, "no end"};
        bool done = false;
        const auto run = [&]() -> Task<void> {
            got = co_await client_->call(method, request, in(limit));
            done = true;
        };
        RootTask task;
        task.start(run());
        EXPECT_TRUE(world_.until([&] { return done; }));
        return got;
    }

    // All messages, then the code of the end.
    std::pair<std::vector<string>, Code> collect(string method, string request,
                                                 std::size_t at_most = 1'000'000) {
        std::vector<string> got;
        Code end = Code::kInternal;
        bool done = false;
        const auto run = [&]() -> Task<void> {
            const auto stream = client_->open(method, request, in(5s));
            while (got.size() < at_most) {
                auto m = co_await stream->next();
                if (!m.ok()) {
                    end = m.code();
                    break;
                }
                got.push_back(*m);
            }
            done = true;
        };
        RootTask task;
        task.start(run());
        EXPECT_TRUE(world_.until([&] { return done; }));
        return {got, end};
    }

    World world_;
    int finished_ = 0, hanging_ = 0, sent_ = 0, saw_gone_ = 0;
    std::uint16_t port_ = 0;
    std::unique_ptr<RpcServer> server_;
    std::unique_ptr<RpcClient> client_;
};

#if __has_feature(thread_sanitizer)
// Debian's gRPC is not instrumented: TSan sees none of its locks and calls each hand-over a race.
using Worlds = testing::Types<MemoryWorld>;
#else
using Worlds = testing::Types<GrpcWorld, MemoryWorld>;
#endif
TYPED_TEST_SUITE(RpcTest, Worlds);

TYPED_TEST(RpcTest, Unary) {
    EXPECT_EQ(*this->call("/t/echo", "hi"), "echo hi");
    EXPECT_EQ(*this->call("/t/echo", ""), "echo ");
    const string big(5'000'000, '\0');
    EXPECT_EQ(*this->call("/t/echo", big), "echo " + big);
}

TYPED_TEST(RpcTest, EveryCodeComesBack) {
    for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i) {
        const Code code = static_cast<Code>(i);
        const auto got = this->call("/t/fail", string(code_info(code).name));
        ASSERT_FALSE(got.ok());
        EXPECT_EQ(got.error(), (Error{code, "because of \xe2\x82\xac", "field[2]"}))
            << code_info(code).name;
    }
}

TYPED_TEST(RpcTest, UnknownMethodAndNobodyThere) {
    EXPECT_EQ(this->call("/t/nothing", "").code(), Code::kUnsupported);
    this->client_ = this->world_.make_client(1);
    EXPECT_EQ(this->call("/t/echo", "").code(), Code::kUnavailable);
}

TYPED_TEST(RpcTest, ManyAtOnce) {
    std::vector<string> got(200);
    int done = 0;
    std::vector<std::unique_ptr<RootTask>> tasks;
    const auto run = [&](std::size_t i) -> Task<void> {
        auto r = co_await this->client_->call("/t/echo", fmt::format("{}", i), this->in(5s));
        if (r.ok()) got[i] = *r;
        ++done;
    };
    for (std::size_t i = 0; i < got.size(); ++i)
        tasks.emplace_back(std::make_unique<RootTask>())->start(run(i));
    EXPECT_TRUE(this->world_.until([&] { return done == 200; }));
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], fmt::format("echo {}", i));
}

TYPED_TEST(RpcTest, Deadline) {
    EXPECT_EQ(this->call("/t/hang", "", 50ms).code(), Code::kDeadlineExceeded);
    EXPECT_EQ(*this->call("/t/echo", "still"), "echo still");
}

TYPED_TEST(RpcTest, DestroyingACallCancels) {
    {
        RootTask task;
        const auto run = [&]() -> Task<void> {
            (void)co_await this->client_->call("/t/slow", "", this->in(5s));
        };
        task.start(run());
        // Let the request reach the handler.
        EXPECT_EQ(*this->call("/t/echo", "x"), "echo x");
    }
    EXPECT_TRUE(this->world_.until([&] { return this->finished_ <= 1; }));
    EXPECT_EQ(*this->call("/t/echo", "y"), "echo y");
}

TYPED_TEST(RpcTest, Stream) {
    const auto [got, end] = this->collect("/t/count", "500");
    EXPECT_EQ(end, Code::kNotFound);
    ASSERT_EQ(got.size(), 500u);
    for (std::size_t i = 0; i < 500; ++i) EXPECT_EQ(got[i], fmt::format("{}", i));
    EXPECT_TRUE(this->collect("/t/count", "0").first.empty());
}

TYPED_TEST(RpcTest, StreamThatFails) {
    const auto [got, end] = this->collect("/t/breaks", "");
    EXPECT_EQ(got, (std::vector<string>{"one"}));
    EXPECT_EQ(end, Code::kWorkerLost);
}

TYPED_TEST(RpcTest, ASlowReaderHoldsTheSenderBackAndLeavingIsSeen) {
    EXPECT_EQ(this->collect("/t/endless", "", 1).first.size(), 1u);
    EXPECT_TRUE(this->world_.until([&] { return this->saw_gone_ == 1; }));
    EXPECT_LT(this->sent_, 200);  // gRPC's windows hold some MB; endless would be thousands

    const auto stream = this->client_->open("/t/endless", "", this->in(5s));
    const int before = this->sent_;
    EXPECT_EQ(*this->call("/t/echo", "x"), "echo x");
    EXPECT_LT(this->sent_ - before, 200);
}

TYPED_TEST(RpcTest, StopWaitsForHandlers) {
    Result<string> got = Error{};
    bool answered = false, stopped = false;
    const auto run = [&]() -> Task<void> {
        got = co_await this->client_->call("/t/slow", "", this->in(5s));
        answered = true;
    };
    const auto stop = [&]() -> Task<void> {
        co_await this->server_->stop(this->in(5s));
        stopped = true;
    };
    RootTask a, b;
    a.start(run());
    EXPECT_EQ(*this->call("/t/echo", "x"), "echo x");
    b.start(stop());
    EXPECT_TRUE(this->world_.until([&] { return answered && stopped; }));
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(*got, "late");
    EXPECT_EQ(this->call("/t/echo", "x").code(), Code::kUnavailable);
}

TYPED_TEST(RpcTest, StopAtItsDeadlineEndsTheRest) {
    Result<string> got = Error{};
    bool answered = false, stopped = false;
    const auto run = [&]() -> Task<void> {
        got = co_await this->client_->call("/t/hang", "", this->in(60s));
        answered = true;
    };
    const auto stop = [&]() -> Task<void> {
        co_await this->server_->stop(this->in(50ms));
        stopped = true;
    };
    RootTask a, b;
    a.start(run());
    EXPECT_TRUE(this->world_.until([&] { return this->hanging_ == 1; }));
    b.start(stop());
    EXPECT_TRUE(this->world_.until([&] { return answered && stopped; }));
    EXPECT_EQ(got.code(), Code::kUnavailable);
}

TYPED_TEST(RpcTest, DestroyedInTheMiddle) {
    const auto stream = this->client_->open("/t/endless", "", this->in(5s));
    RootTask task;
    const auto run = [&]() -> Task<void> {
        (void)co_await this->client_->call("/t/hang", "", this->in(60s));
    };
    task.start(run());
    EXPECT_TRUE(this->world_.until([&] { return this->hanging_ == 1; }));
    this->server_.reset();
}

TYPED_TEST(RpcTest, PortInUse) {
    const auto other = this->world_.make_server();
    const auto r = other->start("127.0.0.1", this->port_);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.code(), Code::kConflict);
}

TEST(MemoryRpcTest, DelaysAndLosses) {
    TestLoop loop;
    bool lose = false;
    MemoryRpc rpc(loop, [&](std::string_view, std::string_view) {
        return MemoryRpc::Fate{.delay = 10ms, .lost = lose};
    });
    const auto server = rpc.make_server();
    server->handle("/echo", [](string r) -> Task<Result<string>> { co_return r; });
    const auto port = server->start("a", 0);
    const auto client = rpc.make_client("a", *port);
    std::vector<std::pair<Result<string>, Duration>> got;
    const auto run = [&]() -> Task<void> {
        const TimePoint begin = loop.now();
        auto r = co_await client->call("/echo", "x", loop.now() + 1s);
        got.emplace_back(std::move(r), loop.now() - begin);
    };
    RootTask task;
    task.start(run());
    loop.advance(2s);
    lose = true;
    task.start(run());
    loop.advance(2s);
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(*got[0].first, "x");
    EXPECT_EQ(got[0].second, 20ms);
    EXPECT_EQ(got[1].first.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(got[1].second, 1s);
}

}  // namespace
}  // namespace nereid::io
