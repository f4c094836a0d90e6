#include <array>
#include <bit>
#include <cstddef>

#include "base/hash.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace nereid {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // 0x1EDC6F41 bit-reversed
constexpr std::size_t kSlices = 8;

using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// kTables[s][b]: effect of byte b followed by s zero bytes ("slicing by 8", Kounavis and Berry
// 2005).
constexpr Tables make_tables() {
    Tables t{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        std::uint32_t crc = b;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
        t[0][b] = crc;
    }
    for (std::size_t s = 1; s < kSlices; ++s) {
        for (std::size_t b = 0; b < 256; ++b) {
            t[s][b] = (t[s - 1][b] >> 8) ^ t[0][t[s - 1][b] & 0xff];
        }
    }
    return t;
}
constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::uint8_t> data,
                                                             std::uint32_t seed) {
    std::uint64_t crc = ~seed;
    std::size_t i = 0;
    for (; i + 8 <= data.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, data.data() + i, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    auto crc32 = static_cast<std::uint32_t>(crc);
    for (; i < data.size(); ++i) crc32 = _mm_crc32_u8(crc32, data[i]);
    return ~crc32;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::uint8_t> data, std::uint32_t seed) {
    static_assert(std::endian::native == std::endian::little);
    std::uint32_t crc = ~seed;
    std::size_t i = 0;
    for (; i + 8 <= data.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, data.data() + i, 8);
        word ^= crc;
        crc = 0;
        for (std::size_t s = 0; s < kSlices; ++s) {
            crc ^= kTables[kSlices - 1 - s][(word >> (8 * s)) & 0xff];
        }
    }
    for (; i < data.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ data[i]) & 0xff];
    return ~crc;
}

std::uint32_t crc32c(std::span<const std::uint8_t> data, std::uint32_t seed) {
#if defined(__x86_64__)
    static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
    if (has_sse42) return crc32c_sse42(data, seed);
#endif
    return crc32c_portable(data, seed);
}

}  // namespace nereid
