#include "gateway/address_filter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace nereid::gateway {
namespace {

template <std::size_t N>
struct Range {
    std::array<std::uint8_t, N> prefix;
    int bits;
};

constexpr Range<4> kPrivate4[] = {
    {{0, 0, 0, 0}, 8},       {{10, 0, 0, 0}, 8},     {{100, 64, 0, 0}, 10},
    {{127, 0, 0, 0}, 8},     {{169, 254, 0, 0}, 16}, {{172, 16, 0, 0}, 12},
    {{192, 0, 0, 0}, 24},    {{192, 0, 2, 0}, 24},   {{192, 31, 196, 0}, 24},
    {{192, 52, 193, 0}, 24}, {{192, 88, 99, 0}, 24}, {{192, 168, 0, 0}, 16},
    {{192, 175, 48, 0}, 24}, {{198, 18, 0, 0}, 15},  {{198, 51, 100, 0}, 24},
    {{203, 0, 113, 0}, 24},  {{224, 0, 0, 0}, 4},    {{240, 0, 0, 0}, 4},
};
// Inside 2000::/3, outside of which nothing is public.
constexpr Range<16> kPrivate6[] = {
    {{0x20, 0x01, 0x00}, 23},              // 2001::/23: Teredo, benchmarking, ORCHID, ...
    {{0x20, 0x01, 0x0d, 0xb8}, 32},        // documentation
    {{0x3f, 0xff, 0x00}, 20},              // documentation
    {{0x26, 0x20, 0x00, 0x4f, 0x80}, 48},  // AS112
};

template <std::size_t N>
bool inside(std::span<const std::uint8_t, N> address, const Range<N>& range) {
    for (int bit = 0; bit < range.bits; bit += 8) {
        const auto i = static_cast<std::size_t>(bit / 8);
        const int left = std::min(8, range.bits - bit);
        const auto mask = static_cast<std::uint8_t>(0xff << (8 - left));
        if ((address[i] & mask) != (range.prefix[i] & mask)) return false;
    }
    return true;
}

bool is_public4(std::span<const std::uint8_t, 4> a) {
    return std::ranges::none_of(kPrivate4, [&](const auto& r) { return inside<4>(a, r); });
}

bool is_public6(std::span<const std::uint8_t, 16> a) {
    const auto zeros = [&](std::size_t from, std::size_t to) {
        return std::all_of(a.begin() + static_cast<std::ptrdiff_t>(from),
                           a.begin() + static_cast<std::ptrdiff_t>(to),
                           [](std::uint8_t b) { return b == 0; });
    };
    if (zeros(0, 10) && a[10] == 0xff && a[11] == 0xff)  // ::ffff:a.b.c.d
        return is_public4(a.subspan<12, 4>());
    if (a[0] == 0 && a[1] == 0x64 && a[2] == 0xff && a[3] == 0x9b && zeros(4, 12))  // 64:ff9b::/96
        return is_public4(a.subspan<12, 4>());
    if (a[0] == 0x20 && a[1] == 0x02) return is_public4(a.subspan<2, 4>());  // 2002::/16
    if ((a[0] & 0xe0) != 0x20) return false;
    return std::ranges::none_of(kPrivate6, [&](const auto& r) { return inside<16>(a, r); });
}

}  // namespace

bool is_public_address(std::string_view address) {
    if (address.starts_with('[') && address.ends_with(']'))
        address = address.substr(1, address.size() - 2);
    const std::string text(address);
    std::array<std::uint8_t, 4> v4{};
    if (inet_pton(AF_INET, text.c_str(), v4.data()) == 1) return is_public4(v4);
    std::array<std::uint8_t, 16> v6{};
    return inet_pton(AF_INET6, text.c_str(), v6.data()) == 1 && is_public6(v6);
}

}  // namespace nereid::gateway
