// Server and client over 127.0.0.1 on the loop of production, plain and with many clients at once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/http.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/root_task.h"

namespace nereid::io {
namespace {

class HttpLiveTest : public testing::Test {
  protected:
    void SetUp() override {
        server_ = make_http_server(
            loop_, {}, [this](HttpRequest& r, HttpReply& reply) { return handle(r, reply); });
        auto listener = network_.listen({"127.0.0.1", 0, {}});
        ASSERT_TRUE(listener.ok()) << listener.error().message;
        client_ = make_http_client(loop_, network_, {.endpoint = (*listener)->local()});
        server_->serve(std::move(*listener), false);
    }
    Task<void> handle(HttpRequest& r, HttpReply& reply) {
        if (r.path == "/hang") {
            reply.on_disconnect([this] {
                ++disconnects_;
                wake_.notify();
            });
            co_await wake_.wait();
        } else if (r.path == "/stream") {
            CHECK((co_await reply.start(200, {})).ok());
            for (std::size_t at = 0; at < r.body.size(); at += 5000) {
                if (!(co_await reply.chunk(std::string_view(r.body).substr(at, 5000))).ok())
                    co_return;
            }
            (void)co_await reply.finish();
        } else {
            (void)co_await reply.send(200, {}, r.body);
        }
    }
    RealLoop loop_;
    RealNetwork network_{loop_};
    Signal wake_{loop_};
    int disconnects_ = 0;
    std::unique_ptr<HttpServer> server_;
    std::unique_ptr<HttpClient> client_;
};

TEST_F(HttpLiveTest, ManyRequests) {
    int done = 0;
    const auto one = [&](std::size_t n) -> Task<void> {
        for (int i = 0; i < 20; ++i) {
            HttpClientRequest request;
            request.path = i % 2 == 0 ? "/stream" : "/";
            request.body = std::string(n * n * 500, static_cast<char>('a' + n));
            auto response = co_await client_->request(request, loop_.now() + 20s);
            CHECK(response.ok());
            const auto body = co_await (*response)->read_all(10 << 20, loop_.now() + 20s);
            CHECK(body.ok() && *body == request.body);
        }
        ++done;
    };
    std::vector<std::unique_ptr<RootTask>> tasks;
    for (std::size_t n = 0; n < 20; ++n)
        tasks.emplace_back(std::make_unique<RootTask>())->start(one(n));
    EXPECT_TRUE(loop_.run_until([&] { return done == 20; }, 30s));
    EXPECT_EQ(server_->counters().requests, 400u);
    EXPECT_LE(server_->counters().connections, 20u);  // kept alive
}

TEST_F(HttpLiveTest, A54DisconnectWhileTheHandlerWaits) {
    {
        RootTask task;
        const auto run = [&]() -> Task<void> {
            HttpClientRequest request;
            request.path = "/hang";
            (void)co_await client_->request(request, TimePoint::never());
        };
        task.start(run());
        EXPECT_TRUE(loop_.run_until([&] { return server_->counters().active == 1; }, 5s));
    }
    EXPECT_TRUE(
        loop_.run_until([&] { return disconnects_ == 1 && server_->counters().open == 0; }, 5s));
}

TEST_F(HttpLiveTest, DrainEndsEverything) {
    bool got = false, drained = false;
    const auto fetch = [&]() -> Task<void> {
        HttpClientRequest request;
        got = (co_await client_->request(request, loop_.now() + 5s)).ok();
    };
    const auto drain = [&]() -> Task<void> {
        co_await server_->drain(loop_.now() + 5s);
        drained = true;
    };
    RootTask a, b;
    a.start(fetch());
    EXPECT_TRUE(loop_.run_until([&] { return got; }, 5s));
    b.start(drain());  // the client's kept connection is closed
    EXPECT_TRUE(loop_.run_until([&] { return drained; }, 5s));
    EXPECT_EQ(server_->counters().open, 0u);
}

}  // namespace
}  // namespace nereid::io
