#include "base/prng.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace nereid {
namespace {

__extension__ using Wide = unsigned __int128;

// splitmix64 (Steele, Lea, Flood 2014; Vigna's public-domain reference): advances `state`, returns
// a value.
std::uint64_t splitmix64(std::uint64_t& state) {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// The top 53 bits as a fraction: every result is a multiple of 2^-53.
double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace

Prng::Prng(std::uint64_t seed) : s_{} {
    for (auto& word : s_) word = splitmix64(seed);
}

std::uint64_t Prng::next() {
    const std::uint64_t result = std::rotl(s_[1] * 5, 7) * 9;
    const std::uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = std::rotl(s_[3], 45);
    return result;
}

// Lemire, "Fast random integer generation in an interval" (2019): a multiply, and a rejection that
// is rarely taken.
std::uint64_t Prng::below(std::uint64_t n) {
    CHECK(n >= 1);
    Wide product = static_cast<Wide>(next()) * n;
    if (static_cast<std::uint64_t>(product) < n) {
        const std::uint64_t threshold = (0 - n) % n;
        while (static_cast<std::uint64_t>(product) < threshold) {
            product = static_cast<Wide>(next()) * n;
        }
    }
    return static_cast<std::uint64_t>(product >> 64);
}

double Prng::uniform() { return to_unit(next()); }

// 1 - u is in (0, 1], so the logarithm is finite.
double Prng::exponential(double mean) { return -mean * std::log(1.0 - uniform()); }

Prng Prng::fork() { return Prng(next()); }

// Two rounds of splitmix64's finaliser over a seed-dependent start: equal seeds or equal positions
// alone give unrelated values.
std::uint64_t keyed_u64(std::uint64_t seed, std::uint64_t position) {
    std::uint64_t state = seed;
    std::uint64_t mixed = splitmix64(state) ^ (position * 0xd1342543de82ef95u);
    return splitmix64(mixed);
}

double keyed_uniform(std::uint64_t seed, std::uint64_t position) {
    return to_unit(keyed_u64(seed, position));
}

}  // namespace nereid
