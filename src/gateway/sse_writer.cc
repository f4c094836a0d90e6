#include "gateway/sse_writer.h"

#include <utility>

namespace nereid::gateway {
namespace {
constexpr std::string_view kComment = ": keep-alive\n\n";
}

SseWriter::SseWriter(Exchange& exchange) : x_(exchange), last_write_(exchange.loop().now()) {
    arm();
}

SseWriter::~SseWriter() {
    if (timer_ != 0) x_.loop().cancel(timer_);
}

// The timer is not moved by each write: when it fires early, it is armed again for what is left of
// the silence.
void SseWriter::arm() {
    timer_ = x_.loop().arm(last_write_ + x_.options().keepalive, [this] {
        timer_ = 0;
        on_timer();
    });
}

void SseWriter::on_timer() {
    const bool silent = x_.loop().now() - last_write_ >= x_.options().keepalive;
    if (silent) {
        last_write_ = x_.loop().now();
        if (!writing_ && !beat_.running()) beat_.start(beat());
    }
    arm();
}

io::Task<void> SseWriter::beat() {
    ++x_.record.keepalives;
    if (opened_)
        succeeded(co_await x_.reply().chunk(kComment));
    else
        co_await send_headers(kComment);
}

io::Task<bool> SseWriter::send_headers(std::string_view first_frames) {
    opened_ = true;
    x_.record.status = 200;
    io::Headers headers = x_.headers("text/event-stream; charset=utf-8");
    headers.add("cache-control", "no-cache");
    headers.add("x-accel-buffering", "no");
    if (auto timing = server_timing(x_.record, x_.loop().now()); !timing.empty())
        headers.add("server-timing", timing);
    co_return succeeded(co_await x_.reply().start(200, headers, first_frames));
}

io::Task<bool> SseWriter::open() {
    if (beat_.running()) co_await beat_.join();
    if (opened_) co_return true;
    writing_ = true;
    const bool ok = co_await send_headers({});
    writing_ = false;
    last_write_ = x_.loop().now();
    co_return ok;
}

io::Task<bool> SseWriter::write(std::string_view frames) {
    if (beat_.running()) co_await beat_.join();
    writing_ = true;
    const bool ok =
        opened_ ? succeeded(co_await x_.reply().chunk(frames)) : co_await send_headers(frames);
    writing_ = false;
    last_write_ = x_.loop().now();
    co_return ok;
}

io::Task<bool> SseWriter::finish(std::string_view last_frames) {
    if (beat_.running()) co_await beat_.join();
    writing_ = true;  // to the end: no comment may follow
    co_return succeeded(co_await x_.reply().finish(last_frames));
}

bool SseWriter::succeeded(const Result<void>& result) {
    if (!result.ok()) x_.write_failed(result.error());
    return result.ok();
}

}  // namespace nereid::gateway
