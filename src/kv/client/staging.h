// Staging: who has which part of a client's staging region. First fit over whole pages; pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/units.h"

namespace nereid::kv::client {

class Staging {
  public:
    explicit Staging(ByteCount bytes) {
        if (bytes > 0) free_[0] = bytes;
    }
    // Offset of `bytes` (rounded up to 4 KiB), nullopt when no gap is long enough or bytes is 0.
    std::optional<std::uint64_t> take(ByteCount bytes) {
        const ByteCount wanted = (bytes + 4095) / 4096 * 4096;
        if (wanted == 0) return std::nullopt;
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            if (it->second < wanted) continue;
            const auto [at, size] = *it;
            free_.erase(it);
            if (size > wanted) free_[at + wanted] = size - wanted;
            used_[at] = wanted;
            return at;
        }
        return std::nullopt;
    }
    // Nothing happens to an offset that take() has not given.
    void give(std::uint64_t offset) {
        const auto it = used_.find(offset);
        if (it == used_.end()) return;
        auto [at, size] = *it;
        used_.erase(it);
        auto next = free_.lower_bound(at);
        if (next != free_.end() && at + size == next->first) {
            size += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == at) {
                before->second += size;
                return;
            }
        }
        free_[at] = size;
    }
    std::size_t taken() const { return used_.size(); }

  private:
    std::map<std::uint64_t, ByteCount> free_;  // begin -> length, never adjacent
    std::map<std::uint64_t, ByteCount> used_;
};

}  // namespace nereid::kv::client
