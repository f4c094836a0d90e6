// The text backend against servers in the test: streams, whole answers, and every way an upstream
// can fail.
#include "engine/openai/text_backend.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::engine::openai {
namespace {

using testing::HasSubstr;

// Servers by port. A port without server refuses.
class Ports final : public io::Network {
  public:
    explicit Ports(io::Loop& loop) : loop_(loop) {}
    io::TestNetwork& at(std::uint16_t port) {
        auto& net = nets_[port];
        if (!net) net = std::make_unique<io::TestNetwork>(loop_);
        return *net;
    }
    io::Task<Result<std::unique_ptr<io::Stream>>> connect(const io::Endpoint& to,
                                                          TimePoint deadline) override {
        ++connects[to.port];
        const auto net = nets_.find(to.port);
        if (net == nets_.end()) co_return Error{Code::kIo, "Connection refused"};
        co_return co_await net->second->connect(to, deadline);
    }
    Result<std::unique_ptr<io::Listener>> listen(const io::Endpoint&, bool) override {
        return err(Code::kUnsupported, "not in this test");
    }
    std::map<std::uint16_t, int> connects;

  private:
    io::Loop& loop_;
    std::map<std::uint16_t, std::unique_ptr<io::TestNetwork>> nets_;
};

const std::string kChunk =
    R"(data: {"id":"c","choices":[{"index":0,"delta":{"content":"tok "},"finish_reason":null}]})"
    "\n\n";
const std::string kEnd =
    R"(data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})"
    "\n\n"
    R"(data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}})"
    "\n\ndata: [DONE]\n\n";
const std::string kWhole =
    R"({"choices":[{"index":0,"message":{"content":"tok tok"},"finish_reason":"stop"}],)"
    R"("usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}})";

class TextBackendTest : public testing::Test {
  protected:
    // What the server on `port` does with each request.
    void serve(std::uint16_t port, io::HttpHandler handler) {
        servers_.push_back(io::make_http_server(loop, {}, std::move(handler)));
        servers_.back()->serve(net.at(port).listener(), false);
        loop.settle();
    }
    static io::HttpHandler stream(std::vector<std::string> pieces, bool finish = true) {
        return [pieces, finish](io::HttpRequest&, io::HttpReply& reply) -> io::Task<void> {
            const auto own = pieces;
            const bool whole = finish;
            io::Headers h;
            h.add("content-type", "text/event-stream");
            (void)co_await reply.start(200, h);
            for (const auto& piece : own) (void)co_await reply.chunk(piece);
            if (whole)
                (void)co_await reply.finish();
            else
                reply.abort();
        };
    }
    static io::HttpHandler answer(int status, std::string body) {
        return [status, body](io::HttpRequest&, io::HttpReply& reply) -> io::Task<void> {
            const std::string own = body;
            io::Headers h;
            h.add("content-type", "application/json");
            (void)co_await reply.send(status, h, own);
        };
    }
    void make(std::vector<std::string> urls) {
        TextBackendOptions options;
        options.base_urls = std::move(urls);
        options.api_key = "sk-up";
        options.event_timeout = 30s;
        auto made = make_text_backend(loop, net, std::move(options));
        ASSERT_TRUE(made.ok());
        backend = std::move(*made);
    }
    struct Run {
        std::vector<std::vector<model::Event>> batches;
        std::string served_by;
        model::Request request;
        bool done = false;
        bool wanted = true;
        io::RootTask task;

        std::string text() const {
            std::string out;
            for (const auto& b : batches) {
                for (const auto& e : b) {
                    if (const auto* t = std::get_if<model::TextDelta>(&e)) out += t->text;
                }
            }
            return out;
        }
        const model::Event& last() const { return batches.back().back(); }
        const Error* error() const {
            const auto* f = batches.empty() ? nullptr : std::get_if<model::Failed>(&last());
            return f == nullptr ? nullptr : &f->error;
        }
        int ends() const {
            int n = 0;
            for (const auto& b : batches) {
                for (const auto& e : b)
                    n += std::holds_alternative<model::Failed>(e) ||
                                 std::holds_alternative<model::Done>(e)
                             ? 1
                             : 0;
            }
            return n;
        }
    };
    std::unique_ptr<Run> run(bool stream) {
        auto r = std::make_unique<Run>();
        r->request.model = "m";
        r->request.stream = stream;
        r->request.messages.push_back(
            {.role = model::Role::kUser, .parts = {model::TextPart{"Hi"}}});
        r->task.start(body(*r));
        loop.settle();
        return r;
    }
    io::Task<void> body(Run& r) {
        co_await backend->run(
            r.request,
            [&r](std::vector<model::Event>& events) -> io::Task<bool> {
                r.batches.push_back(events);
                co_return r.wanted;
            },
            &r.served_by);
        r.done = true;
    }

