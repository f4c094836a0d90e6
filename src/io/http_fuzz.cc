// Arbitrary bytes into a connection of the server with an echo handler, cut where the first byte
// says; the rest is also given to the client as a response. Whatever comes: the connection ends by
// itself, the handler's answers are well-formed, nothing waits for ever.
#include <array>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/http.h"
#include "io/http_parser.h"
#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::io {
namespace {

Task<void> echo(HttpRequest& request, HttpReply& reply) {
    CHECK(!request.method.empty() && !request.path.empty());
    CHECK(request.path.find('\0') == std::string::npos);
    Headers headers;
    for (const auto& [name, value] : request.headers.list()) headers.add("x-" + name, value);
    if (request.query == "stream") {
        (void)co_await reply.start(200, headers);
        (void)co_await reply.chunk(request.path);
        (void)co_await reply.finish(request.body);
    } else {
        (void)co_await reply.send(200, headers, request.body);
    }
}

Task<void> write_all(Stream& stream, std::string_view bytes, std::size_t step) {
    while (!bytes.empty()) {
        const std::array<std::string_view, 1> pieces{bytes.substr(0, step)};
        if (!(co_await stream.write(pieces, TimePoint::never())).ok()) co_return;
        bytes.remove_prefix(pieces[0].size());
    }
}

Task<void> read_all(Stream& stream, std::string& into, bool& ended) {
    std::array<char, 4096> piece;
    for (;;) {
        const auto n = co_await stream.read(piece, TimePoint::never());
        if (!n.ok() || *n == 0) break;
        into.append(piece.data(), *n);
    }
    ended = true;
}

// The answers must parse as whole responses, one after the other; HEAD leaves their bodies out.
void check_answers(std::string_view bytes, bool has_head) {
    while (!bytes.empty() && !has_head) {
        ResponseParser parser;
        parser.reset(false);
        std::string body;
        bytes.remove_prefix(parser.feed(bytes, body));
        if (parser.state() == ParseState::kBody) parser.feed_eof();
        CHECK(parser.state() == ParseState::kDone);
    }
}

void fuzz_server(std::string_view bytes, std::size_t step) {
    TestLoop loop;
    TestNetwork net(loop);
    const auto server = make_http_server(loop, {}, echo);
    server->serve(net.listener(), false);
    const auto peer = net.dial();
    std::string received;
    bool ended = false;
    RootTask reader, writer;
    reader.start(read_all(*peer, received, ended));
    writer.start(write_all(*peer, bytes, step));
    loop.advance(std::chrono::hours(1));
    CHECK(ended);
    CHECK(server->counters().open == 0 && server->counters().active == 0);
    CHECK(loop.timers() == 0);
    check_answers(received, bytes.find("HEAD") != std::string_view::npos);
}

Task<void> fetch(HttpClient& client, bool head, bool& ended, TimePoint deadline) {
    HttpClientRequest request;
    request.method = head ? "HEAD" : "GET";
    auto response = co_await client.request(request, deadline);
    if (response.ok()) (void)co_await (*response)->read_all(1 << 20, deadline);
    ended = true;
}

void fuzz_client(std::string_view bytes, std::size_t step, bool head) {
    TestLoop loop;
    TestNetwork net(loop);
    const auto listener = net.listener();
    const auto client = make_http_client(loop, net, {.endpoint = {"memory", 1, {}}});
    bool ended = false;
    std::string received;
    bool closed = false;
    const auto serve = [&]() -> Task<void> {
        auto s = co_await listener->accept();
        RootTask reader;
        reader.start(read_all(**s, received, closed));
        co_await write_all(**s, bytes, step);
        if (step % 2 == 0) (*s)->shutdown_write();
        co_await loop.sleep_until(TimePoint::never());
    };
    RootTask server, call;
    server.start(serve());
    call.start(fetch(*client, head, ended, loop.now() + 10s));
    loop.advance(20s);
    CHECK(ended);
}

}  // namespace
}  // namespace nereid::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::size_t step = data[0] == 0 ? 1 << 20 : data[0];
    nereid::io::fuzz_server(bytes, step);
    nereid::io::fuzz_client(bytes, step, data[0] % 3 == 1);
    return 0;
}
