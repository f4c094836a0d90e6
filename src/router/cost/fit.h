// Online fit of the linear cost models: recursive least squares with a forgetting factor, and
// bounds on every parameter.
//
// RLS: Haykin, Adaptive Filter Theory, ch. 10; P is kept symmetric, its trace bounded (covariance
// wind-up), and an observation that is not finite, not positive, or more than `outlier_ratio` times
// off after warm-up is dropped and counted (a cold start or a stall must not poison the model:
// R42). Parameters are projected on [low, high]. Cost: O(N²), about 20 ns for N = 3; no allocation.
// Deterministic: plain doubles in a fixed order.
#pragma once

#include <array>
#include <cstdint>

#include "router/cost/model.h"

namespace nereid::router {

template <std::size_t N>
class LinearFit {
  public:
    using Vector = std::array<double, N>;
    struct Options {
        Vector initial{};
        Vector low{};  // parameters stay within [low, high]
        Vector high{};
        Vector scale{};             // typical size of each feature, for conditioning; > 0
        double forgetting = 0.999;  // weight of the past per observation
        double outlier_ratio =
            4.0;  // observed / predicted beyond this (or its inverse) is dropped ...
        std::uint64_t warm_up = 32;  // ... after this many accepted observations
    };
    explicit LinearFit(const Options& options);

    // observed_ms for the features x; false when it was dropped.
    bool observe(const Vector& x, double observed_ms);
    double predict(const Vector& x) const;
    const Vector& parameters() const { return theta_; }
    std::uint64_t accepted() const { return accepted_; }
    std::uint64_t dropped() const { return dropped_; }
    double mean_relative_error() const { return error_; }  // moving, of predictions before update

  private:
    Options options_;
    Vector theta_{};  // bounded, unscaled
    Vector raw_{};    // the filter's own state, scaled
    std::array<std::array<double, N>, N> p_{};
    std::uint64_t accepted_ = 0;
    std::uint64_t dropped_ = 0;
    std::uint64_t dropped_in_row_ = 0;
    double error_ = 0;
};

// The three fits of a pool: feed them measured work, read a CostModel.
class CostFit {
  public:
    explicit CostFit(const CostModel& initial);
    // One prefill: of `uncached` tokens after `cached`; measured time of the computation alone.
    bool observe_prefill(TokenCount uncached, TokenCount cached, double ms);
    // One decode step of a rank (or the maximum of a unit with its heaviest rank's numbers).
    bool observe_decode(double requests, double kv_tokens, double step_ms);
    bool observe_encode(double patches, double ms);
    bool observe_transfer(TokenCount tokens, double ms);
    const CostModel& model() const { return model_; }
    std::uint64_t dropped() const;

  private:
    CostModel initial_;
    CostModel model_;
    LinearFit<3> prefill_;
    LinearFit<3> decode_;
    LinearFit<2> encode_;
    LinearFit<2> transfer_;
};

}  // namespace nereid::router
