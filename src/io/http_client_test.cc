#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "io/http.h"
#include "io/http_parser.h"
#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::io {
namespace {

using std::string;
using std::string_view;

struct Got {
    bool done = false;
    Result<int> status = Error{};
    Result<string> body = Error{};
    string header;  // x-h
};

// The client against a peer that is scripted byte by byte, and against our own server.
class HttpClientTest : public testing::Test {
  protected:
    void SetUp() override {
        client_ =
            make_http_client(loop_, net_, {.endpoint = {"memory", 1, {}}, .connect_timeout = 2s});
    }

    // A server that reads one request per connection entry and answers with the next script.
    // "!" at the end of a script: close after it.
    Task<void> scripted(std::unique_ptr<Listener> listener) {
        for (;;) {
            auto s = co_await listener->accept();
            if (!s.ok()) co_return;
            peers_.emplace_back(std::make_unique<RootTask>())->start(script(std::move(*s)));
        }
    }
    Task<void> script(std::unique_ptr<Stream> s) {
        const HttpLimits limits;
        string pending;
        std::array<char, 4096> piece;
        HttpRequest request;
        RequestParser parser(limits);
        parser.reset(request);
        for (;;) {
            const auto n = co_await s->read(piece, TimePoint::never());
            if (!n.ok() || *n == 0) {
                ++peer_closed_;
                co_return s->close();
            }
            pending.append(piece.data(), *n);
            pending.erase(0, parser.feed(pending));
            if (parser.state() != ParseState::kDone) continue;
            requests_.push_back(request);
            parser.reset(request);
            if (scripts_.empty()) continue;  // silence
            string text = scripts_.front();
            scripts_.erase(scripts_.begin());
            const bool close = text.ends_with("!");
            if (close) text.pop_back();
            for (std::size_t at = 0; at < text.size(); at += step_) {
                const std::array<string_view, 1> pieces{string_view(text).substr(at, step_)};
                (void)co_await s->write(pieces, TimePoint::never());
                if (step_ < text.size()) co_await loop_.yield();
            }
            if (close) co_return s->close();
        }
    }
    void serve_scripts(std::vector<string> scripts, std::size_t step = 1 << 20) {
        step_ = step;
        scripts_ = std::move(scripts);
        if (!door_.running()) door_.start(scripted(net_.listener()));
    }

    Task<void> fetch(HttpClientRequest request, Got& got, TimePoint deadline,
                     std::size_t max = 1 << 20) {
        auto response = co_await client_->request(request, deadline);
        if (!response.ok()) {
            got.status = response.error();
        } else {
            got.status = (*response)->status();
            got.header = (*response)->headers().get("x-h");
            got.body = co_await (*response)->read_all(max, deadline);
        }
        got.done = true;
    }
    Got get(string method = "GET", string path = "/", string body = {}, std::size_t max = 1 << 20) {
        Got got;
        RootTask task;
        task.start(fetch({.method = std::move(method),
                          .path = std::move(path),
                          .headers = {},
                          .body = std::move(body)},
                         got, loop_.now() + 30s, max));
        loop_.settle();
        if (!got.done) loop_.advance(31s);
        EXPECT_TRUE(got.done);
        return got;
    }

