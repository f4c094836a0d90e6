// Inside io, for its tests, fuzzers and benchmarks: a loop on virtual time, byte streams in memory
// with a bounded buffer, and a network of them. Small and without faults of its own; the
// simulator's network is another thing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/waiter.h"

namespace nereid::io {

// Time stands still while there is work and jumps to the next timer when there is none.
class TestLoop final : public Loop {
  public:
    ~TestLoop() override { destroy_tasks(); }
    TimePoint now() const override { return now_; }
    WallTime wall_now() const override {
        return {std::chrono::seconds(784111777) + now_.since_origin};
    }
    void post(Fn fn) override { ready_.push_back(std::move(fn)); }
    TimerId arm(TimePoint at, Fn fn) override {
        const TimerId id = ++last_timer_;
        timers_.emplace(std::pair(at, id), std::move(fn));
        return id;
    }
    void cancel(TimerId id) override {
        std::erase_if(timers_, [&](const auto& t) { return t.first.second == id; });
    }
    bool on_loop_thread() const override { return true; }

    // Runs what is ready, without moving time.
    void settle() {
        while (!ready_.empty()) {
            Fn fn = std::move(ready_.front());
            ready_.pop_front();
            fn();
        }
    }
    // Runs for `d` of virtual time.
    void advance(Duration d) {
        const TimePoint end = now_ + d;
        for (settle(); !timers_.empty() && timers_.begin()->first.first <= end; settle()) {
            now_ = std::max(now_, timers_.begin()->first.first);
            Fn fn = std::move(timers_.begin()->second);
            timers_.erase(timers_.begin());
            fn();
        }
        now_ = end;
    }
    std::size_t timers() const { return timers_.size(); }

  private:
    TimePoint now_{};
    std::deque<Fn> ready_;
    std::map<std::pair<TimePoint, TimerId>, Fn> timers_;
    TimerId last_timer_ = 0;
};

// One direction of a connection.
struct TestPipe {
    TestPipe(Loop& loop, std::size_t room)
        : capacity(room), reader(loop), writer(loop), hangup(loop) {}
    std::size_t capacity;
    std::string bytes;
    bool ended = false;    // the writer has shut down or closed
    bool refused = false;  // the reader has closed
    Waiter reader, writer, hangup;
};

class TestStream final : public Stream {
  public:
    using Pair = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;
    static Pair make_pair(Loop& loop, std::size_t capacity = 64 << 10) {
        auto a = std::make_shared<TestPipe>(loop, capacity),
             b = std::make_shared<TestPipe>(loop, capacity);
        return {std::make_unique<TestStream>(a, b), std::make_unique<TestStream>(b, a)};
    }
    TestStream(std::shared_ptr<TestPipe> in, std::shared_ptr<TestPipe> out)
        : in_(std::move(in)), out_(std::move(out)) {}
    ~TestStream() override { close(); }

    Task<Result<std::size_t>> read(std::span<char> into, TimePoint deadline) override {
        return read(in_, into, deadline);
    }
    Task<Result<void>> write(std::span<const std::string_view> pieces,
                             TimePoint deadline) override {
        return write(out_, pieces, deadline);
    }
    Task<Result<void>> wait_hangup() override { return wait_hangup(in_); }
    void shutdown_write() override { end(out_); }
    void close() override {
        end(out_);
        in_->refused = true;
        in_->reader.wake_later(Wake::kCancelled, in_);
        in_->hangup.wake_later(Wake::kCancelled, in_);
        in_->writer.wake_later(Wake::kEvent, in_);
        out_->writer.wake_later(Wake::kCancelled, out_);
    }
    std::string peer() const override { return "memory"; }

