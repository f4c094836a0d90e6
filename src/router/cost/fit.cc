#include "router/cost/fit.h"

#include <algorithm>
#include <cmath>

namespace nereid::router {
namespace {

// Of scaled parameters: the initial ones weigh next to nothing.
constexpr double kStartVariance = 1e6;
constexpr double kMaxVariance = 1e8;         // wind-up bound
constexpr std::uint64_t kRelearnAfter = 64;  // outliers in a row: the world has changed

LinearFit<3>::Options prefill_options(const PrefillCost& c) {
    return {.initial = {c.fixed_ms, c.per_token_ms, c.per_token_context_ms},
            .low = {0, 0, 0},
            .high = {1e4, 1e2, 1e-1},
            .scale = {1, 1e3, 1e7}};
}
LinearFit<3>::Options decode_options(const DecodeCost& c) {
    return {.initial = {c.fixed_ms, c.per_request_ms, c.per_kv_token_ms},
            .low = {0, 0, 0},
            .high = {1e4, 1e2, 1e-1},
            .scale = {1, 1e2, 1e5}};
}

}  // namespace

template <std::size_t N>
LinearFit<N>::LinearFit(const Options& options) : options_(options), theta_(options.initial) {
    for (std::size_t i = 0; i < N; ++i) {
        raw_[i] = options.initial[i] * options.scale[i];
        p_[i][i] = kStartVariance;
    }
}

template <std::size_t N>
double LinearFit<N>::predict(const Vector& x) const {
    double sum = 0;
    for (std::size_t i = 0; i < N; ++i) sum += theta_[i] * x[i];
    return sum;
}

template <std::size_t N>
bool LinearFit<N>::observe(const Vector& x, double observed_ms) {
    const double predicted = predict(x);
    bool sane = std::isfinite(observed_ms) && observed_ms > 0;
    for (const double v : x) sane = sane && std::isfinite(v) && v >= 0;
    const bool outlier = accepted_ >= options_.warm_up && dropped_in_row_ < kRelearnAfter &&
                         predicted > 0 &&
                         (observed_ms > predicted * options_.outlier_ratio ||
                          observed_ms * options_.outlier_ratio < predicted);
    if (!sane || outlier) {
        ++dropped_;
        // So many in a row are no outliers: what was learnt is forgotten, not unlearnt slowly.
        if (outlier && ++dropped_in_row_ == kRelearnAfter) {
            for (std::size_t i = 0; i < N; ++i) {
                p_[i] = {};
                p_[i][i] = kStartVariance;
            }
        }
        return false;
    }
    if (!(accepted_ >= options_.warm_up && dropped_in_row_ >= kRelearnAfter)) dropped_in_row_ = 0;
    // Relative errors count, so that a long prefill does not drown short ones.
    const double weight = 1.0 / observed_ms;
    Vector z{};
    for (std::size_t i = 0; i < N; ++i) z[i] = x[i] / options_.scale[i] * weight;
    Vector pz{};
    double denominator = options_.forgetting;
    double error = 1.0;
    for (std::size_t i = 0; i < N; ++i) {
        for (std::size_t j = 0; j < N; ++j) pz[i] += p_[i][j] * z[j];
        denominator += z[i] * pz[i];
        error -= z[i] * raw_[i];
    }
    for (std::size_t i = 0; i < N; ++i) {
        raw_[i] += pz[i] / denominator * error;
        // The filter itself is kept inside the bounds, or it would wander where nobody looks.
        raw_[i] = std::clamp(raw_[i], options_.low[i] * options_.scale[i],
                             options_.high[i] * options_.scale[i]);
        theta_[i] = raw_[i] / options_.scale[i];
    }
    for (std::size_t i = 0; i < N; ++i) {
        for (std::size_t j = i; j < N; ++j) {
            const double v = (p_[i][j] - pz[i] * pz[j] / denominator) / options_.forgetting;
            p_[i][j] = v;
            p_[j][i] = v;
        }
    }
    for (std::size_t i = 0; i < N; ++i) {
        if (p_[i][i] <= kMaxVariance) continue;
        const double shrink = std::sqrt(kMaxVariance / p_[i][i]);
        for (std::size_t j = 0; j < N; ++j) {
            p_[i][j] *= shrink;
            p_[j][i] *= shrink;
        }
    }
    ++accepted_;
    const double relative = std::abs(observed_ms - predicted) / observed_ms;
    error_ += (relative - error_) / static_cast<double>(std::min<std::uint64_t>(accepted_, 100));
    if (dropped_in_row_ >= kRelearnAfter && relative < 0.5) dropped_in_row_ = 0;
    return true;
}

template class LinearFit<2>;
template class LinearFit<3>;

CostFit::CostFit(const CostModel& initial)
    : initial_(initial),
      model_(initial),
      prefill_(prefill_options(initial.prefill)),
      decode_(decode_options(initial.decode)),
      encode_({.initial = {initial.encode.fixed_ms, initial.encode.per_patch_ms},
               .low = {0, 0},
               .high = {1e4, 1e2},
               .scale = {1, 1e3}}),
      transfer_({.initial = {initial.transfer.latency_ms,
                             initial.transfer.kv_bytes_per_token / initial.transfer.bytes_per_ms},
                 .low = {0, 1e-9},
                 .high = {1e4, 1e2},
                 .scale = {1, 1e4}}) {}

bool CostFit::observe_prefill(TokenCount uncached, TokenCount cached, double ms) {
    if (uncached == 0) return false;
    const double u = uncached;
    if (!prefill_.observe({1, u, u * (cached + u / 2)}, ms)) return false;
    const auto& p = prefill_.parameters();
    model_.prefill = {.fixed_ms = p[0], .per_token_ms = p[1], .per_token_context_ms = p[2]};
    return true;
}
bool CostFit::observe_decode(double requests, double kv_tokens, double step_ms) {
    if (!(requests > 0) || !decode_.observe({1, requests, kv_tokens}, step_ms)) return false;
    const auto& p = decode_.parameters();
    model_.decode = {.fixed_ms = p[0], .per_request_ms = p[1], .per_kv_token_ms = p[2]};
    return true;
}
bool CostFit::observe_encode(double patches, double ms) {
    const double pairs = initial_.encode.per_patch_pair_ms * patches * patches;  // not fitted
    if (!(patches > 0) || !encode_.observe({1, patches}, ms - pairs)) return false;
    const auto& p = encode_.parameters();
    model_.encode.fixed_ms = p[0];
    model_.encode.per_patch_ms = p[1];
    return true;
}
bool CostFit::observe_transfer(TokenCount tokens, double ms) {
    if (tokens == 0 || !transfer_.observe({1, static_cast<double>(tokens)}, ms)) return false;
    const auto& p = transfer_.parameters();
    model_.transfer.latency_ms = p[0];
    model_.transfer.bytes_per_ms = model_.transfer.kv_bytes_per_token / p[1];
    return true;
}
std::uint64_t CostFit::dropped() const {
    return prefill_.dropped() + decode_.dropped() + encode_.dropped() + transfer_.dropped();
}

}  // namespace nereid::router