    io::TestLoop loop;
    Ports net{loop};
    std::unique_ptr<TextBackend> backend;
    std::vector<std::unique_ptr<io::HttpServer>> servers_;
};

TEST_F(TextBackendTest, StreamAndReuseOfTheConnection) {
    serve(1, stream({kChunk, kChunk, kEnd}));
    make({"http://a:1"});
    for (int i = 0; i < 3; ++i) {
        const auto r = run(true);
        EXPECT_TRUE(r->done);
        EXPECT_TRUE(std::holds_alternative<model::Start>(r->batches[0][0]));
        EXPECT_EQ(r->text(), "tok tok ");
        EXPECT_EQ(std::get<model::Done>(r->last()).usage.prompt_tokens, 7u);
        EXPECT_EQ(r->served_by, "http://a:1");
    }
    EXPECT_EQ(net.connects[1], 1);
}

TEST_F(TextBackendTest, EventsOfOneReadComeTogether) {
    serve(1, stream({kChunk + kChunk + kChunk + kEnd}));
    make({"http://a:1"});
    const auto r = run(true);
    EXPECT_EQ(r->batches.size(), 1u);
}

TEST_F(TextBackendTest, WholeAnswerAndWhatIsSent) {
    std::string path, auth, body;
    serve(1, [&](io::HttpRequest& q, io::HttpReply& reply) -> io::Task<void> {
        path = q.path;
        auth = q.headers.get("authorization");
        body = q.body;
        io::Headers h;
        h.add("content-type", "application/json");
        (void)co_await reply.send(200, h, "  \n" + kWhole);
    });
    make({"http://a:1/prefix/v1"});
    const auto r = run(false);
    ASSERT_TRUE(r->done);
    EXPECT_EQ(r->text(), "tok tok");
    EXPECT_EQ(path, "/prefix/v1/chat/completions");
    EXPECT_EQ(auth, "Bearer sk-up");
    EXPECT_THAT(body, HasSubstr(R"("model":"m")"));
}

TEST_F(TextBackendTest, StartComesAloneWhenTheFirstTokenTakesLong) {
    io::Signal go(loop);
    serve(1, [&](io::HttpRequest&, io::HttpReply& reply) -> io::Task<void> {
        io::Headers h;
        h.add("content-type", "text/event-stream");
        (void)co_await reply.start(200, h);
        co_await go.wait();
        (void)co_await reply.chunk(kChunk + kEnd);
        (void)co_await reply.finish();
    });
    make({"http://a:1"});
    const auto r = run(true);
    EXPECT_TRUE(r->batches.empty());
    loop.advance(60ms);
    ASSERT_EQ(r->batches.size(), 1u);
    EXPECT_EQ(r->batches[0].size(), 1u);
    go.notify();
    loop.settle();
    EXPECT_EQ(r->text(), "tok ");
    EXPECT_EQ(r->ends(), 1);
}

TEST_F(TextBackendTest, RefusedIsTriedOnceElsewhereAndAvoidedForASecond) {
    serve(2, stream({kChunk, kEnd}));
    make({"http://a:1", "http://b:2"});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(run(true)->text(), "tok ");
    EXPECT_EQ(net.connects[1], 1);
    loop.advance(1100ms);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run(true)->text(), "tok ");
    EXPECT_EQ(net.connects[1], 2);
}

TEST_F(TextBackendTest, NobodyThere) {
    make({"http://a:1", "http://b:2"});
    const auto r = run(true);
    ASSERT_TRUE(r->done);
    ASSERT_NE(r->error(), nullptr);
    EXPECT_EQ(r->error()->code, Code::kUnavailable);
    EXPECT_THAT(r->error()->message, testing::Not(HasSubstr("a:1")));  // addresses stay inside
    EXPECT_EQ(net.connects[1] + net.connects[2], 2);
    EXPECT_EQ(r->batches.size(), 1u);
}

