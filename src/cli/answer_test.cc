#include "cli/answer.h"

#include <gtest/gtest.h>

#include "io/real_loop.h"
#include "io/real_network.h"

namespace nereid::cli {
namespace {

// A server that answers every request by `script`, and one question to it.
class Answer : public testing::Test {
  protected:
    using Script = std::function<io::Task<void>(io::HttpReply&)>;
    Result<void> ask(Script script, Duration timeout = 20s) {
        script_ = std::move(script);
        server_ = io::make_http_server(
            loop_, {}, [this](io::HttpRequest&, io::HttpReply& reply) { return script_(reply); });
        io::Endpoint at;
        at.host = "127.0.0.1";
        auto listener = network_.listen(at);
        EXPECT_TRUE(listener.ok());
        io::HttpClientOptions options;
        options.endpoint = (*listener)->local();
        server_->serve(std::move(*listener), false);
        client_ = io::make_http_client(loop_, network_, options);
        std::optional<Result<void>> result;
        const auto run = [](Answer& t, Duration limit,
                            std::optional<Result<void>>& out) -> io::Task<void> {
            io::HttpClientRequest request;
            request.path = "/v1/chat/completions";
            request.body = "{}";
            out = co_await stream_answer(t.loop_, *t.client_, request, limit,
                                         [&t](std::string_view s) { t.text_ += s; });
        };
        loop_.spawn(run(*this, timeout, result));
        EXPECT_TRUE(loop_.run_until([&] { return result.has_value(); }, 20s));
        return result ? *result : Error{Code::kInternal, "no end"};
    }
    static io::Task<void> begin(io::HttpReply& reply) {
        io::Headers headers;
        headers.add("content-type", "text/event-stream");
        EXPECT_TRUE((co_await reply.start(200, headers)).ok());
        for (const char* word : {"Hello", ", you"}) {
            const std::string frame =
                std::string("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"") + word +
                "\"}}]}\n\n";
            EXPECT_TRUE((co_await reply.chunk(frame)).ok());
        }
    }

    io::RealLoop loop_;
    io::RealNetwork network_{loop_};
    Script script_;
    std::unique_ptr<io::HttpServer> server_;
    std::unique_ptr<io::HttpClient> client_;
    std::string text_;
};

TEST_F(Answer, GivesTheTextAsItComes) {
    const auto result = ask([](io::HttpReply& reply) -> io::Task<void> {
        co_await begin(reply);
        EXPECT_TRUE((co_await reply.chunk("data: "
                                          "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_"
                                          "reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
                        .ok());
        EXPECT_TRUE((co_await reply.finish()).ok());
    });
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(text_, "Hello, you");
}

TEST_F(Answer, ARefusalKeepsTheServersWords) {
    const auto result = ask([](io::HttpReply& reply) -> io::Task<void> {
        EXPECT_TRUE(
            (co_await reply.send(
                 404, {}, R"({"error":{"message":"no such model","code":"model_not_found"}})"))
                .ok());
    });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().message, "no such model");
    EXPECT_EQ(text_, "");
}

TEST_F(Answer, AnErrorFrameEndsIt) {
    const auto result = ask([](io::HttpReply& reply) -> io::Task<void> {
        co_await begin(reply);
        EXPECT_TRUE(
            (co_await reply.chunk("data: {\"error\":{\"message\":\"the engine died\"}}\n\n")).ok());
        EXPECT_TRUE((co_await reply.finish()).ok());
    });
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find("the engine died"), std::string::npos);
    EXPECT_EQ(text_, "Hello, you");
}

TEST_F(Answer, ABrokenConnectionIsAnErrorAndKeepsWhatWasSaid) {
    const auto result = ask([](io::HttpReply& reply) -> io::Task<void> {
        co_await begin(reply);
        reply.abort();
    });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::kWorkerLost);
    EXPECT_EQ(text_, "Hello, you");
}

TEST_F(Answer, SilenceEndsIt) {
    const auto result = ask(
        [this](io::HttpReply& reply) -> io::Task<void> {
            co_await begin(reply);
            co_await loop_.sleep_for(20s);
        },
        200ms);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace nereid::cli
