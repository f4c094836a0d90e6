#include "gateway/recording.h"

#include <utility>

namespace nereid::gateway {

void Recording::begin(Head head) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    head_ = std::move(head);
    wake();
}

void Recording::append(std::string_view bytes) {
    if (bytes.empty()) return;
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    bytes_ += bytes;
    wake();
}

void Recording::end(bool whole) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    whole_ = whole;
    wake();
}

void Recording::wake() {
    ++version_;
    for (Waiter& w : std::exchange(waiters_, {})) {
        if (w.signal.expired()) continue;
        w.loop->post([signal = std::move(w.signal)] {
            if (const auto alive = signal.lock()) alive->notify();
        });
    }
}

Recording::View Recording::from(std::size_t offset) const {
    const std::lock_guard lock(mutex_);
    return {.head = head_,
            .bytes = offset < bytes_.size() ? bytes_.substr(offset) : std::string(),
            .ended = ended_,
            .whole = whole_,
            .version = version_};
}

io::Task<void> Recording::changed(io::Loop& here, std::uint64_t version) {
    const auto signal = std::make_shared<io::Signal>(here);
    {
        const std::lock_guard lock(mutex_);
        if (version_ != version) co_return;
        waiters_.push_back({&here, signal});
    }
    co_await signal->wait();
}

io::Task<Result<void>> RecordingReply::send(int status, const io::Headers& headers,
                                            std::string_view body) {
    started_ = true;
    recording_->begin({.status = status, .headers = headers, .streamed = false});
    recording_->append(body);
    recording_->end(true);
    co_return Result<void>();
}

io::Task<Result<void>> RecordingReply::start(int status, const io::Headers& headers,
                                             std::string_view first) {
    started_ = true;
    recording_->begin({.status = status, .headers = headers, .streamed = true});
    recording_->append(first);
    co_return Result<void>();
}

io::Task<Result<void>> RecordingReply::chunk(std::string_view bytes) {
    if (cancelled_) co_return err(Code::kCancelled, "the request was cancelled");
    recording_->append(bytes);
    co_return Result<void>();
}

io::Task<Result<void>> RecordingReply::finish(std::string_view last) {
    recording_->append(last);
    recording_->end(true);
    co_return Result<void>();
}

void RecordingReply::on_disconnect(std::move_only_function<void()> fn) {
    if (cancelled_)
        loop_.post(std::move(fn));
    else
        gone_ = std::move(fn);
}

void RecordingReply::cancel() {
    if (std::exchange(cancelled_, true) || !gone_) return;
    loop_.post(std::exchange(gone_, {}));
}

std::string_view FrameSkipper::take(std::string_view frames) {
    while (left_ > 0 && !frames.empty()) {
        const auto end = frames.find("\n\n");
        if (frames.starts_with("event: ")) --left_;
        frames = end == std::string_view::npos ? std::string_view{} : frames.substr(end + 2);
    }
    return frames;
}

}  // namespace nereid::gateway
