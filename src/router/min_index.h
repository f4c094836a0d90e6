// The least of n scores that change one at a time: blocks of 64 with their minima. Set is O(1), or
// one block when the least of it rises; least is O(n / 64 + 64), about 50 ns for 1,000 ranks, so
// that choosing among 8,000 ranks costs under a microsecond (R6).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace nereid::router {

class MinIndex {
  public:
    static constexpr float kClosed = std::numeric_limits<float>::infinity();

    std::size_t size() const { return scores_.size(); }
    void resize(std::size_t n);            // new entries are kClosed
    void set(std::size_t i, float score);  // no NaN
    float get(std::size_t i) const { return scores_[i]; }
    // An entry with the least score, kNone when all are closed. Of equal ones the first at or after
    // salt % n, around the end: random salts spread ties.
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t least(std::uint64_t salt) const { return least(0, scores_.size(), salt); }
    // The same of entries [first, last) alone.
    std::size_t least(std::size_t first, std::size_t last, std::uint64_t salt) const;
    float minimum() const;

  private:
    static constexpr std::size_t kBlock = 64;
    std::vector<float> scores_;
    std::vector<float> minima_;
};

}  // namespace nereid::router
