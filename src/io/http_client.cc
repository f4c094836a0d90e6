#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/http.h"
#include "io/http_buffer.h"
#include "io/http_parser.h"
#include "io/http_wire.h"
#include "io/root_task.h"
#include "io/tls.h"

namespace nereid::io {

namespace {

// After a failed write: the peer may have answered early (413) and closed, so its answer is looked
// for this long.
constexpr Duration kEarlyAnswer = 1s;

struct Connection {
    std::unique_ptr<Stream> stream;
    ReadBuffer buffer;
    ResponseParser parser;
    TimePoint idle_since;
    bool large_reads = false;  // the last read filled its buffer
    bool dead = false;         // the peer closed it while it was idle
    RootTask hangup_watch;     // last: it uses the stream

    // Bytes read and given to the parser; 0 at the end of the peer's data.
    Task<Result<std::size_t>> read(std::string& body, TimePoint deadline) {
        const auto room = buffer.prepare(large_reads);
        const auto n = co_await stream->read(room, deadline);
        if (!n.ok()) co_return n.error();
        if (*n == 0) {
            parser.feed_eof();
            co_return 0u;
        }
        large_reads = *n == room.size();
        buffer.commit(*n);
        buffer.consume(parser.feed(buffer.unparsed(), body));
        co_return *n;
    }
    Task<void> watch() {
        const auto result = co_await stream->wait_hangup();
        dead = result.ok() || result.code() != Code::kCancelled;
    }
};

// Idle connections, the longest idle first. Shared by the client and its responses, which give
// connections back.
class Pool : public std::enable_shared_from_this<Pool> {
  public:
    Pool(Loop& loop, HttpClientOptions options) : loop_(loop), options_(std::move(options)) {}
    ~Pool() {
        if (timer_ != 0) loop_.cancel(timer_);
    }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    Loop& loop() { return loop_; }
    const HttpClientOptions& options() const { return options_; }

    std::unique_ptr<Connection> take() {
        while (!idle_.empty()) {
            auto c = std::move(idle_.back());
            idle_.pop_back();
            if (c->dead || loop_.now() - c->idle_since >= options_.idle_timeout) continue;
            c->hangup_watch.reset();
            return c;
        }
        return nullptr;
    }

    void give(std::unique_ptr<Connection> c) {
        // Bytes nobody asked for would be taken for the next answer.
        if (!c->parser.keep_alive() || c->buffer.size() != 0 || options_.max_idle == 0) return;
        c->idle_since = loop_.now();
        c->hangup_watch.start(c->watch());
        if (c->dead) return;
        if (idle_.size() >= options_.max_idle) idle_.erase(idle_.begin());
        idle_.push_back(std::move(c));
        arm();
    }

  private:
    void arm() {
        if (timer_ != 0 || idle_.empty()) return;
        timer_ = loop_.arm(idle_.front()->idle_since + options_.idle_timeout, [this] {
            timer_ = 0;
            const TimePoint now = loop_.now();
            std::erase_if(idle_, [&](const auto& c) {
                return c->dead || now - c->idle_since >= options_.idle_timeout;
            });
            arm();
        });
    }

    Loop& loop_;
    HttpClientOptions options_;
    std::vector<std::unique_ptr<Connection>> idle_;
    Loop::TimerId timer_ = 0;
};

class Response final : public HttpClientResponse {
  public:
    Response(std::shared_ptr<Pool> pool, std::unique_ptr<Connection> c, std::string first)
        : pool_(std::move(pool)),
          c_(std::move(c)),
          status_(c_->parser.status()),
          headers_(std::move(c_->parser.headers())),
          pending_(std::move(first)) {
        release_if_done();
    }

    int status() const override { return status_; }
    const Headers& headers() const override { return headers_; }

    Task<Result<std::string>> read_some(TimePoint deadline) override {
        while (pending_.empty() && c_ != nullptr) {
            if (c_->parser.state() == ParseState::kFailed) co_return fail(Code::kCorrupt);
            const auto n = co_await c_->read(pending_, deadline);
            if (!n.ok()) co_return n.error();
            if (*n == 0 && c_->parser.state() == ParseState::kFailed) co_return fail(Code::kIo);
            release_if_done();
        }
        co_return std::exchange(pending_, {});
    }

    Task<Result<std::string>> read_all(std::size_t max_bytes, TimePoint deadline) override {
        std::string all;
        for (;;) {
            auto piece = co_await read_some(deadline);
            if (!piece.ok() || piece->empty()) {
                if (piece.ok()) co_return all;
                co_return piece;
            }
            if (all.size() + piece->size() > max_bytes) {
                c_.reset();
                co_return Error{Code::kTooLarge,
                                fmt::format("the response is larger than {} bytes", max_bytes)};
            }
            if (all.empty())
                all = std::move(*piece);
            else
                all += *piece;
        }
    }

  private:
    // The connection is free for others before the caller has read the last piece.
    void release_if_done() {
        if (c_->parser.state() == ParseState::kDone) pool_->give(std::move(c_));
    }
    // Stays failed: the connection is kept, and no other error is told later.
    Error fail(Code code) const {
        return {code, "response of " + pool_->options().endpoint.to_string() + ": " +
                          c_->parser.error_message()};
    }

