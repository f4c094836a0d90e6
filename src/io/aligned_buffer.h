// AlignedBuffer: memory whose begin and length suit direct I/O (multiples of 4 KiB). Not zeroed.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>

#include "base/check.h"

namespace nereid::io {

inline constexpr std::size_t kDirectAlignment = 4096;

class AlignedBuffer {
  public:
    AlignedBuffer() = default;
    // `bytes` is rounded up to a multiple of kDirectAlignment.
    explicit AlignedBuffer(std::size_t bytes)
        : size_((bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment),
          at_(static_cast<char*>(std::aligned_alloc(kDirectAlignment, size_))) {
        CHECK_MSG(at_ != nullptr || size_ == 0, "out of memory");
    }
    char* data() { return at_.get(); }
    const char* data() const { return at_.get(); }
    std::size_t size() const { return size_; }
    std::span<char> span() { return {at_.get(), size_}; }
    std::span<char> first(std::size_t n) { return span().first(n); }

  private:
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    std::size_t size_ = 0;
    std::unique_ptr<char, Free> at_;
};

}  // namespace nereid::io
