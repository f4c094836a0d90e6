// Inside io: bytes read from a stream and not yet parsed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace nereid::io {

// Grows while a message head needs it, and falls back to a small buffer when it is empty, so that
// an idle connection holds 8 KiB. Only prepare() moves what is in it.
class ReadBuffer {
  public:
    static constexpr std::size_t kSmall = 8 << 10;
    static constexpr std::size_t kLarge = 64 << 10;

    std::string_view unparsed() const { return {data_.get() + begin_, end_ - begin_}; }
    std::size_t size() const { return end_ - begin_; }
    void consume(std::size_t n) { begin_ += n; }
    void commit(std::size_t n) { end_ += n; }

    // Room for a read, never empty; `large` for bodies.
    std::span<char> prepare(bool large) {
        if (begin_ == end_) {
            begin_ = end_ = 0;
            const std::size_t wanted = large ? kLarge : kSmall;
            if (capacity_ != wanted) replace(wanted);
        } else if (capacity_ - end_ < kMinRead) {
            if (capacity_ - size() < kMinRead)
                replace(capacity_ * 2);
            else
                std::memmove(data_.get(), data_.get() + begin_, size());
            end_ = size();
            begin_ = 0;
        }
        return {data_.get() + end_, capacity_ - end_};
    }

  private:
    static constexpr std::size_t kMinRead = 2 << 10;

    void replace(std::size_t capacity) {
        auto other = std::make_unique_for_overwrite<char[]>(capacity);
        if (size() != 0) std::memcpy(other.get(), data_.get() + begin_, size());
        data_ = std::move(other);
        capacity_ = capacity;
    }

    std::unique_ptr<char[]> data_;
    std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace nereid::io
