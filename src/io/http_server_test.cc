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

// A client that sends raw bytes and collects what comes back.
class Peer {
  public:
    explicit Peer(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) { resume_reading(); }
    void send(string bytes) {
        writes_.emplace_back(std::make_unique<RootTask>())->start(write(std::move(bytes)));
    }
    void pause_reading() { reader_.reset(); }
    void resume_reading() { reader_.start(read()); }
    void half_close() { stream_->shutdown_write(); }
    void close() { stream_->close(); }

    string received;
    bool ended = false;

  private:
    Task<void> read() {
        std::array<char, 4096> piece;
        for (;;) {
            const auto n = co_await stream_->read(piece, TimePoint::never());
            if (!n.ok() || *n == 0) break;
            received.append(piece.data(), *n);
        }
        ended = true;
    }
    Task<void> write(string bytes) {
        const std::array<string_view, 1> pieces{bytes};
        (void)co_await stream_->write(pieces, TimePoint::never());
    }
    std::unique_ptr<Stream> stream_;
    RootTask reader_;
    std::vector<std::unique_ptr<RootTask>> writes_;
};

struct Answer {
    int status;
    string body;
    Headers headers;
    bool operator==(const Answer& o) const { return status == o.status && body == o.body; }
};

std::vector<Answer> parse_answers(string_view bytes, bool head = false) {
    std::vector<Answer> answers;
    ResponseParser parser;
    while (!bytes.empty()) {
        parser.reset(head);
        string body;
        bytes.remove_prefix(parser.feed(bytes, body));
        if (parser.state() == ParseState::kBody) parser.feed_eof();
        if (parser.state() != ParseState::kDone) {
            answers.push_back({-1, "not HTTP: " + string(bytes), {}});
            break;
        }
        answers.push_back({parser.status(), body, parser.headers()});
    }
    return answers;
}

std::vector<int> statuses(string_view bytes) {
    std::vector<int> out;
    for (const auto& a : parse_answers(bytes)) out.push_back(a.status);
    return out;
}

class HttpServerTest : public testing::Test {
  protected:
    void make(HttpLimits limits = {}) {
        limits.error_body = [](int, string_view message, string_view target, Headers& headers) {
            headers.add("content-type", "text/x-error");
            if (!target.empty()) headers.add("x-target", target);
            return string(message);
        };
        server_ = make_http_server(
            loop_, limits, [this](HttpRequest& r, HttpReply& reply) { return handle(r, reply); });
        server_->serve(net_.listener(), false);
    }
    Peer dial() {
        if (!server_) make();
        return Peer(net_.dial());
    }

