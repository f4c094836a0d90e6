#include "io/memory_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace nereid::io {

namespace {

Error cancelled() { return {Code::kCancelled, "the stream was closed on our side"}; }
Error was_reset() { return {Code::kIo, "the connection was reset by the peer"}; }

class PipeStream final : public Stream {
  public:
    explicit PipeStream(std::shared_ptr<PipeEnd> e) : e_(std::move(e)) {}
    ~PipeStream() override { e_->close(); }
    Task<Result<std::size_t>> read(std::span<char> into, TimePoint deadline) override {
        return PipeEnd::read(e_, into, deadline);
    }
    Task<Result<void>> write(std::span<const std::string_view> pieces,
                             TimePoint deadline) override {
        return PipeEnd::write(e_, pieces, deadline);
    }
    Task<Result<void>> wait_hangup() override { return PipeEnd::wait_hangup(e_); }
    void shutdown_write() override { e_->shutdown_write(); }
    void close() override { e_->close(); }
    std::string peer() const override { return e_->peer(); }

  private:
    std::shared_ptr<PipeEnd> e_;
};

class DirectWire final : public PipeWire {
  public:
    void join(const std::shared_ptr<PipeEnd>& first, const std::shared_ptr<PipeEnd>& second) {
        ends_ = {first, second};
    }
    void carry(bool from_first, PipeMessage message) override {
        if (const auto to = ends_[from_first ? 1 : 0].lock()) to->receive(std::move(message));
    }
    std::size_t piece_limit() override { return std::numeric_limits<std::size_t>::max(); }

  private:
    std::array<std::weak_ptr<PipeEnd>, 2> ends_;
};

}  // namespace

PipeEnd::PipeEnd(Loop& loop, std::shared_ptr<PipeWire> wire, bool first, std::size_t window,
                 std::string peer)
    : wire_(std::move(wire)),
      first_(first),
      window_(window),
      peer_(std::move(peer)),
      reader_(loop),
      writer_(loop),
      hangup_(loop) {
    CHECK(window_ > 0);
}

void PipeEnd::wake_all(Wake why) {
    reader_.wake_later(why, shared_from_this());
    writer_.wake_later(why, shared_from_this());
    hangup_.wake_later(why, shared_from_this());
}

void PipeEnd::receive(PipeMessage message) {
    switch (message.kind) {
        case PipeMessage::Kind::kTaken:
            outstanding_ -= message.taken;
            writer_.wake_later(Wake::kEvent, shared_from_this());
            return;
        case PipeMessage::Kind::kReset:
            reset_ = true;
            wake_all(Wake::kEvent);
            return;
        case PipeMessage::Kind::kFin:
            fin_received_ = true;
            reader_.wake_later(Wake::kEvent, shared_from_this());
            hangup_.wake_later(Wake::kEvent, shared_from_this());
            return;
        case PipeMessage::Kind::kData:
            if (closed_) {
                wire_->carry(first_, {.kind = PipeMessage::Kind::kReset});
                return;
            }
            buffer_ += message.bytes;
            reader_.wake_later(Wake::kEvent, shared_from_this());
            return;
    }
}

std::size_t PipeEnd::take(std::span<char> into) {
    const std::size_t n = std::min({into.size(), buffer_.size() - read_at_, wire_->piece_limit()});
    std::memcpy(into.data(), buffer_.data() + read_at_, n);
    read_at_ += n;
    if (read_at_ == buffer_.size() || read_at_ > window_) {
        buffer_.erase(0, read_at_);
        read_at_ = 0;
    }
    wire_->carry(first_, {.kind = PipeMessage::Kind::kTaken, .bytes = {}, .taken = n});
    return n;
}

Task<Result<std::size_t>> PipeEnd::read(std::shared_ptr<PipeEnd> e, std::span<char> into,
                                        TimePoint deadline) {
    CHECK(!into.empty());
    CHECK_MSG(!e->reader_.waiting(), "two reads on one stream");
    for (;;) {
        if (e->closed_) co_return cancelled();
        if (e->reset_) co_return was_reset();
        if (e->read_at_ < e->buffer_.size()) co_return e->take(into);
        if (e->fin_received_) co_return std::size_t{0};
        switch (co_await e->reader_.wait(deadline)) {
            case Wake::kEvent:
                break;
            case Wake::kCancelled:
                co_return cancelled();
            case Wake::kDeadline:
                co_return Error{Code::kDeadlineExceeded,
                                "the peer sent nothing before the deadline"};
        }
    }
}

Task<Result<void>> PipeEnd::write_piece(std::string_view piece, TimePoint deadline) {
    while (!piece.empty()) {
        if (closed_) co_return cancelled();
        if (reset_) co_return was_reset();
        if (outstanding_ < window_) {
            const std::size_t n =
                std::min({piece.size(), window_ - outstanding_, wire_->piece_limit()});
            outstanding_ += n;
            wire_->carry(first_, {.kind = PipeMessage::Kind::kData,
                                  .bytes = std::string(piece.substr(0, n))});
            piece.remove_prefix(n);
            continue;
        }
        switch (co_await writer_.wait(deadline)) {
            case Wake::kEvent:
                break;
            case Wake::kCancelled:
                co_return cancelled();
            case Wake::kDeadline:
                co_return Error{Code::kDeadlineExceeded,
                                "the peer did not take the data before the deadline"};
        }
    }
    co_return Result<void>{};
}

Task<Result<void>> PipeEnd::write(std::shared_ptr<PipeEnd> e,
                                  std::span<const std::string_view> pieces, TimePoint deadline) {
    CHECK_MSG(!e->writer_.waiting(), "two writes on one stream");
    if (e->closed_) co_return cancelled();
    if (e->fin_sent_) co_return Error{Code::kIo, "write after shutdown_write"};
    for (const std::string_view piece : pieces)
        CO_TRY_VOID(co_await e->write_piece(piece, deadline));
    co_return Result<void>{};
}

Task<Result<void>> PipeEnd::wait_hangup(std::shared_ptr<PipeEnd> e) {
    while (!e->fin_received_ && !e->reset_) {
        if (e->closed_) co_return cancelled();
        if (co_await e->hangup_.wait() == Wake::kCancelled) co_return cancelled();
    }
    co_return Result<void>{};
}

void PipeEnd::shutdown_write() {
    if (closed_ || fin_sent_) return;
    fin_sent_ = true;
    wire_->carry(first_, {.kind = PipeMessage::Kind::kFin});
}

void PipeEnd::close() {
    if (closed_) return;
    const bool unread = read_at_ < buffer_.size();
    if (unread) {
        wire_->carry(first_, {.kind = PipeMessage::Kind::kReset});
    } else {
        shutdown_write();
    }
    closed_ = true;
    wake_all(Wake::kCancelled);
}

std::unique_ptr<Stream> make_pipe_stream(std::shared_ptr<PipeEnd> end) {
    return std::make_unique<PipeStream>(std::move(end));
}

std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> make_memory_pair(Loop& loop,
                                                                             std::size_t window) {
    auto wire = std::make_shared<DirectWire>();
    auto first = std::make_shared<PipeEnd>(loop, wire, true, window, "memory");
    auto second = std::make_shared<PipeEnd>(loop, wire, false, window, "memory");
    wire->join(first, second);
    return {make_pipe_stream(std::move(first)), make_pipe_stream(std::move(second))};
}

}  // namespace nereid::io
