// StepCost: what the next step will take, learnt online from the steps that were run. Pure.
//
// Two linear models in milliseconds, each fitted by exponentially weighted least squares (a
// forgetting factor per observation) with a weak prior, so that the first predictions are sane:
//   decode   t = a + b * rows + c * (KV tokens read) / 1024
//   prefill  t = a + b * rows + c * rows * (mean context) / 1024^2 * 1024
// Coefficients are clamped to >= 0 when predicting. Cost of observe: a 3x3 solve.
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace nereid::engine::llama {

class LinearFit {
  public:
    // The prior says `prior`, with the weight of `strength` observations per coefficient.
    LinearFit(std::array<double, 3> prior, double strength, double forgetting);
    void observe(const std::array<double, 3>& x, double y);
    double predict(const std::array<double, 3>& x) const;
    const std::array<double, 3>& coefficients() const { return theta_; }

  private:
    void solve();
    std::array<double, 3> prior_;
    double strength_;
    double forgetting_;
    std::array<std::array<double, 3>, 3> gram_{};
    std::array<double, 3> moment_{};
    std::array<double, 3> theta_;
};

class StepCost {
  public:
    StepCost();
    Duration decode(std::uint32_t rows, TokenCount kv_tokens) const;
    Duration prefill(std::uint32_t rows, TokenCount context_before) const;
    void observe_decode(std::uint32_t rows, TokenCount kv_tokens, Duration took);
    void observe_prefill(std::uint32_t rows, TokenCount context_before, Duration took);

  private:
    LinearFit decode_;
    LinearFit prefill_;
};

}  // namespace nereid::engine::llama