    Task<void> handle(HttpRequest& r, HttpReply& reply) {
        ++handled_;
        Headers headers;
        headers.add("content-type", "text/plain");
        if (r.path == "/wait") {
            reply.on_disconnect([this] {
                ++disconnects_seen_;
                wake_.notify();
            });
            co_await wake_.wait();
            (void)co_await reply.send(200, headers, "waited");
        } else if (r.path == "/stream") {
            CHECK((co_await reply.start(200, headers)).ok());
            for (int i = 0; i < 3; ++i) (void)co_await reply.chunk(fmt::format("piece {}\n", i));
            (void)co_await reply.finish("end");
        } else if (r.path == "/cut") {
            CHECK((co_await reply.start(200, headers)).ok());
            (void)co_await reply.chunk("half");
        } else if (r.path == "/flood") {
            CHECK((co_await reply.start(200, headers)).ok());
            const string piece(10'000, 'x');
            while (flooded_ < 100) {
                if (!(co_await reply.chunk(piece)).ok()) co_return;
                ++flooded_;
            }
            (void)co_await reply.finish({});
        } else if (r.path == "/big") {
            const string body(1'000'000, 'b');
            big_ok_ = (co_await reply.send(200, headers, body)).ok();
        } else if (r.path == "/silent") {
        } else if (r.path == "/close") {
            headers.add("connection", "close");
            (void)co_await reply.send(200, headers, "bye");
        } else if (r.path == "/split") {
            headers.add("x-evil", "a\r\nset-cookie: b");
            headers.add("content-length", "999");
            (void)co_await reply.send(200, headers, "ok");
        } else if (r.path == "/nothing") {
            (void)co_await reply.send(204, headers, {});
        } else {
            string body = r.method + " " + r.path + " " + r.query + " " + r.body;
            if (r.headers.has("x-show")) body += string(" ") + string(r.headers.get("X-SHOW"));
            (void)co_await reply.send(200, headers, body);
        }
    }

    // Everything that comes back for `bytes`, with time enough for every timeout; the connection
    // must then be closed.
    string talk(string_view bytes, std::size_t cut = 0) {
        Peer peer = dial();
        loop_.settle();
        if (cut != 0) {
            peer.send(string(bytes.substr(0, cut)));
            loop_.settle();
        }
        peer.send(string(bytes.substr(cut)));
        loop_.advance(300s);
        EXPECT_TRUE(peer.ended) << bytes;
        return peer.received;
    }

    TestLoop loop_;
    TestNetwork net_{loop_};
    Signal wake_{loop_};
    int handled_ = 0, disconnects_seen_ = 0, flooded_ = 0;
    bool big_ok_ = false;
    std::unique_ptr<HttpServer> server_;
};

struct Row {
    const char* name;
    string bytes;
    std::vector<int> expected;
};

string get(string_view target, string_view more = {}) {
    return "GET " + string(target) + " HTTP/1.1\r\nHost: h\r\n" + string(more) + "\r\n";
}
string post(string_view headers, string_view body) {
    return "POST /p HTTP/1.1\r\nHost: h\r\n" + string(headers) + "\r\n" + string(body);
}
constexpr string_view kChunked = "Transfer-Encoding: chunked\r\n";

std::vector<Row> table() {
    using namespace std::string_literals;
    const string pad(20'000, 'a');
    return {
        // Well formed.
        {"plain get", get("/a?b=c"), {200}},
        {"head of lines only", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", {200}},
        {"empty lines before", "\r\n\r\n" + get("/"), {200}},
        {"absolute form", get("http://other:8080/x?y"), {200}},
        {"absolute form without path", get("HTTP://other"), {200}},
        {"asterisk form", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", {200}},
        {"escapes in the path", get("/a%20b%2Fc"), {200}},
        {"content-length", post("Content-Length: 5\r\n", "hello"), {200}},
        {"content-length 0", post("Content-Length: 0\r\n", ""), {200}},
        {"post without length has no body", post("", ""), {200}},
        {"chunked", post(kChunked, "5\r\nhello\r\n0\r\n\r\n"), {200}},
        {"chunked, upper case hex, extension",
         post(kChunked, "A;x=y;z=\"q\"\r\n0123456789\r\n0\r\n\r\n"),
         {200}},
        {"chunked with trailers", post(kChunked, "1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n"), {200}},
        {"tab and obs-text in a value", get("/", "x-show: a\tb\xe9\r\n"), {200}},
        {"empty value", get("/", "x-show:\r\n"), {200}},
        {"equal lengths twice", post("Content-Length: 2\r\nContent-Length: 2\r\n", "ab"), {200}},
        {"http/1.0 get", "GET / HTTP/1.0\r\n\r\n", {200}},
        {"http/1.0 keep-alive",
         "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
         {200, 200}},
        {"connection close", get("/", "Connection: close\r\n") + get("/"), {200}},
        {"pipelined",
         get("/1") + post("Content-Length: 3\r\n", "abc") + get("/2"),
         {200, 200, 200}},
        {"pipelined after chunked", post(kChunked, "1\r\nx\r\n0\r\n\r\n") + get("/2"), {200, 200}},
        {"expect without body yet sent",
         post("Expect: 100-continue\r\nContent-Length: 2\r\n", "ab"),
         {200}},
        {"upgrade is ignored", get("/", "Connection: upgrade\r\nUpgrade: h2c\r\n"), {200}},
        {"unknown method goes to the handler", "BREW / HTTP/1.1\r\nHost: h\r\n\r\n", {200}},

        // Request line.
        {"garbage", "\x16\x03\x01\x02garbage", {400}},
        {"a NUL first", "\0GET / HTTP/1.1\r\n\r\n"s, {400}},
        {"lower case version", "GET / http/1.1\r\nHost: h\r\n\r\n", {400}},
        {"http/0.9", "GET /\r\n\r\n", {400}},
        {"two spaces", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", {400}},
        {"space in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", {400}},
        {"tab after the method", "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", {400}},
        {"trailing space", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", {400}},
        {"bare LF", "GET / HTTP/1.1\nHost: h\n\n", {400}},
        {"CR in the line", "GET / HTTP/1.1\r\rHost: h\r\n\r\n", {400}},
        {"relative target", get("a/b"), {400}},
        {"other scheme", get("ftp://h/"), {400}},
        {"absolute form without authority", get("http:///x"), {400}},
        {"fragment", get("/a#b"), {400}},
        {"asterisk with GET", get("*"), {400}},
        {"broken escape", get("/%zz"), {400}},
        {"short escape", get("/%4"), {400}},
        {"escaped NUL", get("/%00"), {400}},
        {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"s, {400}},
        {"method with a colon", "GE:T / HTTP/1.1\r\nHost: h\r\n\r\n", {400}},
        {"http/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505}},
        {"http/1.2", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", {505}},
        {"http/3.0", "GET / HTTP/3.0\r\nHost: h\r\n\r\n", {505}},
        {"connect", "CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", {501}},
        {"long target", get("/" + pad), {414}},
        {"endless request line", "GET /" + pad, {414}},
        {"too many empty lines", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n" + get("/"), {400}},

        // Headers.
        {"no host", "GET / HTTP/1.1\r\n\r\n", {400}},
        {"two hosts", get("/", "Host: h\r\n"), {400}},
        {"host with a space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", {400}},
        {"host with userinfo", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", {400}},
        {"space before the colon", get("/", "X : y\r\n"), {400}},
        {"no colon", get("/", "nonsense\r\n"), {400}},
        {"empty name", get("/", ": x\r\n"), {400}},
        {"name with a space", get("/", "a b: x\r\n"), {400}},
        {"folded", get("/", "X: a\r\n b\r\n"), {400}},
        {"folded first header", "GET / HTTP/1.1\r\n X: y\r\nHost: h\r\n\r\n", {400}},
        {"NUL in a value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"s, {400}},
        {"CR in a value", get("/", "X: a\rb\r\n"), {400}},
        {"LF after a value", get("/", "X: a\nY: b\r\n"), {400}},
        {"control in a value", get("/", "X: a\x01\r\n"), {400}},
        {"header block ends with LF", "GET / HTTP/1.1\r\nHost: h\r\n\n", {400}},
        {"headers too large",
         get("/", "X: " + pad + "\r\nY: " + pad + "\r\nZ: " + pad + "\r\nU: " + pad + "\r\n"),
         {431}},
        {"endless headers", "GET / HTTP/1.1\r\nX: " + string(70'000, 'x'), {431}},
        {"unknown expectation", get("/", "Expect: magic\r\n"), {417}},

        // Length and framing (request smuggling).
        {"length and encoding",
         post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
         {400}},
        {"encoding and length",
         post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
         {400}},
        {"different lengths", post("Content-Length: 2\r\nContent-Length: 3\r\n", "abc"), {400}},
        {"different lengths in a list", post("Content-Length: 2, 3\r\n", "abc"), {400}},
        {"negative length", post("Content-Length: -1\r\n", ""), {400}},
        {"signed length", post("Content-Length: +1\r\n", "a"), {400}},
        {"hex length", post("Content-Length: 0x1\r\n", "a"), {400}},
        {"empty length", post("Content-Length:\r\n", ""), {400}},
        {"length with text", post("Content-Length: 1a\r\n", "a"), {400}},
        {"length overflows", post("Content-Length: 18446744073709551616\r\n", ""), {400}},
        {"length over the limit", post("Content-Length: 67108865\r\n", ""), {413}},
        {"largest length", post("Content-Length: 18446744073709551615\r\n", ""), {413}},
        {"other encoding", post("Transfer-Encoding: gzip\r\n", ""), {501}},
        {"encoding list", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), {501}},
        {"identity", post("Transfer-Encoding: identity\r\n", ""), {501}},
        {"encoding with a vertical tab",
         post("Transfer-Encoding: \x0b"
              "chunked\r\n",
              "0\r\n\r\n"),
         {400}},
        {"encoding and a space before the colon",
         post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
         {400}},
        {"chunked twice",
         post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
         {400}},
        {"chunked list", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), {501}},
        {"quoted chunked", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), {501}},
        {"encoding in http/1.0",
         "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         {400}},
        {"http/1.0 post without length", "POST / HTTP/1.0\r\n\r\nabc", {411}},

        // Chunks.
        {"chunk size not hex", post(kChunked, "g\r\n\r\n"), {400}},
        {"chunk size empty", post(kChunked, "\r\nabc\r\n"), {400}},
        {"chunk size negative", post(kChunked, "-1\r\n"), {400}},
        {"chunk size with 0x", post(kChunked, "0x5\r\nhello\r\n0\r\n\r\n"), {400}},
        {"chunk size overflows", post(kChunked, "11111111111111111\r\n"), {400}},
        {"chunk size over the limit", post(kChunked, "4000001\r\n"), {413}},
        {"chunk size near 2^64", post(kChunked, "ffffffffffffffff\r\n"), {413}},
        {"chunk longer than its size", post(kChunked, "3\r\nabcd\r\n0\r\n\r\n"), {400}},
        {"chunk ends with LF", post(kChunked, "3\r\nabc\n0\r\n\r\n"), {400}},
        {"chunk size ends with LF", post(kChunked, "3\nabc\r\n0\r\n\r\n"), {400}},
        {"chunk extension garbage", post(kChunked, "3 abc\r\nabc\r\n0\r\n\r\n"), {400}},
        {"endless chunk extension", post(kChunked, "3;" + pad), {400}},
        {"endless trailers", post(kChunked, "0\r\nX: " + pad), {400}},
        {"trailer without colon", post(kChunked, "0\r\nnonsense\r\n\r\n"), {400}},
        {"trailer that changes framing", post(kChunked, "0\r\nContent-Length: 3\r\n\r\n"), {400}},

        // Unfinished.
        {"half a request line", "GET / HT", {408}},
        {"half the headers", "GET / HTTP/1.1\r\nHost: h\r\n", {408}},
        {"half a body", post("Content-Length: 5\r\n", "he"), {408}},
        {"half a chunk", post(kChunked, "5\r\nhe"), {408}},
        {"no last chunk", post(kChunked, "5\r\nhello\r\n"), {408}},
        {"a good one, then garbage", get("/") + "\x01", {200, 400}},
        {"smuggled prefix", post("Content-Length: 4\r\n", "abcdX"), {200, 408}},
    };
}

TEST_F(HttpServerTest, TableOfRequests) {
    EXPECT_GE(table().size(), 100u);
    for (const auto& row : table()) {
        SCOPED_TRACE(row.name);
        const string got = talk(row.bytes);
        EXPECT_EQ(statuses(got), row.expected) << got.substr(0, 400);
    }
    EXPECT_EQ(server_->counters().open, 0u);
    EXPECT_EQ(server_->counters().active, 0u);
}

// Whatever the cut, the same answers; the date may differ.
TEST_F(HttpServerTest, EverySplitGivesTheSame) {
    for (const auto& row : table()) {
        if (row.bytes.size() > 1000) continue;
        SCOPED_TRACE(row.name);
        const auto whole = parse_answers(talk(row.bytes));
        for (std::size_t cut = 1; cut < row.bytes.size(); ++cut) {
            SCOPED_TRACE(cut);
            auto got = parse_answers(talk(row.bytes, cut));
            if (got.size() == whole.size() + 1 && !got.empty() && got[0].status == 100)
                got.erase(got.begin());
            ASSERT_EQ(got, whole);
        }
    }
}

TEST_F(HttpServerTest, LongOnesByteByByteAndInOddPieces) {
    for (const auto& row : table()) {
        SCOPED_TRACE(row.name);
        const auto whole = statuses(talk(row.bytes));
        for (const std::size_t step :
             {row.bytes.size() > 1000 ? std::size_t{997} : std::size_t{1}, std::size_t{4099}}) {
            Peer peer = dial();
            for (std::size_t at = 0; at < row.bytes.size(); at += step) {
                peer.send(row.bytes.substr(at, step));
                loop_.settle();
            }
            loop_.advance(300s);
            ASSERT_TRUE(peer.ended);
            EXPECT_EQ(statuses(peer.received), whole);
        }
    }
}

TEST_F(HttpServerTest, RequestParts) {
    EXPECT_EQ(parse_answers(talk(get("/a%20b%2Fc?d=%20", "x-show: yes\r\n")))[0].body,
              "GET /a b/c d=%20  yes");
    EXPECT_EQ(parse_answers(talk(get("http://other/x?y")))[0].body, "GET /x y ");
    EXPECT_EQ(parse_answers(talk(get("http://other?y")))[0].body, "GET / y ");
    EXPECT_EQ(
        parse_answers(talk(post(kChunked, "2\r\nab\r\n3;e=f\r\ncde\r\n0\r\nT: t\r\n\r\n")))[0].body,
        "POST /p  abcde");
}

TEST_F(HttpServerTest, HeadAndStatusWithoutBody) {
    auto head =
        parse_answers(talk("HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), true);
    ASSERT_EQ(head.size(), 1u);
    EXPECT_EQ(head[0].headers.get("content-length"), "9");
    EXPECT_EQ(head[0].body, "");
    const string stream = talk("HEAD /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    EXPECT_TRUE(stream.ends_with("\r\n\r\n"));
    EXPECT_EQ(stream.find("piece"), string::npos);
    EXPECT_EQ(talk(get("/nothing")).find("content-length"), string::npos);
}

TEST_F(HttpServerTest, CommonHeaders) {
    const auto a = parse_answers(talk(get("/")));
    EXPECT_EQ(a[0].headers.get("date"), "Sun, 06 Nov 1994 08:49:37 GMT");
    EXPECT_EQ(a[0].headers.get("server"), "nereid");
    EXPECT_EQ(a[0].headers.get("content-type"), "text/plain");
    EXPECT_FALSE(a[0].headers.has("connection"));
    EXPECT_EQ(parse_answers(talk(get("/", "connection: close\r\n")))[0].headers.get("connection"),
              "close");
    EXPECT_EQ(parse_answers(talk("GET / HTTP/1.0\r\n\r\n"))[0].headers.get("connection"), "close");
    EXPECT_EQ(
        parse_answers(talk("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"))[0].headers.get(
            "connection"),
        "keep-alive");
}

TEST_F(HttpServerTest, AHandlersHeaderCannotSplitTheResponse) {
    const auto a = parse_answers(talk(get("/split")));
    ASSERT_EQ(a.size(), 1u);
    EXPECT_EQ(a[0].body, "ok");
    EXPECT_FALSE(a[0].headers.has("set-cookie"));
    EXPECT_EQ(a[0].headers.get("x-evil"), "a  set-cookie: b");
}

TEST_F(HttpServerTest, ErrorBodyIsTheOwners) {
    const auto a = parse_answers(talk("GET / HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(a[0].headers.get("content-type"), "text/x-error");
    EXPECT_EQ(a[0].body, "exactly one valid host header is needed");
    EXPECT_EQ(a[0].headers.get("connection"), "close");
    EXPECT_EQ(server_->counters().bad_requests, 1u);
}

TEST_F(HttpServerTest, StreamsInChunks) {
    const auto a = parse_answers(talk(get("/stream") + get("/after")));
    ASSERT_EQ(a.size(), 2u);
    EXPECT_EQ(a[0].body, "piece 0\npiece 1\npiece 2\nend");
    EXPECT_EQ(a[0].headers.get("transfer-encoding"), "chunked");
    EXPECT_EQ(a[1].status, 200);
}

TEST_F(HttpServerTest, StreamToHttp10EndsWithTheConnection) {
    const string got = talk("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_TRUE(got.ends_with("\r\n\r\npiece 0\npiece 1\npiece 2\nend")) << got;
    EXPECT_EQ(got.find("chunked"), string::npos);
}

TEST_F(HttpServerTest, AStreamThatBreaksIsCutVisibly) {
    Peer peer = dial();
    peer.send(get("/cut") + get("/never"));
    loop_.advance(1s);
    EXPECT_TRUE(peer.ended);
    EXPECT_TRUE(peer.received.ends_with("4\r\nhalf\r\n"));  // no last chunk
    EXPECT_EQ(handled_, 1);
}

TEST_F(HttpServerTest, AHandlerWithoutAnswerIs500) {
    EXPECT_EQ(statuses(talk(get("/silent") + get("/"))), (std::vector{500, 200}));
}

TEST_F(HttpServerTest, PipelinedAreAnsweredInOrderOneAtATime) {
    Peer peer = dial();
    peer.send(get("/wait") + get("/second") + get("/third"));
    loop_.settle();
    EXPECT_EQ(handled_, 1);
    EXPECT_EQ(peer.received, "");
    EXPECT_EQ(server_->counters().active, 1u);
    wake_.notify();
    loop_.settle();
    const auto a = parse_answers(peer.received);
    ASSERT_EQ(a.size(), 3u);
    EXPECT_EQ(a[0].body, "waited");
    EXPECT_EQ(a[1].body, "GET /second  ");
    EXPECT_EQ(a[2].body, "GET /third  ");
}

TEST_F(HttpServerTest, ManyPipelined) {
    Peer peer = dial();
    string all;
    for (int i = 0; i < 5000; ++i) all += get(fmt::format("/{}", i));
    peer.send(all);
    loop_.settle();
    const auto a = parse_answers(peer.received);
    ASSERT_EQ(a.size(), 5000u);
    EXPECT_EQ(a[4999].body, "GET /4999  ");
}

TEST_F(HttpServerTest, A54DisconnectReachesTheHandlerAtOnce) {
    for (const bool half : {false, true}) {
        disconnects_seen_ = 0;
        Peer peer = dial();
        peer.send(get("/wait"));
        loop_.settle();
        EXPECT_EQ(disconnects_seen_, 0);
        half ? peer.half_close() : peer.close();
        loop_.settle();  // no time passes
        EXPECT_EQ(disconnects_seen_, 1);
        EXPECT_EQ(server_->counters().open, 0u);
    }
    EXPECT_EQ(server_->counters().disconnects, 2u);
}

// The bytes sent ahead fill the read buffer, so that reading has stopped when the client goes away.
TEST_F(HttpServerTest, DisconnectBehindPipelinedBytes) {
    HttpLimits limits;
    limits.max_header_bytes = 8 << 10;
    make(limits);
    for (const std::size_t ahead : {std::size_t{100}, std::size_t{80'000}, std::size_t{400'000}}) {
        SCOPED_TRACE(ahead);
        disconnects_seen_ = 0;
        Peer peer = dial();
        string more;
        while (more.size() < ahead) more += get("/more");
        peer.send(get("/wait") + more);
        loop_.settle();
        peer.close();
        loop_.settle();
        EXPECT_EQ(disconnects_seen_, 1);
    }
    loop_.advance(300s);
    EXPECT_EQ(server_->counters().open, 0u);
}

TEST_F(HttpServerTest, PipelinedBytesOverTheBoundAreNotLost) {
    HttpLimits limits;
    limits.max_header_bytes = 8 << 10;
    make(limits);
    Peer peer = dial();
    string more;
    for (int i = 0; i < 10'000; ++i) more += get("/m");
    peer.send(get("/wait") + more);
    loop_.settle();
    wake_.notify();
    loop_.settle();
    EXPECT_EQ(parse_answers(peer.received).size(), 10'001u);
}

TEST_F(HttpServerTest, ANormalEndIsNoDisconnect) {
    Peer peer = dial();
    peer.send(get("/"));
    loop_.settle();
    peer.close();
    loop_.settle();
    EXPECT_EQ(server_->counters().disconnects, 0u);
    EXPECT_EQ(server_->counters().open, 0u);
}

TEST_F(HttpServerTest, ASlowReaderHoldsTheHandlerBack) {
    Peer peer = dial();
    peer.pause_reading();
    peer.send(get("/flood"));
    loop_.advance(30s);
    const int before = flooded_;
    EXPECT_LE(before, 8);  // 64 KiB of pipe
    peer.resume_reading();
    loop_.settle();
    EXPECT_EQ(flooded_, 100);
    EXPECT_EQ(parse_answers(peer.received)[0].body.size(), 1'000'000u);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsCut) {
    Peer peer = dial();
    peer.pause_reading();
    peer.send(get("/flood"));
    loop_.advance(61s);
    EXPECT_EQ(server_->counters().open, 0u);
    EXPECT_EQ(server_->counters().timeouts, 1u);
    EXPECT_EQ(server_->counters().disconnects, 1u);
    EXPECT_LT(flooded_, 100);
}

// Each 256 KiB of a large body has a timeout of its own: a slow client that makes progress is
// served.
TEST_F(HttpServerTest, ALargeBodyToASlowClient) {
    Peer peer = dial();
    peer.pause_reading();
    peer.send(get("/big"));
    for (int i = 0; i < 400 && !big_ok_; ++i) {
        peer.resume_reading();
        loop_.settle();
        peer.pause_reading();
        loop_.advance(1s);
    }
    EXPECT_TRUE(big_ok_);
}

TEST_F(HttpServerTest, ExpectContinue) {
    Peer peer = dial();
    peer.send(post("Expect: 100-continue\r\nContent-Length: 5\r\n", ""));
    loop_.settle();
    EXPECT_EQ(peer.received, "HTTP/1.1 100 Continue\r\n\r\n");
    peer.send("hello");
    loop_.settle();
    EXPECT_EQ(parse_answers(peer.received).back().body, "POST /p  hello");

    Peer large = dial();
    large.send(post("Expect: 100-continue\r\nContent-Length: 999999999\r\n", ""));
    loop_.settle();
    EXPECT_EQ(statuses(large.received), (std::vector{413}));
}

TEST_F(HttpServerTest, AnEarlyAnswerIsReadableWhileTheClientStillSends) {
    Peer peer = dial();
    peer.send(post("Content-Length: 99999999\r\n", string(1'000'000, 'x')));
    loop_.settle();
    EXPECT_EQ(statuses(peer.received), (std::vector{413}));
    EXPECT_EQ(server_->counters().open, 1u);  // lingers
    loop_.advance(3s);
    EXPECT_EQ(server_->counters().open, 0u);
}

TEST_F(HttpServerTest, Timeouts) {
    Peer idle = dial(), slow_head = dial(), slow_body = dial();
    loop_.settle();
    slow_head.send("GET / HTTP/1.1\r\n");
    slow_body.send(post("Content-Length: 5\r\n", "he"));
    loop_.advance(9s);
    EXPECT_FALSE(slow_head.ended);
    slow_head.send("x: y\r\n");  // does not buy time
    loop_.advance(4s);
    EXPECT_TRUE(slow_head.ended);
    EXPECT_EQ(statuses(slow_head.received), (std::vector{408}));
    loop_.advance(40s);
    slow_body.send("l");  // does: the timeout is between reads
    loop_.advance(50s);
    EXPECT_FALSE(slow_body.ended);
    loop_.advance(20s);
    EXPECT_EQ(statuses(slow_body.received), (std::vector{408}));
    EXPECT_TRUE(idle.ended);
    EXPECT_EQ(idle.received, "");
    EXPECT_EQ(server_->counters().timeouts, 2u);
}

TEST_F(HttpServerTest, IdleTimeoutStartsAfterTheAnswer) {
    Peer peer = dial();
    for (int i = 0; i < 5; ++i) {
        loop_.advance(70s);
        EXPECT_FALSE(peer.ended);
        peer.send(get("/"));
        loop_.settle();
    }
    loop_.advance(76s);
    EXPECT_TRUE(peer.ended);
    EXPECT_EQ(statuses(peer.received).size(), 5u);
    EXPECT_EQ(loop_.timers(), 0u);
}

TEST_F(HttpServerTest, TooManyConnections) {
    HttpLimits limits;
    limits.max_connections = 2;
    make(limits);
    Peer a = dial(), b = dial(), c = dial();
    loop_.settle();
    EXPECT_EQ(statuses(c.received), (std::vector{503}));
    EXPECT_EQ(server_->counters().refused, 1u);
    EXPECT_EQ(server_->counters().open, 2u);
    loop_.advance(5s);
    EXPECT_TRUE(c.ended);
    a.close();
    loop_.settle();
    Peer d = dial();
    d.send(get("/"));
    loop_.settle();
    EXPECT_EQ(statuses(d.received), (std::vector{200}));
}

TEST_F(HttpServerTest, HeaderCountLimit) {
    HttpLimits limits;
    limits.max_header_count = 3;
    make(limits);
    EXPECT_EQ(statuses(talk(get("/", "a: b\r\nc: d\r\n"))), (std::vector{200}));
    EXPECT_EQ(statuses(talk(get("/", "a: b\r\nc: d\r\ne: f\r\n"))), (std::vector{431}));
}

TEST_F(HttpServerTest, BodyLimit) {
    HttpLimits limits;
    limits.max_body_bytes = 10;
    make(limits);
    EXPECT_EQ(statuses(talk(post("Content-Length: 10\r\n", "0123456789"))), (std::vector{200}));
    EXPECT_EQ(statuses(talk(post("Content-Length: 11\r\n", "0123456789a"))), (std::vector{413}));
    EXPECT_EQ(statuses(talk(post(kChunked, "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"))),
              (std::vector{200}));
    EXPECT_EQ(statuses(talk(post(kChunked, "5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n"))),
              (std::vector{413}));
}

TEST_F(HttpServerTest, LargeBodiesArrive) {
    string body(3'000'000, ' ');
    for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
    Peer peer = dial();
    peer.send(post(fmt::format("Content-Length: {}\r\n", body.size()), body));
    loop_.settle();
    EXPECT_EQ(parse_answers(peer.received)[0].body, "POST /p  " + body);
}

TEST_F(HttpServerTest, Drain) {
    Peer idle = dial(), busy = dial(), stuck = dial();
    busy.send(get("/wait"));
    loop_.settle();
    bool drained = false;
    auto drain = [&]() -> Task<void> {
        co_await server_->drain(loop_.now() + 10s);
        drained = true;
    };
    RootTask task;
    task.start(drain());
    loop_.settle();
    EXPECT_TRUE(idle.ended);
    EXPECT_FALSE(drained);
    wake_.notify();
    loop_.settle();
    loop_.advance(3s);  // the linger
    const auto a = parse_answers(busy.received);
    ASSERT_EQ(a.size(), 1u);
    EXPECT_EQ(a[0].headers.get("connection"), "close");
    EXPECT_TRUE(drained);
    Peer late = dial();
    late.send(get("/"));
    loop_.settle();
    EXPECT_EQ(late.received, "");
}

TEST_F(HttpServerTest, DrainDeadlineClosesTheRest) {
    Peer stuck = dial();
    stuck.send(get("/wait"));
    loop_.settle();
    bool drained = false;
    auto drain = [&]() -> Task<void> {
        co_await server_->drain(loop_.now() + 10s);
        drained = true;
    };
    RootTask task;
    task.start(drain());
    loop_.advance(9s);
    EXPECT_FALSE(drained);
    loop_.advance(2s);
    EXPECT_TRUE(drained);
    EXPECT_EQ(disconnects_seen_, 1);
    EXPECT_EQ(server_->counters().open, 0u);
}

TEST_F(HttpServerTest, DestroyedWhileHandlersWait) {
    Peer a = dial(), b = dial(), c = dial();
    a.send(get("/wait"));
    b.send(get("/flood"));
    b.pause_reading();
    c.send("GET / HT");
    loop_.settle();
    EXPECT_EQ(server_->counters().active, 2u);
    server_.reset();
    loop_.settle();
    EXPECT_TRUE(a.ended);
    EXPECT_TRUE(c.ended);
    EXPECT_EQ(loop_.timers(), 0u);
}

TEST(HttpHeaders, CaseInsensitiveInOrder) {
    Headers h;
    h.add("X-A", "1");
    h.add("x-a", "2");
    EXPECT_EQ(h.get("x-A"), "1");
    EXPECT_TRUE(h.has("X-a"));
    EXPECT_FALSE(h.has("x-b"));
    EXPECT_EQ(h.get("x-b"), "");
    EXPECT_EQ(h.list().size(), 2u);
}

}  // namespace
}  // namespace nereid::io
