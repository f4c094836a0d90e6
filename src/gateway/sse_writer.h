// SseWriter: the streamed response. Headers once, each write() as one chunk in one system call, and
// a comment whenever nothing was written for `keepalive`, also before the first token (cases A57,
// A58): proxies and Node cut silent connections after 60 to 300 s. A silence before open() opens
// too: from then on an error is a frame, not a status.
//
// One writer at a time; a comment in flight is waited for. Lives inside the request's Subtask.
#pragma once

#include <string_view>

#include "gateway/exchange.h"
#include "gateway/subtask.h"

namespace nereid::gateway {

class SseWriter {
  public:
    explicit SseWriter(Exchange& exchange);
    ~SseWriter();
    SseWriter(const SseWriter&) = delete;
    SseWriter& operator=(const SseWriter&) = delete;

    // All return false when the client is gone or does not read; that is then in the record.
    io::Task<bool> open();                          // does nothing when open
    io::Task<bool> write(std::string_view frames);  // opens when need be, in the same system call
    io::Task<bool> finish(std::string_view last_frames);
    bool opened() const { return opened_; }

  private:
    void arm();
    void on_timer();
    io::Task<void> beat();
    io::Task<bool> send_headers(std::string_view first_frames);
    bool succeeded(const Result<void>& result);

    Exchange& x_;
    Subtask beat_;
    io::Loop::TimerId timer_ = 0;
    TimePoint last_write_;
    bool opened_ = false;
    bool writing_ = false;
};

}  // namespace nereid::gateway
