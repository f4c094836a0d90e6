// Random variates from our own Prng: the standard library's distributions differ between
// implementations, these do not (up to the last bit of the C library's log, exp, cos and pow).
//
// Functions are pure but for the generator. Preconditions on parameters are CHECKed. Costs are per
// call.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace nereid {

// Standard normal (Box-Muller, one of the pair is thrown away: no state).
double draw_normal(Prng& prng);
// exp(N(log_mean, sigma)).
double draw_log_normal(Prng& prng, double log_mean, double sigma);
// Mean shape * scale, shape > 0 (Marsaglia, Tsang 2000; about 1.05 rounds, boost for shape < 1).
double draw_gamma(Prng& prng, double shape, double scale);
// Lomax (Pareto II): survival (1 + x / scale)^-alpha, mean scale / (alpha - 1) for alpha > 1.
double draw_lomax(Prng& prng, double scale, double alpha);
// Poisson of mean >= 0: products of uniforms below 30, above it a rounded normal (error under 1 %
// of the standard deviation; exactness is not needed here).
std::uint64_t draw_poisson(Prng& prng, double mean);

// Zipf over 0..n-1 with P(k) proportional to 1 / (k + 1)^s: a table and bisection.
class Zipf {
  public:
    Zipf(std::uint32_t n, double s);  // n >= 1, s >= 0
    std::uint32_t draw(Prng& prng) const;
    double probability(std::uint32_t k) const;

  private:
    std::vector<double> cumulative_;
};

// Fisher-Yates.
template <class T>
void shuffle(std::vector<T>& v, Prng& prng) {
    for (std::size_t i = v.size(); i > 1; --i) {
        std::swap(v[i - 1], v[static_cast<std::size_t>(prng.below(i))]);
    }
}

}  // namespace nereid
