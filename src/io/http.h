// HTTP/1.1: the server and client of the gateway, over io::Stream (so also in the simulator, and
// under TLS).
//
// Parsing is Boost.Beast's; limits, keep-alive, pipelining, chunked bodies, timeouts and
// backpressure are here. One request at a time is given to the handler per connection (pipelined
// ones wait in the kernel and in one read buffer). A client that goes away while its request runs
// is noticed at once (on_disconnect); a client that closes only its sending half counts as gone, as
// with other servers of long answers. Malformed input is answered by HttpLimits' error writer with
// 400 / 408 / 411 / 413 / 414 / 417 / 431 / 501 / 505 and `connection: close`; the process lives.
// Where RFC 9112 leaves a choice the strict side is taken: folded headers, bare LF, white space
// before a colon, content-length beside transfer-encoding and more than one Host are all 400.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"
#include "io/stream.h"

namespace nereid::io {

class TlsClient;

// Names are compared without case; order is kept; repeated names are allowed.
class Headers {
  public:
    void add(std::string_view name, std::string_view value) { list_.emplace_back(name, value); }
    void clear() { list_.clear(); }                     // keeps its capacity
    std::string_view get(std::string_view name) const;  // first value, or empty
    bool has(std::string_view name) const;
    const std::vector<std::pair<std::string, std::string>>& list() const { return list_; }