    std::shared_ptr<Pool> pool_;
    std::unique_ptr<Connection> c_;  // null once the message is complete
    int status_;
    Headers headers_;
    std::string pending_;
};

bool is_wire_safe(std::string_view s) {
    return std::ranges::all_of(
        s, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; });
}

class Client final : public HttpClient {
  public:
    Client(Loop& loop, Network& network, HttpClientOptions options)
        : network_(network), pool_(std::make_shared<Pool>(loop, std::move(options))) {
        const auto& o = pool_->options();
        host_ = o.host_header.empty()
                    ? (o.endpoint.unix_path.empty() ? o.endpoint.to_string() : "localhost")
                    : o.host_header;
    }

    Task<Result<std::unique_ptr<HttpClientResponse>>> request(const HttpClientRequest& request,
                                                              TimePoint deadline) override {
        if (!is_wire_safe(request.method) || request.method.empty() || !is_wire_safe(request.path))
            co_return Error{Code::kInvalidArgument,
                            "a method or path with white space or control characters"};
        const std::string head = build_head(request);
        auto c = pool_->take();
        if (c != nullptr) {
            std::string body;
            auto sent = co_await exchange(*c, request, head, body, deadline);
            if (sent.ok()) co_return answer(std::move(c), std::move(body));
            const bool stale = sent.code() == Code::kUnavailable && !c->parser.started();
            if (!stale) co_return sent.error();
        }
        CO_TRY(c, co_await connect(deadline));
        std::string body;
        CO_TRY_VOID(co_await exchange(*c, request, head, body, deadline));
        co_return answer(std::move(c), std::move(body));
    }

  private:
    std::unique_ptr<HttpClientResponse> answer(std::unique_ptr<Connection> c, std::string body) {
        return std::make_unique<Response>(pool_, std::move(c), std::move(body));
    }

    Error failed(Code code, std::string_view what) const {
        return {code, fmt::format("{}: {}", pool_->options().endpoint.to_string(), what)};
    }

    std::string build_head(const HttpClientRequest& request) const {
        std::string head;
        head.reserve(512);
        head += request.method;
        head += ' ';
        if (!request.path.starts_with('/') && request.path != "*") head += '/';
        head += request.path;
        head += " HTTP/1.1\r\n";
        if (!request.headers.has("host")) append_header(head, "host", host_);
        for (const auto& [name, value] : request.headers.list()) {
            if (iequals(name, "content-length") || iequals(name, "transfer-encoding") ||
                iequals(name, "connection"))
                continue;
            append_header(head, name, value);
        }
        const bool carries =
            request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
        if (carries || !request.body.empty()) {
            head += "content-length: ";
            append_decimal(head, request.body.size());
            head += "\r\n";
        }
        head += "\r\n";
        return head;
    }

    Task<Result<std::unique_ptr<Connection>>> connect(TimePoint deadline) {
        const auto& o = pool_->options();
        const TimePoint by = std::min(deadline, pool_->loop().now() + o.connect_timeout);
        auto stream = co_await network_.connect(o.endpoint, by);
        if (!stream.ok()) {
            if (stream.code() == Code::kDeadlineExceeded && by == deadline)
                co_return stream.error();
            co_return failed(Code::kUnavailable, stream.error().message);
        }
        auto c = std::make_unique<Connection>();
        c->stream = std::move(*stream);
        if (!o.tls) co_return c;
        if (o.tls_client == nullptr && own_tls_ == nullptr) {
            CO_TRY(own_tls_, TlsClient::create({}));
        }
        TlsClient& tls = o.tls_client != nullptr ? *o.tls_client : *own_tls_;
        c->stream = tls.wrap(pool_->loop(), std::move(c->stream), o.endpoint.host);
        co_return c;
    }

    // Sends and reads until the response's headers are complete; the body's first bytes go to
    // `body`.
    Task<Result<void>> exchange(Connection& c, const HttpClientRequest& request,
                                const std::string& head, std::string& body, TimePoint deadline) {
        c.parser.reset(request.method == "HEAD");
        const std::array<std::string_view, 2> pieces{head, request.body};
        const auto sent = co_await c.stream->write(pieces, deadline);
        if (!sent.ok()) {
            if (sent.code() != Code::kIo) co_return sent.error();
            deadline = std::min(deadline, pool_->loop().now() + kEarlyAnswer);
        }
        while (c.parser.state() == ParseState::kHead) {
            const auto n = co_await c.read(body, deadline);
            if (!n.ok()) {
                if (!sent.ok()) co_return failed(Code::kUnavailable, sent.error().message);
                if (n.code() == Code::kIo) co_return failed(Code::kUnavailable, n.error().message);
                co_return n.error();
            }
            if (*n == 0) co_return failed(Code::kUnavailable, c.parser.error_message());
        }
        // A body that is broken from its start is told by read_some.
        if (!c.parser.head_done()) co_return failed(Code::kCorrupt, c.parser.error_message());
        co_return Result<void>{};
    }

    Network& network_;
    std::shared_ptr<Pool> pool_;
    std::string host_;
    std::unique_ptr<TlsClient> own_tls_;
};

}  // namespace

std::unique_ptr<HttpClient> make_http_client(Loop& loop, Network& network,
                                             HttpClientOptions options) {
    return std::make_unique<Client>(loop, network, std::move(options));
}

}  // namespace nereid::io
