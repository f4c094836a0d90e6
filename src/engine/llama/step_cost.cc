#include "engine/llama/step_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nereid::engine::llama {
namespace {

constexpr double kForgetting = 0.98;  // the last 50 steps or so
constexpr double kPriorStrength = 0.5;

std::array<double, 3> decode_features(std::uint32_t rows, TokenCount kv_tokens) {
    return {1.0, static_cast<double>(rows), static_cast<double>(kv_tokens) / 1024.0};
}
std::array<double, 3> prefill_features(std::uint32_t rows, TokenCount context_before) {
    const double mean_context =
        static_cast<double>(context_before) + static_cast<double>(rows) / 2.0;
    return {1.0, static_cast<double>(rows), static_cast<double>(rows) * mean_context / 1024.0};
}
Duration from_ms(double ms) { return Duration{static_cast<std::int64_t>(std::max(ms, 0.0) * 1e6)}; }

}  // namespace

LinearFit::LinearFit(std::array<double, 3> prior, double strength, double forgetting)
    : prior_(prior), strength_(strength), forgetting_(forgetting), theta_(prior) {}

void LinearFit::observe(const std::array<double, 3>& x, double y) {
    if (!std::isfinite(y)) return;
    for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 3; ++j) gram_[i][j] = gram_[i][j] * forgetting_ + x[i] * x[j];
        moment_[i] = moment_[i] * forgetting_ + x[i] * y;
    }
    solve();
}

// Ridge towards the prior: (G + s I) theta = m + s prior, by elimination with partial pivoting.
void LinearFit::solve() {
    std::array<std::array<double, 4>, 3> a{};
    for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 3; ++j) a[i][j] = gram_[i][j] + (i == j ? strength_ : 0.0);
        a[i][3] = moment_[i] + strength_ * prior_[i];
    }
    for (std::size_t c = 0; c < 3; ++c) {
        std::size_t pivot = c;
        for (std::size_t r = c + 1; r < 3; ++r) {
            if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
        }
        std::swap(a[c], a[pivot]);
        if (std::abs(a[c][c]) < 1e-12) return;
        for (std::size_t r = c + 1; r < 3; ++r) {
            const double f = a[r][c] / a[c][c];
            for (std::size_t k = c; k < 4; ++k) a[r][k] -= f * a[c][k];
        }
    }
    for (std::size_t i = 3; i-- > 0;) {
        double v = a[i][3];
        for (std::size_t k = i + 1; k < 3; ++k) v -= a[i][k] * theta_[k];
        theta_[i] = v / a[i][i];
    }
}

double LinearFit::predict(const std::array<double, 3>& x) const {
    double y = 0;
    for (std::size_t i = 0; i < 3; ++i) y += std::max(theta_[i], 0.0) * x[i];
    return y;
}

StepCost::StepCost()
    : decode_({6.0, 1.5, 1.0}, kPriorStrength, kForgetting),
      prefill_({5.0, 1.5, 0.3}, kPriorStrength, kForgetting) {}

Duration StepCost::decode(std::uint32_t rows, TokenCount kv_tokens) const {
    return from_ms(decode_.predict(decode_features(rows, kv_tokens)));
}
Duration StepCost::prefill(std::uint32_t rows, TokenCount context_before) const {
    return from_ms(prefill_.predict(prefill_features(rows, context_before)));
}
void StepCost::observe_decode(std::uint32_t rows, TokenCount kv_tokens, Duration took) {
    decode_.observe(decode_features(rows, kv_tokens), to_ms(took));
}
void StepCost::observe_prefill(std::uint32_t rows, TokenCount context_before, Duration took) {
    prefill_.observe(prefill_features(rows, context_before), to_ms(took));
}

}  // namespace nereid::engine::llama