  private:
    std::vector<std::pair<std::string, std::string>> list_;
};

struct HttpRequest {
    std::string method;
    std::string target;  // as sent
    std::string path;    // before '?', percent-decoded
    std::string query;   // after '?', raw
    Headers headers;
    std::string body;  // chunked bodies are joined
    std::string peer;
    bool tls = false;
    TimePoint received;  // first byte of the request line
};

// Where a handler writes its one response. Lives as long as the handler's task. All calls on the
// loop.
class HttpReply {
  public:
    virtual ~HttpReply() = default;
    // A whole response in one write (a body over 256 KiB in several). Added: date, server,
    // content-length, connection; the handler's own content-length, transfer-encoding and
    // connection are ignored, but its `connection: close` closes. HEAD, 204 and 304 get no body.
    // Once. kCancelled: the client has gone; kDeadlineExceeded: it did not read in time.
    virtual Task<Result<void>> send(int status, const Headers& headers, std::string_view body) = 0;
    // A streamed response (chunked; HTTP/1.0: until close): headers now, with the first bytes in
    // the same write, then chunk()s, then finish().
    virtual Task<Result<void>> start(int status, const Headers& headers,
                                     std::string_view first = {}) = 0;
    // One write() per call; waits while the socket is full (write_timeout, then the connection is
    // cut). Empty: nothing. kCancelled once the client has gone.
    virtual Task<Result<void>> chunk(std::string_view bytes) = 0;
    // The end of the stream, with the last bytes in the same write.
    virtual Task<Result<void>> finish(std::string_view last = {}) = 0;
    // finish() after a broken stream: the connection is closed without the last chunk, so that the
    // client sees the cut.
    virtual void abort() = 0;
    virtual bool started() const = 0;
    // `fn` runs once, from the loop (never inside this call), when the client goes away before the
    // response is complete; not after the handler's task has ended.
    virtual void on_disconnect(std::move_only_function<void()> fn) = 0;
    virtual bool disconnected() const = 0;
};

// A handler that ends without an answer gives 500; one that ends inside a streamed response aborts
// it.
using HttpHandler = std::function<Task<void>(HttpRequest&, HttpReply&)>;

struct HttpLimits {
    std::size_t max_header_bytes = 64
                                   << 10;  // request line and headers; trailers again; over it 431
    std::size_t max_header_count = 256;
    std::size_t max_target_bytes = 16 << 10;  // over it 414
    std::size_t max_body_bytes = 64 << 20;
    Duration header_timeout = 10s;  // from the first byte to the end of the headers
    Duration body_timeout = 60s;    // between reads of a body
    Duration idle_timeout = 75s;    // keep-alive
    Duration write_timeout = 60s;   // a client that does not read
    Duration linger_timeout =
        2s;  // after an early answer: time for the client to read it before the close
    std::uint32_t max_connections = 10'000;
    // Body of an error response that the HTTP layer itself gives; sets content-type and what else
    // such a response should say in its headers. `target`: of the request, empty where it was not
    // read.
    std::function<std::string(int status, std::string_view message, std::string_view target,
                              Headers& headers)>
        error_body;
};

struct HttpCounters {                // plain, the shell exports them
    std::uint64_t connections = 0;   // accepted, without `refused`
    std::uint64_t requests = 0;      // given to the handler
    std::uint64_t bad_requests = 0;  // answered by this layer with 4xx or 5xx
    std::uint64_t timeouts = 0;      // header, body or write; not idle
    std::uint64_t disconnects = 0;   // clients that went away before their response was complete
    std::uint64_t refused = 0;       // over max_connections
    std::uint64_t open = 0, active = 0;  // connections now; requests in a handler now
};

// Destroying the server closes every connection and destroys running handlers where they wait; not
// from inside one. The loop must outlive it.
class HttpServer {
  public:
    virtual ~HttpServer() = default;
    // Accepts on `listener` until stop_accepting. Several listeners may be given (plain and TLS).
    virtual void serve(std::unique_ptr<Listener> listener, bool tls) = 0;
    virtual void stop_accepting() = 0;
    // Stops accepting. Idle connections are closed, responses get `connection: close`; completes
    // when all are gone, or at the deadline after closing the rest (their handlers see a
    // disconnect).
    virtual Task<void> drain(TimePoint deadline) = 0;
    virtual const HttpCounters& counters() const = 0;
};
std::unique_ptr<HttpServer> make_http_server(Loop& loop, HttpLimits limits, HttpHandler handler);

// ------------------------------------------------------------------ client

struct HttpClientRequest {
    std::string method = "POST";
    std::string path = {};
    Headers headers = {};  // host, content-length are added
    std::string body = {};
};
// A response whose body is read piece by piece. Destroying it before the end closes its connection
// (the peer sees it).
class HttpClientResponse {
  public:
    virtual ~HttpClientResponse() = default;
    virtual int status() const = 0;
    virtual const Headers& headers() const = 0;
    // The next piece of the body as it arrives (chunked framing removed); empty at the end. kIo:
    // cut in the middle; kCorrupt: not HTTP; kDeadlineExceeded (may be called again).
    virtual Task<Result<std::string>> read_some(TimePoint deadline) = 0;
    virtual Task<Result<std::string>> read_all(std::size_t max_bytes, TimePoint deadline) = 0;
};

// Keep-alive pool to one endpoint, for one loop. A request on a reused connection that the peer had
// closed before the first response byte is sent once more on a fresh one. request() returns when
// the response's headers are there. kUnavailable: no connection, or it broke before a response;
// kDeadlineExceeded; kCorrupt: the answer is not HTTP/1.x. Destroying the task or the response
// cancels (closes). `request` must live until request() completes. Responses may outlive the
// client.
class HttpClient {
  public:
    virtual ~HttpClient() = default;
    virtual Task<Result<std::unique_ptr<HttpClientResponse>>> request(
        const HttpClientRequest& request, TimePoint deadline) = 0;
};
struct HttpClientOptions {
    Endpoint endpoint = {};
    bool tls = false;  // over the network's streams; false when the Network itself speaks TLS
    TlsClient* tls_client =
        nullptr;  // with `tls`; must outlive the client. Default: the system's certificates
    std::string host_header = {};  // default: endpoint
    std::uint32_t max_idle = 64;
    Duration connect_timeout = 5s;
    Duration idle_timeout = 60s;
};
std::unique_ptr<HttpClient> make_http_client(Loop& loop, Network& network,
                                             HttpClientOptions options);

}  // namespace nereid::io
