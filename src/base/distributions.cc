#include "base/distributions.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace nereid {

// 1 - uniform() is in (0, 1], so the logarithms below are finite.

double draw_normal(Prng& prng) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - prng.uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * prng.uniform());
}

double draw_log_normal(Prng& prng, double log_mean, double sigma) {
    return std::exp(log_mean + sigma * draw_normal(prng));
}

double draw_gamma(Prng& prng, double shape, double scale) {
    CHECK(shape > 0 && scale > 0);
    double boost = 1;
    if (shape < 1) {  // Gamma(a) = Gamma(a + 1) * U^(1/a)
        boost = std::pow(1.0 - prng.uniform(), 1.0 / shape);
        shape += 1;
    }
    const double d = shape - 1.0 / 3.0;
    const double c = 1.0 / std::sqrt(9.0 * d);
    while (true) {
        const double x = draw_normal(prng);
        const double t = 1.0 + c * x;
        if (t <= 0) continue;
        const double v = t * t * t;
        const double u = 1.0 - prng.uniform();
        if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return boost * d * v * scale;
    }
}

double draw_lomax(Prng& prng, double scale, double alpha) {
    CHECK(scale > 0 && alpha > 0);
    return scale * (std::pow(1.0 - prng.uniform(), -1.0 / alpha) - 1.0);
}

std::uint64_t draw_poisson(Prng& prng, double mean) {
    CHECK(mean >= 0);
    if (mean >= 30) {
        const double x = std::floor(mean + std::sqrt(mean) * draw_normal(prng) + 0.5);
        return x <= 0 ? 0 : static_cast<std::uint64_t>(x);
    }
    const double limit = std::exp(-mean);
    std::uint64_t count = 0;
    for (double product = 1.0 - prng.uniform(); product > limit; product *= 1.0 - prng.uniform()) {
        ++count;
    }
    return count;
}

Zipf::Zipf(std::uint32_t n, double s) {
    CHECK(n >= 1 && s >= 0);
    cumulative_.reserve(n);
    double total = 0;
    for (std::uint32_t k = 0; k < n; ++k) {
        total += std::pow(static_cast<double>(k) + 1.0, -s);
        cumulative_.push_back(total);
    }
    for (double& c : cumulative_) c /= total;
}

std::uint32_t Zipf::draw(Prng& prng) const {
    const auto it = std::ranges::upper_bound(cumulative_, prng.uniform());
    const auto k = static_cast<std::size_t>(it - cumulative_.begin());
    return static_cast<std::uint32_t>(std::min(k, cumulative_.size() - 1));
}

double Zipf::probability(std::uint32_t k) const {
    CHECK(k < cumulative_.size());
    return k == 0 ? cumulative_[0] : cumulative_[k] - cumulative_[k - 1];
}

}  // namespace nereid
