// Seeded pseudo-random numbers that are the same on every platform and build: no
// std::*_distribution (their results are library-defined), no global state.
//
// Prng is xoshiro256** (Blackman, Vigna 2018) seeded by splitmix64. keyed_u64 / keyed_uniform are
// counter-based: the value depends on (seed, position) alone, so that sampling of a token does not
// depend on who shares the batch or on what was replayed before (DESIGN §4.7).
#pragma once

#include <array>
#include <cstdint>

namespace nereid {

class Prng {
  public:
    explicit Prng(std::uint64_t seed);
    std::uint64_t next();
    std::uint64_t below(std::uint64_t n);  // uniform in [0, n), n >= 1, without modulo bias
    double uniform();                      // [0, 1), 53 bits
    double exponential(double mean);
    bool chance(double p) { return uniform() < p; }
    Prng fork();  // an independent stream

  private:
    std::array<std::uint64_t, 4> s_;
};

std::uint64_t keyed_u64(std::uint64_t seed, std::uint64_t position);
double keyed_uniform(std::uint64_t seed, std::uint64_t position);  // [0, 1)

}  // namespace nereid
