// Inside io: one accepted connection of the HTTP server.
//
// Two coroutines share it. The *pump* reads into one buffer and goes on reading while a handler
// runs: that is how a client that went away is noticed, and costs nothing, because it is the read
// that the next request needs anyway. What a client sends ahead is bounded; over the bound the pump
// parks and only watches for a hang-up. The *main* coroutine parses, calls the handler, answers,
// and repeats. Main runs on the pump's stack when bytes arrive, so the next read starts exactly
// when main waits.
//
// One timer per connection, moved lazily: a keep-alive request arms and cancels nothing.
#pragma once

#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "io/http.h"
#include "io/http_buffer.h"
#include "io/http_parser.h"
#include "io/root_task.h"

namespace nereid::io {

class HttpConnection;

// What connections need from their server. It outlives them.
struct HttpServerCore {
    Loop& loop;
    HttpLimits limits;
    HttpHandler handler;
    HttpCounters counters = {};
    bool draining = false;

    std::int64_t common_second = -1;
    std::string common = {};  // "date: ...\r\nserver: nereid\r\n" of that second
    const std::string& common_headers();
};

class HttpConnection final : public HttpReply, public std::enable_shared_from_this<HttpConnection> {
  public:
    // `on_end` is called once, from the loop, when the connection has ended; it may destroy this.
    HttpConnection(HttpServerCore& core, std::unique_ptr<Stream> stream, bool tls, Loop::Fn on_end);
    ~HttpConnection() override;
    void start() { run_both(serve()); }
    // Answers 503 to whatever comes and closes.
    void start_refusing() { run_both(refuse()); }
    void close_if_idle();
    void close_now();

    // HttpReply
    Task<Result<void>> send(int status, const Headers& headers, std::string_view body) override;
    Task<Result<void>> start(int status, const Headers& headers, std::string_view first) override;
    Task<Result<void>> chunk(std::string_view bytes) override;
    Task<Result<void>> finish(std::string_view last) override;
    void abort() override;
    bool started() const override { return reply_ != Reply::kNone; }
    void on_disconnect(std::move_only_function<void()> fn) override;
    bool disconnected() const override { return gone_; }

  private:
    enum class Reply : std::uint8_t { kNone, kStreaming, kDone, kBroken };

    void run_both(Task<void> main);
    Task<void> serve();
    Task<void> refuse();
    Task<bool> next_request();
    Task<void> handle();
    std::string error_body(int status, std::string_view message, Headers& headers) const;
    Task<bool> reject(int status, std::string message);  // false, for next_request to return
    Task<bool> input_ended(bool timed_out);
    Task<Result<void>> write_slices(std::string_view body);
    Task<void> linger();
    void end();

    Task<void> pump();
    Task<void> watch_hangup();
    void unpark();
    void client_gone();
    void post_disconnect();

    void build_head(int status, const Headers& headers, std::optional<std::uint64_t> length);
    TimePoint write_deadline() const { return core_.loop.now() + core_.limits.write_timeout; }
    Result<void> wrote(Result<void> result);

    // Waits until bytes have arrived since the last wait, the input has ended or the deadline has
    // passed.
    struct More {
        HttpConnection& c;
        TimePoint deadline;
        bool await_ready() const;
        void await_suspend(std::coroutine_handle<> h) const;
        void await_resume() const {}
    };
    struct Park {
        HttpConnection& c;
        bool await_ready() const { return false; }
        void await_suspend(std::coroutine_handle<> h) const { c.parked_ = h; }
        void await_resume() const {}
    };
    void set_deadline(TimePoint at);
    void on_timer();
    void wake_main();

    HttpServerCore& core_;
    const std::unique_ptr<Stream> stream_;
    const bool tls_;
    const std::string peer_;
    Loop::Fn on_end_;

    ReadBuffer buffer_;
    bool fresh_ = false;  // bytes arrived since main last waited
    bool input_ended_ = false;
    bool input_clean_ = false;  // it ended by the peer's end of data, not by an error
    std::coroutine_handle<> parked_;
    std::coroutine_handle<> waiting_;
    bool timed_out_ = false;
    Loop::TimerId timer_ = 0;
    TimePoint timer_at_ = TimePoint::never();
    TimePoint deadline_ = TimePoint::never();

    RequestParser parser_;
    HttpRequest request_;
    bool between_requests_ = false;
    bool in_handler_ = false;
    bool ended_ = false;

    std::string head_;  // response head under construction
    Reply reply_ = Reply::kNone;
    bool close_after_ = false;
    bool linger_ = false;    // the client may still be sending
    bool bodiless_ = false;  // HEAD, 204, 304
    bool chunked_ = false;
    bool gone_ = false;
    std::uint64_t serial_ = 0;  // of the request, so that a late posted call finds its own
    std::move_only_function<void()> on_disconnect_;

    // Last, so that they go first: their frames use everything above.
    RootTask hangup_task_;
    RootTask pump_task_;
    RootTask main_task_;
};

}  // namespace nereid::io
