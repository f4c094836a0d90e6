#include "kv/tier/copy_crc.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nereid::kv {
namespace {

#if defined(__x86_64__)

// Three independent streams hide the instruction's latency of three cycles; their checksums are
// joined by shifting one over as many zero bytes as the next is long (Adler's crc32c.c).
constexpr std::size_t kLong = 4096;
constexpr std::size_t kShort = 256;
// From here on stores go around the cache: the reader of the copy is another core or a device, and
// a line that is not read for ownership is a third of the traffic saved.
constexpr std::size_t kStream = 256 << 10;

using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t times(const Matrix& m, std::uint32_t v) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; v != 0; ++i, v >>= 1) sum ^= (v & 1) != 0 ? m[i] : 0;
    return sum;
}
constexpr Matrix squared(const Matrix& m) {
    Matrix out{};
    for (std::size_t i = 0; i < 32; ++i) out[i] = times(m, m[i]);
    return out;
}
// The effect of `bytes` zero bytes (a power of two) on a checksum, by its four bytes.
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr Shift make_shift(std::size_t bytes) {
    Matrix m{};
    m[0] = 0x82f63b78;  // one zero bit
    for (std::size_t i = 1; i < 32; ++i) m[i] = 1U << (i - 1);
    for (std::size_t bits = 1; bits < bytes * 8; bits *= 2) m = squared(m);
    Shift s{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        for (std::uint32_t i = 0; i < 4; ++i) s[i][b] = times(m, b << (8 * i));
    }
    return s;
}
constexpr Shift kLongShift = make_shift(kLong);
constexpr Shift kShortShift = make_shift(kShort);

std::uint32_t shifted(const Shift& s, std::uint64_t crc) {
    return s[0][crc & 0xff] ^ s[1][crc >> 8 & 0xff] ^ s[2][crc >> 16 & 0xff] ^
           s[3][crc >> 24 & 0xff];
}

template <bool kAroundCache>
inline void store(std::uint8_t* to, std::uint64_t word) {
    if constexpr (kAroundCache) {
        _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(word));
    } else {
        std::memcpy(to, &word, sizeof word);
    }
}

template <std::size_t kLength, bool kAroundCache>
__attribute__((target("sse4.2"))) std::uint64_t three_streams(std::uint8_t*& to,
                                                              const std::uint8_t*& from,
                                                              std::size_t& left, std::uint64_t crc,
                                                              const Shift& shift) {
    while (left >= 3 * kLength) {
        std::uint64_t b = 0;
        std::uint64_t c = 0;
        for (std::size_t i = 0; i < kLength; i += 8) {
            std::uint64_t x;
            std::uint64_t y;
            std::uint64_t z;
            std::memcpy(&x, from + i, 8);
            std::memcpy(&y, from + kLength + i, 8);
            std::memcpy(&z, from + 2 * kLength + i, 8);
            crc = _mm_crc32_u64(crc, x);
            b = _mm_crc32_u64(b, y);
            c = _mm_crc32_u64(c, z);
            store<kAroundCache>(to + i, x);
            store<kAroundCache>(to + kLength + i, y);
            store<kAroundCache>(to + 2 * kLength + i, z);
        }
        crc = shifted(shift, crc) ^ b;
        crc = shifted(shift, crc) ^ c;
        from += 3 * kLength;
        to += 3 * kLength;
        left -= 3 * kLength;
    }
    return crc;
}

__attribute__((target("sse4.2"))) std::uint32_t copy_sse42(std::uint8_t* to,
                                                           const std::uint8_t* from,
                                                           std::size_t left, std::uint32_t seed) {
    std::uint64_t crc = ~seed;
    if (left >= kStream && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
        crc = three_streams<kLong, true>(to, from, left, crc, kLongShift);
        _mm_sfence();
    }
    crc = three_streams<kLong, false>(to, from, left, crc, kLongShift);
    crc = three_streams<kShort, false>(to, from, left, crc, kShortShift);
    for (; left >= 8; left -= 8, from += 8, to += 8) {
        std::uint64_t word;
        std::memcpy(&word, from, 8);
        crc = _mm_crc32_u64(crc, word);
        std::memcpy(to, &word, 8);
    }
    auto crc32 = static_cast<std::uint32_t>(crc);
    for (; left > 0; --left, ++from, ++to) {
        const std::uint8_t byte = *from;
        crc32 = _mm_crc32_u8(crc32, byte);
        *to = byte;
    }
    return ~crc32;
}

#endif

}  // namespace

std::uint32_t copy_crc32c(std::span<std::uint8_t> to, std::span<const std::uint8_t> from,
                          std::uint32_t seed) {
    CHECK(to.size() >= from.size());
#if defined(__x86_64__)
    static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
    if (has_sse42) return copy_sse42(to.data(), from.data(), from.size(), seed);
#endif
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return crc32c({to.data(), from.size()}, seed);
}

}  // namespace nereid::kv