TEST_F(TextBackendTest, TheirErrorsKeepTheirMeaning) {
    serve(
        1,
        answer(
            400,
            R"({"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}})"));
    serve(2, answer(500, "<html>oops</html>"));
    make({"http://a:1"});
    auto r = run(true);
    EXPECT_EQ(r->error()->code, Code::kContextLength);
    EXPECT_EQ(r->error()->message, "too long");
    make({"http://b:2"});
    r = run(false);
    EXPECT_EQ(r->error()->code, Code::kUnavailable);
}

TEST_F(TextBackendTest, CutMidStreamIsAnErrorAfterTheText) {
    serve(1, stream({kChunk}, false));
    make({"http://a:1"});
    const auto r = run(true);
    ASSERT_TRUE(r->done);
    EXPECT_EQ(r->text(), "tok ");
    ASSERT_NE(r->error(), nullptr);
    EXPECT_EQ(r->error()->code, Code::kWorkerLost);
    EXPECT_EQ(r->ends(), 1);
}

TEST_F(TextBackendTest, EndWithoutDoneIsAnError) {
    serve(1, stream({kChunk}));
    make({"http://a:1"});
    EXPECT_EQ(run(true)->error()->code, Code::kWorkerLost);
}

TEST_F(TextBackendTest, GarbageIsAnErrorNotACrash) {
    serve(1, stream({"data: {not json}\n\n", kEnd}));
    serve(2, answer(200, "<html>"));
    make({"http://a:1"});
    auto r = run(true);
    EXPECT_NE(r->error(), nullptr);
    EXPECT_EQ(r->ends(), 1);
    make({"http://b:2"});
    r = run(false);
    EXPECT_NE(r->error(), nullptr);
    EXPECT_EQ(r->ends(), 1);
}

TEST_F(TextBackendTest, SilenceEndsAtTheTimeout) {
    io::Signal never(loop);
    serve(1, [&](io::HttpRequest&, io::HttpReply& reply) -> io::Task<void> {
        io::Headers h;
        h.add("content-type", "text/event-stream");
        (void)co_await reply.start(200, h);
        (void)co_await reply.chunk(kChunk);
        co_await never.wait();
    });
    make({"http://a:1"});
    const auto r = run(true);
    loop.advance(29s);
    EXPECT_FALSE(r->done);
    loop.advance(2s);
    EXPECT_TRUE(r->done);
    EXPECT_EQ(r->error()->code, Code::kDeadlineExceeded);
    servers_.clear();
}

TEST_F(TextBackendTest, UnwantedOrDestroyedClosesTheConnection) {
    int gone = 0;
    io::Signal never(loop);
    serve(1, [&](io::HttpRequest&, io::HttpReply& reply) -> io::Task<void> {
        reply.on_disconnect([&] { ++gone; });
        io::Headers h;
        h.add("content-type", "text/event-stream");
        (void)co_await reply.start(200, h);
        (void)co_await reply.chunk(kChunk);
        io::Signal own(loop);
        co_await own.wait();
    });
    make({"http://a:1"});
    auto r = run(true);
    EXPECT_EQ(gone, 0);
    r->task.reset();
    loop.settle();
    EXPECT_EQ(gone, 1);

    auto unwanted = std::make_unique<Run>();
    unwanted->wanted = false;
    unwanted->request = r->request;
    unwanted->task.start(body(*unwanted));
    loop.settle();
    EXPECT_TRUE(unwanted->done);
    EXPECT_EQ(gone, 2);
    servers_.clear();
}

TEST_F(TextBackendTest, LeastOutstandingThenInTurn) {
    int at[3] = {};
    for (const std::uint16_t port : {std::uint16_t{1}, std::uint16_t{2}}) {
        serve(port, [&, port](io::HttpRequest&, io::HttpReply&) -> io::Task<void> {
            ++at[port];
            io::Signal never(loop);
            co_await never.wait();
        });
    }
    make({"http://a:1", "http://b:2"});
    std::vector<std::unique_ptr<Run>> runs;
    for (int i = 0; i < 6; ++i) runs.push_back(run(true));
    EXPECT_EQ(at[1], 3);
    EXPECT_EQ(at[2], 3);
    // Two of the first server's end: it gets the next two.
    int freed = 0;
    for (auto& r : runs) {
        if (r->served_by != "http://a:1" || freed == 2) continue;
        r->task.reset();
        ++freed;
    }
    loop.settle();
    for (int i = 0; i < 2; ++i) runs.push_back(run(true));
    EXPECT_EQ(at[1], 5);
    EXPECT_EQ(at[2], 3);
    runs.clear();
    servers_.clear();
}

}  // namespace
}  // namespace nereid::engine::openai
