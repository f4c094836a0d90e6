// Length buckets: which unit a prompt of a given length belongs to, with borders that follow the
// traffic.
//
// Prompts of alike length in one barrier group keep its ranks' steps alike; the gain over
// unbucketed is the largest single one for prefill (facts/router.md §5.2: step efficiency .64
// against .30; after sgl-model-gateway's `bucket` policy, but in cost instead of characters, onto
// units instead of workers, and by outstanding work instead of dispatched). Borders are quantiles
// of *cost*: each bucket gets the same predicted ms. They move only when some bucket is off by more
// than the hysteresis, and then at once.
//
// Pure state machine; one loop. add O(1), refit O(bins).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace nereid::router {

struct BucketOptions {
    std::uint32_t max_buckets = 8;
    Duration refit_every = 5s;
    double forget = 0.7;  // weight of the past at each refit
    double hysteresis =
        0.15;  // a bucket's cost may be off its fair part by this before borders move
    std::uint64_t min_samples = 64;
};

class Buckets {
  public:
    explicit Buckets(const BucketOptions& options) : options_(options) {}

    // Number of units now; more units than max_buckets share buckets in runs. A change refits.
    void set_units(std::uint32_t units);
    // A prompt of `tokens` was placed at cost `ms`.
    void add(TokenCount tokens, double ms, TimePoint now);
    // Moves the borders if it is time, there are samples, and they are off. True when they moved.
    bool refit(TimePoint now);

    std::uint32_t count() const { return static_cast<std::uint32_t>(borders_.size()) + 1; }
    std::uint32_t bucket_of(TokenCount tokens) const;
    // Units [first, last) of a bucket; at least one; they overlap when units < buckets never.
    struct Range {
        std::uint32_t first = 0;
        std::uint32_t last = 0;
    };
    Range units_of(std::uint32_t bucket) const;
    const std::vector<TokenCount>& borders() const { return borders_; }  // upper, exclusive, rising
    std::uint64_t moves() const { return moves_; }

  private:
    static constexpr std::size_t kBins = 160;  // 8 per doubling, to 2^20 tokens
    static std::size_t bin_of(TokenCount tokens);
    static TokenCount bin_start(std::size_t bin);
    std::vector<TokenCount> fair_borders(std::uint32_t buckets) const;
    double worst_part(const std::vector<TokenCount>& borders) const;

    BucketOptions options_;
    std::uint32_t units_ = 1;
    std::vector<TokenCount> borders_;
    std::array<double, kBins> cost_{};
    std::uint64_t samples_ = 0;
    std::uint64_t moves_ = 0;
    TimePoint next_refit_{};
    bool started_ = false;
};

}  // namespace nereid::router
