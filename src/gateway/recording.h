// Recording: a response as it is made, which any number of connections may follow, from its
// beginning, while it grows or after its end. What background responses, their resumable streams,
// repeated requests (Idempotency-Key) and batches have in common.
//
// One writer; followers on any loop. A mutex guards the bytes: writers and followers copy under it
// and never wait. The bytes of streams are whole SSE frames per append.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/http.h"
#include "io/loop.h"
#include "io/root_task.h"
#include "io/task.h"

namespace nereid::gateway {

class Recording {
  public:
    struct Head {
        int status = 0;  // 0 = nothing yet
        io::Headers headers;
        bool streamed = false;
    };
    struct View {
        Head head;
        std::string bytes;  // from the offset asked for
        bool ended = false;
        bool whole = false;         // ended as it should; false: cut
        std::uint64_t version = 0;  // for changed()
    };

    void begin(Head head);
    void append(std::string_view bytes);
    // Once; later calls do nothing.
    void end(bool whole);

    View from(std::size_t offset) const;
    // Completes when something has happened since `version`.
    io::Task<void> changed(io::Loop& here, std::uint64_t version);

  private:
    struct Waiter {
        io::Loop* loop;
        std::weak_ptr<io::Signal> signal;  // alive = the loop is
    };
    void wake();  // with the mutex held

    mutable std::mutex mutex_;
    Head head_;  // guarded by mutex_, as all below
    std::string bytes_;
    bool ended_ = false;
    bool whole_ = false;
    std::uint64_t version_ = 0;
    std::vector<Waiter> waiters_;
};

// Writes a response into a recording instead of a connection. cancel() looks to the request like a
// client that goes away. Loop thread only.
class RecordingReply final : public io::HttpReply {
  public:
    RecordingReply(io::Loop& loop, std::shared_ptr<Recording> recording)
        : loop_(loop), recording_(std::move(recording)) {}
    ~RecordingReply() override { recording_->end(false); }

    io::Task<Result<void>> send(int status, const io::Headers& headers,
                                std::string_view body) override;
    io::Task<Result<void>> start(int status, const io::Headers& headers,
                                 std::string_view first) override;
    io::Task<Result<void>> chunk(std::string_view bytes) override;
    io::Task<Result<void>> finish(std::string_view last) override;
    void abort() override { recording_->end(false); }
    bool started() const override { return started_; }
    void on_disconnect(std::move_only_function<void()> fn) override;
    bool disconnected() const override { return cancelled_; }

    void cancel();

  private:
    io::Loop& loop_;
    std::shared_ptr<Recording> recording_;
    std::move_only_function<void()> gone_;
    bool started_ = false;
    bool cancelled_ = false;
};

// Drops the first frames of a stream that comes in pieces of whole frames. Comments are no events.
class FrameSkipper {
  public:
    explicit FrameSkipper(std::uint64_t events) : left_(events) {}
    std::string_view take(std::string_view frames);

  private:
    std::uint64_t left_;
};

}  // namespace nereid::gateway
