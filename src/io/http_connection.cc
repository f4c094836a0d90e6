#include "io/http_connection.h"

#include <array>

#include "base/check.h"
#include "io/http_wire.h"

namespace nereid::io {

namespace {

constexpr std::size_t kMaxAhead = 64 << 10;     // unparsed bytes beyond a head
constexpr std::size_t kWriteSlice = 256 << 10;  // each slice has a write_timeout of its own
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kCrlf = "\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::string_view kEndAndLastChunk = "\r\n0\r\n\r\n";

Error client_gone_error() { return {Code::kCancelled, "the client has gone"}; }

}  // namespace

const std::string& HttpServerCore::common_headers() {
    const WallTime now = loop.wall_now();
    if (now.seconds() != common_second) {
        common_second = now.seconds();
        common = "date: " + http_date(now) + "\r\nserver: nereid\r\n";
    }
    return common;
}

HttpConnection::HttpConnection(HttpServerCore& core, std::unique_ptr<Stream> stream, bool tls,
                               Loop::Fn on_end)
    : core_(core),
      stream_(std::move(stream)),
      tls_(tls),
      peer_(stream_->peer()),
      on_end_(std::move(on_end)),
      parser_(core.limits) {}

HttpConnection::~HttpConnection() {
    if (timer_ != 0) core_.loop.cancel(timer_);
    if (in_handler_) --core_.counters.active;
}

void HttpConnection::run_both(Task<void> main) {
    main_task_.start(std::move(main));  // waits for its first byte
    if (!ended_) pump_task_.start(pump());
}

void HttpConnection::close_if_idle() {
    if (between_requests_ && !parser_.started() && buffer_.size() == 0) stream_->close();
}

void HttpConnection::close_now() {
    stream_->close();  // the pump ends and tells the handler
}

// ------------------------------------------------------------------ the pump

Task<void> HttpConnection::pump() {
    unsigned rounds = 0;
    while (!ended_) {
        if (buffer_.size() >= core_.limits.max_header_bytes + kMaxAhead) {
            if (in_handler_) hangup_task_.start(watch_hangup());
            co_await Park{*this};
            hangup_task_.reset();
            continue;
        }
        const bool large = parser_.state() == ParseState::kBody && !in_handler_;
        const auto n = co_await stream_->read(buffer_.prepare(large));
        if (!n.ok() || *n == 0) {
            input_ended_ = true;
            input_clean_ = n.ok();
            client_gone();
            wake_main();
            co_return;
        }
        buffer_.commit(*n);
        fresh_ = true;
        wake_main();
        // A client that sends without end, to handlers that never wait, must not keep the loop.
        if (++rounds % 64 == 0) co_await core_.loop.yield();
    }
}

Task<void> HttpConnection::watch_hangup() {
    const auto result = co_await stream_->wait_hangup();
    if (result.ok() || result.code() != Code::kCancelled) client_gone();
}

void HttpConnection::unpark() {
    if (parked_) std::exchange(parked_, {}).resume();
}

void HttpConnection::client_gone() {
    if (!in_handler_ || gone_ || reply_ == Reply::kDone) return;
    gone_ = true;
    ++core_.counters.disconnects;
    post_disconnect();
}

void HttpConnection::post_disconnect() {
    if (!on_disconnect_) return;
    core_.loop.post([weak = weak_from_this(), serial = serial_] {
        const auto self = weak.lock();
        if (self && self->serial_ == serial && self->on_disconnect_)
            std::exchange(self->on_disconnect_, {})();
    });
}

void HttpConnection::on_disconnect(std::move_only_function<void()> fn) {
    on_disconnect_ = std::move(fn);
    if (gone_) post_disconnect();
}

// ------------------------------------------------------------------ main's waiting

bool HttpConnection::More::await_ready() const {
    c.fresh_ = c.timed_out_ = false;
    c.unpark();
    return c.fresh_ || c.input_ended_;
}

void HttpConnection::More::await_suspend(std::coroutine_handle<> h) const {
    c.waiting_ = h;
    c.set_deadline(deadline);
}

void HttpConnection::wake_main() {
    if (waiting_) std::exchange(waiting_, {}).resume();
}

void HttpConnection::set_deadline(TimePoint at) {
    deadline_ = at;
    if (timer_ != 0 && timer_at_ <= at) return;  // it will look again when it fires
    if (timer_ != 0) core_.loop.cancel(timer_);
    timer_at_ = at;
    timer_ = core_.loop.arm(at, [this] { on_timer(); });
}

void HttpConnection::on_timer() {
    timer_ = 0;
    if (!waiting_) return;
    if (core_.loop.now() < deadline_) return set_deadline(deadline_);
    timed_out_ = true;
    wake_main();
}

// ------------------------------------------------------------------ main

Task<void> HttpConnection::serve() {
    while (co_await next_request()) {
        co_await handle();
        if (close_after_ || reply_ != Reply::kDone) break;
    }
    if (linger_) co_await linger();
    end();
}

Task<void> HttpConnection::refuse() {
    co_await reject(503, "too many connections");
    co_await linger();
    end();
}

void HttpConnection::end() {
    ended_ = true;
    stream_->close();
    core_.loop.post([weak = weak_from_this()] {
        Loop::Fn on_end;
        if (const auto self = weak.lock()) on_end = std::move(self->on_end_);
        if (on_end) on_end();  // destroys the connection; nothing of it is used here any more
    });
}

// Reads until a whole request is in request_. false: the connection is over (answered where an
// answer is due).
Task<bool> HttpConnection::next_request() {
    const auto& limits = core_.limits;
    parser_.reset(request_);
    const TimePoint idle_since = core_.loop.now();
    bool continue_sent = false;
    for (;;) {
        if (buffer_.size() != 0) {
            const bool first = !parser_.started();
            buffer_.consume(parser_.feed(buffer_.unparsed()));
            if (first && parser_.started()) request_.received = core_.loop.now();
            if (parser_.state() == ParseState::kDone) co_return true;
            if (parser_.state() == ParseState::kFailed)
                co_return co_await reject(parser_.error_status(), parser_.error_message());
        }
        if (parser_.state() == ParseState::kBody && parser_.wants_continue() && !continue_sent) {
            continue_sent = true;
            if (request_.body.empty() && buffer_.size() == 0) {
                const std::array pieces{kContinue};
                if (!wrote(co_await stream_->write(pieces, write_deadline())).ok()) co_return false;
            }
        }
        TimePoint until = idle_since + limits.idle_timeout;
        if (parser_.state() == ParseState::kBody)
            until = core_.loop.now() + limits.body_timeout;
        else if (parser_.started())
            until = request_.received + limits.header_timeout;
        else if (core_.draining)
            co_return false;
        between_requests_ = true;
        co_await More{*this, until};
        between_requests_ = false;
        if (timed_out_ || (input_ended_ && !fresh_)) co_return co_await input_ended(timed_out_);
    }
}

Task<bool> HttpConnection::input_ended(bool timed_out) {
    if (!parser_.started()) co_return false;
    if (timed_out) {
        ++core_.counters.timeouts;
        co_return co_await reject(408, "the request did not arrive in time");
    }
    if (input_clean_) co_return co_await reject(400, "the request ended early");
    co_return false;
}

Task<void> HttpConnection::handle() {
    ++serial_;
    ++core_.counters.requests;
    ++core_.counters.active;
    request_.peer = peer_;
    request_.tls = tls_;
    reply_ = Reply::kNone;
    gone_ = false;
    close_after_ = !parser_.keep_alive();
    bodiless_ = request_.method == "HEAD";
    in_handler_ = true;
    if (input_ended_) client_gone();  // it closed together with its last request

    co_await core_.handler(request_, *this);

    if (reply_ == Reply::kNone) {
        Headers headers;
        const std::string body = error_body(500, "the handler gave no answer", headers);
        (void)co_await send(500, headers, body);
    } else if (reply_ == Reply::kStreaming) {
        abort();
    }
    in_handler_ = false;
    --core_.counters.active;
    on_disconnect_ = nullptr;
}

std::string HttpConnection::error_body(int status, std::string_view message,
                                       Headers& headers) const {
    if (core_.limits.error_body)
        return core_.limits.error_body(status, message, request_.target, headers);
    headers.add("content-type", "text/plain");
    return std::string(message) + "\n";
}

Task<bool> HttpConnection::reject(int status, std::string message) {
    ++core_.counters.bad_requests;
    Headers headers;
    const std::string body = error_body(status, message, headers);
    if (status == 503) headers.add("retry-after", "1");
    reply_ = Reply::kNone;
    close_after_ = linger_ = true;
    bodiless_ = false;
    (void)co_await send(status, headers, body);
    co_return false;
}

// An early close with unread input makes the kernel send a reset, which may overtake the answer on
// its way: the client gets time to read it (RFC 9112 §9.6).
Task<void> HttpConnection::linger() {
    stream_->shutdown_write();
    const TimePoint until = core_.loop.now() + core_.limits.linger_timeout;
    std::size_t discarded = 0;
    while (discarded <= core_.limits.max_body_bytes) {
        discarded += buffer_.size();
        buffer_.consume(buffer_.size());
        co_await More{*this, until};
        if (timed_out_ || input_ended_) co_return;
    }
}

// ------------------------------------------------------------------ the reply

void HttpConnection::build_head(int status, const Headers& headers,
                                std::optional<std::uint64_t> length) {
    head_.assign("HTTP/1.1 ");
    append_decimal(head_, static_cast<std::uint64_t>(status));
    head_ += ' ';
    head_ += http_reason(status);
    head_ += kCrlf;
    head_ += core_.common_headers();
    for (const auto& [name, value] : headers.list()) {
        // Framing is ours. Names of that length are few, so that most headers are not compared.
        if (name.size() == 10 && iequals(name, "connection")) {
            if (list_has_token(value, "close")) close_after_ = linger_ = true;
            continue;
        }
        if (name.size() == 14 && iequals(name, "content-length")) continue;
        if (name.size() == 17 && iequals(name, "transfer-encoding")) continue;
        append_header(head_, name, value);
    }
    if (core_.draining && !close_after_) close_after_ = linger_ = true;
    if (status == 204 || status == 304) {
        bodiless_ = true;
    } else if (length) {
        head_ += "content-length: ";
        append_decimal(head_, *length);
        head_ += kCrlf;
    } else if (chunked_) {
        head_ += "transfer-encoding: chunked\r\n";
    }
    if (close_after_)
        head_ += "connection: close\r\n";
    else if (parser_.http10())
        head_ += "connection: keep-alive\r\n";
    head_ += kCrlf;
}

// Accounts for a failed write: nothing more can be said on this connection.
Result<void> HttpConnection::wrote(Result<void> result) {
    if (result.ok()) return result;
    if (result.code() == Code::kDeadlineExceeded) ++core_.counters.timeouts;
    client_gone();
    reply_ = Reply::kBroken;
    linger_ = false;
    stream_->close();
    if (result.code() == Code::kIo) return client_gone_error();
    return result;
}

Task<Result<void>> HttpConnection::write_slices(std::string_view body) {
    while (!body.empty()) {
        const std::array pieces{body.substr(0, kWriteSlice)};
        CO_TRY_VOID(wrote(co_await stream_->write(pieces, write_deadline())));
        body.remove_prefix(pieces[0].size());
    }
    co_return Result<void>{};
}

Task<Result<void>> HttpConnection::send(int status, const Headers& headers, std::string_view body) {
    CHECK_MSG(reply_ == Reply::kNone || reply_ == Reply::kBroken,
              "a second response to one request");
    if (reply_ == Reply::kBroken) co_return client_gone_error();
    reply_ = Reply::kStreaming;
    build_head(status, headers, body.size());
    if (bodiless_) body = {};
    const std::array<std::string_view, 2> pieces{head_, body.substr(0, kWriteSlice)};
    CO_TRY_VOID(wrote(co_await stream_->write(pieces, write_deadline())));
    if (body.size() > kWriteSlice) CO_TRY_VOID(co_await write_slices(body.substr(kWriteSlice)));
    reply_ = Reply::kDone;
    co_return Result<void>{};
}

Task<Result<void>> HttpConnection::start(int status, const Headers& headers,
                                         std::string_view first) {
    CHECK_MSG(reply_ == Reply::kNone || reply_ == Reply::kBroken,
              "a second response to one request");
    if (reply_ == Reply::kBroken) co_return client_gone_error();
    reply_ = Reply::kStreaming;
    chunked_ = !parser_.http10();
    if (!chunked_) close_after_ = true;
    build_head(status, headers, std::nullopt);
    if (bodiless_) first = {};
    const bool framed = chunked_ && !first.empty();
    if (framed) {
        append_hex(head_, first.size());
        head_ += kCrlf;
    }
    const std::array<std::string_view, 3> pieces{head_, first, framed ? kCrlf : std::string_view{}};
    co_return wrote(co_await stream_->write(pieces, write_deadline()));
}

Task<Result<void>> HttpConnection::chunk(std::string_view bytes) {
    CHECK_MSG(reply_ != Reply::kNone && reply_ != Reply::kDone,
              "a chunk outside start() ... finish()");
    if (gone_ || reply_ == Reply::kBroken) co_return client_gone_error();
    if (bytes.empty() || bodiless_) co_return Result<void>{};
    if (!chunked_) co_return co_await write_slices(bytes);
    head_.clear();
    append_hex(head_, bytes.size());
    head_ += kCrlf;
    const std::array<std::string_view, 3> pieces{head_, bytes, kCrlf};
    co_return wrote(co_await stream_->write(pieces, write_deadline()));
}

Task<Result<void>> HttpConnection::finish(std::string_view last) {
    CHECK_MSG(reply_ != Reply::kNone && reply_ != Reply::kDone, "finish() without start()");
    if (gone_ || reply_ == Reply::kBroken) co_return client_gone_error();
    if (!bodiless_ && !chunked_) CO_TRY_VOID(co_await write_slices(last));
    if (!bodiless_ && chunked_) {
        head_.clear();
        std::array<std::string_view, 3> pieces{kLastChunk, {}, {}};
        if (!last.empty()) {
            append_hex(head_, last.size());
            head_ += kCrlf;
            pieces = {head_, last, kEndAndLastChunk};
        }
        CO_TRY_VOID(wrote(co_await stream_->write(pieces, write_deadline())));
    }
    reply_ = Reply::kDone;
    co_return Result<void>{};
}

void HttpConnection::abort() {
    if (reply_ == Reply::kDone) return;
    reply_ = Reply::kBroken;
    linger_ = false;
    stream_->close();
}

}  // namespace nereid::io