    TestLoop loop_;
    TestNetwork net_{loop_};
    std::vector<string> scripts_;
    std::size_t step_ = 1;
    std::vector<HttpRequest> requests_;
    int peer_closed_ = 0;
    std::vector<std::unique_ptr<RootTask>> peers_;
    RootTask door_;
    std::unique_ptr<HttpClient> client_;
};

struct ClientRow {
    const char* name;
    const char* method;
    string response;
    int status;  // 0: request() fails
    Code code;   // of request() or of the body; kInternal: none
    string body;
};

std::vector<ClientRow> rows() {
    const Code fine = Code::kInternal;
    return {
        {"length", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-h: v\r\n\r\nhello", 200, fine,
         "hello"},
        {"length 0", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, fine, ""},
        {"chunked", "POST",
         "HTTP/1.1 201 Created\r\ntransfer-encoding: "
         "chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n",
         201, fine, "abcde"},
        {"trailers", "GET",
         "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nt: v\r\n\r\n", 200,
         fine, "a"},
        {"until close", "GET", "HTTP/1.1 200 OK\r\n\r\nall of it!", 200, fine, "all of it"},
        {"http/1.0", "GET", "HTTP/1.0 200 OK\r\n\r\nold!", 200, fine, "old"},
        {"head", "HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n", 200, fine, ""},
        {"head, chunked", "HEAD", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 200,
         fine, ""},
        {"204", "POST", "HTTP/1.1 204 No Content\r\n\r\n", 204, fine, ""},
        {"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", 304,
         fine, ""},
        {"no reason phrase", "GET", "HTTP/1.1 200 \r\ncontent-length: 1\r\n\r\nx", 200, fine, "x"},
        {"continue first", "POST",
         "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 "
         "OK\r\ncontent-length: 1\r\n\r\nx",
         200, fine, "x"},
        {"500", "GET", "HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\nno", 500, fine, "no"},
        {"no answer", "GET", "!", 0, Code::kUnavailable, ""},
        {"half a head", "GET", "HTTP/1.1 200 OK\r\nconte!", 0, Code::kUnavailable, ""},
        {"silence", "GET", "HTTP/1.1 200", 0, Code::kDeadlineExceeded, ""},
        {"garbage", "GET", "\x15\x03\x01\r\n\r\n", 0, Code::kCorrupt, ""},
        {"bare LF", "GET", "HTTP/1.1 200 OK\ncontent-length: 0\n\n", 0, Code::kCorrupt, ""},
        {"http/2", "GET", "HTTP/2.0 200 OK\r\n\r\n", 0, Code::kCorrupt, ""},
        {"switching protocols", "GET", "HTTP/1.1 101 Yes\r\n\r\n", 0, Code::kCorrupt, ""},
        {"length and chunked", "GET",
         "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 0,
         Code::kCorrupt, ""},
        {"two lengths", "GET",
         "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 0, Code::kCorrupt,
         ""},
        {"gzip encoding", "GET",
         "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, Code::kCorrupt,
         ""},
        {"cut body", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel!", 200, Code::kIo, ""},
        {"cut chunks", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n!",
         200, Code::kIo, ""},
        {"bad chunk", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 200,
         Code::kCorrupt, ""},
        {"stalled body", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", 200,
         Code::kDeadlineExceeded, ""},
        {"endless head", "GET", "HTTP/1.1 200 OK\r\nx: " + string(70'000, 'x'), 0, Code::kCorrupt,
         ""},
    };
}

TEST_F(HttpClientTest, TableOfResponses) {
    for (const auto& row : rows()) {
        for (const std::size_t step :
             {std::size_t{1 << 20},
              row.response.size() > 1000 ? std::size_t{997} : std::size_t{1}}) {
            SCOPED_TRACE(row.name);
            SCOPED_TRACE(step);
            client_ = make_http_client(loop_, net_, {.endpoint = {"memory", 1, {}}});
            serve_scripts({row.response}, step);
            const Got got = get(row.method);
            if (row.status == 0) {
                ASSERT_FALSE(got.status.ok());
                EXPECT_EQ(got.status.code(), row.code) << got.status.error().message;
            } else {
                ASSERT_TRUE(got.status.ok()) << got.status.error().message;
                EXPECT_EQ(*got.status, row.status);
                if (row.code == Code::kInternal) {
                    ASSERT_TRUE(got.body.ok()) << got.body.error().message;
                    EXPECT_EQ(*got.body, row.body);
                } else {
                    ASSERT_FALSE(got.body.ok());
                    EXPECT_EQ(got.body.code(), row.code) << got.body.error().message;
                }
            }
        }
    }
}

TEST_F(HttpClientTest, WhatIsSent) {
    serve_scripts({"HTTP/1.1 204 x\r\n\r\n", "HTTP/1.1 204 x\r\n\r\n", "HTTP/1.1 204 x\r\n\r\n"});
    get("POST", "/a?b", "body");
    get("GET", "c");
    get("POST", "/empty");
    ASSERT_EQ(requests_.size(), 3u);
    EXPECT_EQ(requests_[0].target, "/a?b");
    EXPECT_EQ(requests_[0].body, "body");
    EXPECT_EQ(requests_[0].headers.get("host"), "memory:1");
    EXPECT_EQ(requests_[1].target, "/c");
    EXPECT_FALSE(requests_[1].headers.has("content-length"));
    EXPECT_EQ(requests_[2].headers.get("content-length"), "0");
    EXPECT_EQ(get("GET", "/a b").status.code(), Code::kInvalidArgument);
    EXPECT_EQ(get("GET", "/a\r\nx: y").status.code(), Code::kInvalidArgument);
}

TEST_F(HttpClientTest, ReusesAConnection) {
    const string ok = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    serve_scripts({ok, ok, ok});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(net_.connects, 1);
    serve_scripts({"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx", ok});
    get();
    EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(net_.connects, 2);
}

TEST_F(HttpClientTest, IdleConnectionsAreDroppedInTime) {
    const string ok = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    serve_scripts({ok, ok});
    get();
    loop_.advance(61s);
    EXPECT_EQ(peer_closed_, 1);
    get();
    EXPECT_EQ(net_.connects, 2);
}

// The peer closes a kept connection: noticed while idle, or, when the request is already on its
// way, retried once.
TEST_F(HttpClientTest, StaleConnection) {
    const string ok = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    serve_scripts({ok + "!", ok, "!", ok});
    EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(*get().body, "x");  // the hang-up was seen
    EXPECT_EQ(net_.connects, 2);
    EXPECT_EQ(*get("POST", "/again", "b").body, "x");  // closed on receipt; sent again
    EXPECT_EQ(net_.connects, 3);
    ASSERT_EQ(requests_.size(), 4u);
    EXPECT_EQ(requests_[3].target, "/again");
    EXPECT_EQ(requests_[3].body, "b");
    // On a fresh connection there is no second try.
    client_ = make_http_client(loop_, net_, {.endpoint = {"memory", 1, {}}});
    serve_scripts({"!", ok});
    EXPECT_EQ(get().status.code(), Code::kUnavailable);
    // Nor after the first byte of a response.
    serve_scripts({ok, "HTTP/1.1 2!", ok});
    EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(get().status.code(), Code::kUnavailable);
}

TEST_F(HttpClientTest, UnaskedBytesEndTheReuse) {
    const string ok = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    serve_scripts({ok + ok, ok});
    EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(*get().body, "x");
    EXPECT_EQ(net_.connects, 2);
}

TEST_F(HttpClientTest, ReadsPieceByPiece) {
    serve_scripts(
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"},
        1);
    string all;
    int pieces = 0;
    const auto run = [&]() -> Task<void> {
        HttpClientRequest request{.method = "GET", .path = "/", .headers = {}, .body = {}};
        auto response = co_await client_->request(request, TimePoint::never());
        CHECK(response.ok());
        for (;;) {
            auto piece = co_await (*response)->read_some(TimePoint::never());
            CHECK(piece.ok());
            if (piece->empty()) break;
            all += *piece;
            ++pieces;
        }
    };
    RootTask task;
    task.start(run());
    loop_.settle();
    EXPECT_EQ(all, "abcd");
    EXPECT_EQ(pieces, 4);
}

TEST_F(HttpClientTest, DeadlineOfAPieceLeavesTheStreamUsable) {
    serve_scripts({"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"});
    Code first = Code::kInternal;
    const auto run = [&]() -> Task<void> {
        HttpClientRequest request{.method = "GET", .path = "/", .headers = {}, .body = {}};
        auto response = co_await client_->request(request, TimePoint::never());
        auto piece = co_await (*response)->read_some(loop_.now() + 1s);
        first = piece.code();
        piece = co_await (*response)->read_some(loop_.now() + 1s);
        EXPECT_EQ(piece.code(), Code::kDeadlineExceeded);
    };
    RootTask task;
    task.start(run());
    loop_.advance(5s);
    EXPECT_EQ(first, Code::kDeadlineExceeded);
    EXPECT_FALSE(task.running());
}

TEST_F(HttpClientTest, DestroyingCloses) {
    serve_scripts({"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"});
    {
        Got got;
        RootTask task;
        task.start(fetch({.method = "GET", .path = "/", .headers = {}, .body = {}}, got,
                         TimePoint::never()));
        loop_.settle();
        EXPECT_FALSE(got.done);
        EXPECT_EQ(peer_closed_, 0);
    }
    loop_.settle();
    EXPECT_EQ(peer_closed_, 1);
}

TEST_F(HttpClientTest, AResponseMayOutliveItsClient) {
    serve_scripts({"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"});
    std::unique_ptr<HttpClientResponse> response;
    const auto run = [&]() -> Task<void> {
        HttpClientRequest request{.method = "GET", .path = "/", .headers = {}, .body = {}};
        response = std::move(*co_await client_->request(request, TimePoint::never()));
    };
    RootTask task;
    task.start(run());
    loop_.settle();
    client_.reset();
    string body;
    const auto read = [&]() -> Task<void> {
        body = *co_await response->read_all(10, TimePoint::never());
    };
    task.start(read());
    EXPECT_EQ(body, "ab");
}

TEST_F(HttpClientTest, TooLargeAndRefused) {
    serve_scripts({"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n01234567890"});
    EXPECT_EQ(get("GET", "/", {}, 10).body.code(), Code::kTooLarge);
    door_.reset();  // closes the listener
    client_ = make_http_client(loop_, net_, {.endpoint = {"memory", 1, {}}});
    EXPECT_EQ(get().status.code(), Code::kUnavailable);
}

// A server that answers and closes before it has read the whole body.
TEST_F(HttpClientTest, EarlyAnswer) {
    HttpLimits limits;
    limits.max_body_bytes = 1000;
    const auto server =
        make_http_server(loop_, limits, [](HttpRequest&, HttpReply&) -> Task<void> { co_return; });
    server->serve(net_.listener(), false);
    const Got got = get("POST", "/", string(3'000'000, 'x'));
    ASSERT_TRUE(got.status.ok()) << got.status.error().message;
    EXPECT_EQ(*got.status, 413);
}

// Our two ends together, many requests at once with bodies of many sizes.
TEST_F(HttpClientTest, AgainstOurServer) {
    const auto handler = [this](HttpRequest& r, HttpReply& reply) -> Task<void> {
        Headers headers;
        headers.add("x-h", r.headers.get("x-h"));
        if (r.query == "stream") {
            CHECK((co_await reply.start(200, headers)).ok());
            for (std::size_t at = 0; at < r.body.size(); at += 777) {
                CHECK((co_await reply.chunk(string_view(r.body).substr(at, 777))).ok());
                co_await loop_.yield();
            }
            CHECK((co_await reply.finish()).ok());
        } else {
            CHECK((co_await reply.send(200, headers, r.body)).ok());
        }
    };
    const auto server = make_http_server(loop_, {}, handler);
    server->serve(net_.listener(), false);
    for (int round = 0; round < 3; ++round) {
        std::vector<std::unique_ptr<Got>> got;
        std::vector<std::unique_ptr<RootTask>> tasks;
        for (std::size_t i = 0; i < 40; ++i) {
            HttpClientRequest request{.method = "POST",
                                      .path = i % 2 == 0 ? "/x?stream" : "/x",
                                      .headers = {},
                                      .body = {}};
            request.headers.add("x-h", fmt::format("{}", i));
            request.body = string(i * i * 97, static_cast<char>('a' + i % 26));
            got.push_back(std::make_unique<Got>());
            tasks.emplace_back(std::make_unique<RootTask>())
                ->start(fetch(request, *got.back(), loop_.now() + 60s));
        }
        loop_.settle();
        for (std::size_t i = 0; i < 40; ++i) {
            ASSERT_TRUE(got[i]->done);
            ASSERT_TRUE(got[i]->body.ok());
            EXPECT_EQ(*got[i]->body, string(i * i * 97, static_cast<char>('a' + i % 26)));
            EXPECT_EQ(got[i]->header, fmt::format("{}", i));
        }
        EXPECT_EQ(net_.connects, 40);  // all later ones are reuses
    }
    EXPECT_EQ(server->counters().requests, 120u);
    EXPECT_EQ(server->counters().bad_requests, 0u);
    client_.reset();
    loop_.settle();
    EXPECT_EQ(server->counters().open, 0u);
}

}  // namespace
}  // namespace nereid::io
