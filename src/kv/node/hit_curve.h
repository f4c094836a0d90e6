// HitCurve: the hit ratio that DRAM would have at several sizes, measured while serving, for
// sizing.
//
// Miniature simulation (Waldspurger et al., ATC'17): the policy itself runs at each capacity,
// scaled down by the rate at which keys are sampled (by their hash, so that a key is always or
// never in the sample). It counts block references; blocks behind a hole count too, which
// tail-first eviction makes rare. Memory: some MB, fixed. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/namespace.h"

namespace nereid::kv {

class HitCurve {
  public:
    // `capacities` in blocks, rising, not empty.
    explicit HitCurve(std::vector<std::uint64_t> capacities);
    ~HitCurve();
    HitCurve(HitCurve&&) noexcept;

    // One prompt's blocks, head first. About 5 ns a block that is not sampled.
    void reference(std::span<const ObjectKey> prompt);

    struct Point {
        std::uint64_t blocks = 0;
        double hit_ratio = 0;  // 0 while nothing was sampled
    };
    std::vector<Point> points() const;
    std::uint64_t sampled() const { return sampled_; }
    double rate() const { return rate_; }

  private:
    struct Miniature;
    std::vector<std::unique_ptr<Miniature>> miniatures_;
    double rate_ = 1;
    std::uint64_t threshold_ = 0;
    std::uint64_t sampled_ = 0;
};

}  // namespace nereid::kv
