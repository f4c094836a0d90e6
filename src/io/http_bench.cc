// Cost of the HTTP layer alone: memory streams and a bare loop instead of sockets, so no system
// calls.
// `./dev bench` prints the figures; README.md of this room keeps those of record.
#include <benchmark/benchmark.h>

#include <array>
#include <string>

#include "io/http.h"
#include "io/http_parser.h"
#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::io {
namespace {

// What an SDK sends.
std::string sdk_request(std::size_t body_bytes) {
    return fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept-Encoding: gzip, "
        "deflate\r\n"
        "Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        "User-Agent: OpenAI/Python 3.51.0\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
        "Authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nContent-Length: {}\r\n\r\n{}",
        body_bytes, std::string(body_bytes, 'x'));
}

void parse_request(benchmark::State& state) {
    const std::string bytes = sdk_request(static_cast<std::size_t>(state.range(0)));
    const HttpLimits limits;
    RequestParser parser(limits);
    HttpRequest request;
    for (auto _ : state) {
        parser.reset(request);
        benchmark::DoNotOptimize(parser.feed(bytes));
        if (parser.state() != ParseState::kDone) state.SkipWithError("not parsed");
    }
}
BENCHMARK(parse_request)->Arg(300)->Arg(100'000);

Task<void> answer(HttpRequest& request, HttpReply& reply) {
    static const Headers kHeaders = [] {
        Headers h;
        h.add("content-type", "application/json");
        h.add("x-request-id", "req-0123456789abcdef");
        return h;
    }();
    static const std::string kBody(500, 'y');
    if (request.path == "/stream") {
        (void)co_await reply.start(200, kHeaders);
        for (int i = 0; i < 16; ++i)
            (void)co_await reply.chunk(std::string_view(kBody).substr(0, 200));
        (void)co_await reply.finish();
    } else {
        (void)co_await reply.send(200, kHeaders, kBody);
    }
}

// Request in, response out, on a kept connection; the client is two raw copies.
void serve_plain(benchmark::State& state) {
    TestLoop loop;
    TestNetwork net(loop);
    const auto server = make_http_server(loop, {}, answer);
    server->serve(net.listener(), false);
    const auto client = net.dial();
    const std::string bytes = sdk_request(300);
    std::array<char, 4096> got;
    std::size_t n = 0;
    const auto once = [&]() -> Task<void> {
        const std::array<std::string_view, 1> pieces{bytes};
        (void)co_await client->write(pieces, TimePoint::never());
        const auto r = co_await client->read(got, TimePoint::never());
        n = r.ok() ? *r : 0;
    };
    for (auto _ : state) {
        RootTask task;
        task.start(once());
        loop.settle();
        if (n < 500) state.SkipWithError("no response");
    }
}
BENCHMARK(serve_plain);

// Our client against our server: what a gateway does on its two sides.
void client_and_server(benchmark::State& state) {
    TestLoop loop;
    TestNetwork net(loop);
    const auto server = make_http_server(loop, {}, answer);
    server->serve(net.listener(), false);
    const auto client = make_http_client(loop, net, {.endpoint = {"memory", 1, {}}});
    HttpClientRequest request;
    request.path = state.range(0) == 0 ? "/plain" : "/stream";
    request.headers.add("content-type", "application/json");
    request.headers.add("authorization", "Bearer sk-0123456789abcdef0123456789abcdef");
    request.body = std::string(300, 'x');
    std::size_t n = 0;
    const auto once = [&]() -> Task<void> {
        auto response = co_await client->request(request, TimePoint::never());
        const auto body = co_await (*response)->read_all(1 << 20, TimePoint::never());
        n = body.ok() ? body->size() : 0;
    };
    for (auto _ : state) {
        n = 0;
        RootTask task;
        task.start(once());
        loop.settle();
        if (n < 500) state.SkipWithError("no response");
    }
}
BENCHMARK(client_and_server)->Arg(0)->Arg(1)->ArgName("stream");

}  // namespace
}  // namespace nereid::io