  private:
    using Pipe = std::shared_ptr<TestPipe>;
    static Error closed() { return {Code::kCancelled, "closed on our side"}; }
    static void end(const Pipe& p) {
        p->ended = true;
        p->reader.wake_later(Wake::kEvent, p);
        p->hangup.wake_later(Wake::kEvent, p);
    }
    static Task<Result<std::size_t>> read(Pipe p, std::span<char> into, TimePoint deadline) {
        for (;;) {
            if (p->refused) co_return closed();
            if (!p->bytes.empty()) {
                const std::size_t n = std::min(into.size(), p->bytes.size());
                p->bytes.copy(into.data(), n);
                p->bytes.erase(0, n);
                p->writer.wake_later(Wake::kEvent, p);
                co_return n;
            }
            if (p->ended) co_return 0u;
            const Wake why = co_await p->reader.wait(deadline);
            if (why == Wake::kCancelled) co_return closed();
            if (why == Wake::kDeadline) co_return Error{Code::kDeadlineExceeded, "nothing to read"};
        }
    }
    static Task<Result<void>> write(Pipe p, std::span<const std::string_view> pieces,
                                    TimePoint deadline) {
        for (std::string_view piece : pieces) {
            while (!piece.empty()) {
                if (p->ended) co_return closed();
                if (p->refused) co_return Error{Code::kIo, "broken pipe"};
                if (p->bytes.size() < p->capacity) {
                    const auto part = piece.substr(0, p->capacity - p->bytes.size());
                    p->bytes += part;
                    piece.remove_prefix(part.size());
                    p->reader.wake_later(Wake::kEvent, p);
                    continue;
                }
                const Wake why = co_await p->writer.wait(deadline);
                if (why == Wake::kCancelled) co_return closed();
                if (why == Wake::kDeadline)
                    co_return Error{Code::kDeadlineExceeded, "nobody reads"};
            }
        }
        co_return Result<void>{};
    }
    static Task<Result<void>> wait_hangup(Pipe p) {
        while (!p->ended) {
            if (co_await p->hangup.wait() == Wake::kCancelled) co_return closed();
        }
        co_return Result<void>{};
    }
    Pipe in_, out_;
};

// Connections appear at the listener at once; there is one listener.
class TestNetwork final : public Network {
  public:
    explicit TestNetwork(Loop& loop, std::size_t capacity = 64 << 10)
        : loop_(loop), capacity_(capacity) {}

    Task<Result<std::unique_ptr<Stream>>> connect(const Endpoint&, TimePoint) override {
        ++connects;
        auto streams = TestStream::make_pair(loop_, capacity_);
        if (!give(std::move(streams.second))) co_return Error{Code::kIo, "Connection refused"};
        co_return std::move(streams.first);
    }
    Result<std::unique_ptr<Listener>> listen(const Endpoint&, bool) override { return listener(); }
    std::unique_ptr<Listener> listener() { return std::make_unique<Door>(queue_); }
    // The server's side of a connection made by the test.
    bool give(std::unique_ptr<Stream> stream) {
        if (queue_->closed) return false;
        queue_->streams.push_back(std::move(stream));
        queue_->waiter.wake_later(Wake::kEvent, queue_);
        return true;
    }
    std::unique_ptr<Stream> dial() {
        auto streams = TestStream::make_pair(loop_, capacity_);
        give(std::move(streams.second));
        return std::move(streams.first);
    }
    int connects = 0;

  private:
    struct Queue {
        explicit Queue(Loop& loop) : waiter(loop) {}
        std::deque<std::unique_ptr<Stream>> streams;
        bool closed = false;
        Waiter waiter;
    };
    class Door final : public Listener {
      public:
        explicit Door(std::shared_ptr<Queue> q) : q_(std::move(q)) {}
        ~Door() override { close(); }
        Task<Result<std::unique_ptr<Stream>>> accept() override { return accept(q_); }
        Endpoint local() const override { return {"memory", 1, {}}; }
        void close() override {
            q_->closed = true;
            q_->waiter.wake_later(Wake::kEvent, q_);
        }

      private:
        static Task<Result<std::unique_ptr<Stream>>> accept(std::shared_ptr<Queue> q) {
            while (!q->closed) {
                if (!q->streams.empty()) {
                    auto s = std::move(q->streams.front());
                    q->streams.pop_front();
                    co_return s;
                }
                co_await q->waiter.wait();
            }
            co_return Error{Code::kCancelled, "closed"};
        }
        std::shared_ptr<Queue> q_;
    };
    Loop& loop_;
    std::size_t capacity_;
    std::shared_ptr<Queue> queue_ = std::make_shared<Queue>(loop_);
};

}  // namespace nereid::io
