#include "base/base64.h"

#include <array>
#include <cstdint>

namespace nereid {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kBad = 0xff;
constexpr std::uint8_t kSkip = 0xfe;

constexpr std::array<std::uint8_t, 256> kValues = [] {
    std::array<std::uint8_t, 256> values{};
    values.fill(kBad);
    for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
        values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
    }
    values[static_cast<unsigned char>('-')] = 62;
    values[static_cast<unsigned char>('_')] = 63;
    for (const char c : {' ', '\t', '\r', '\n'}) values[static_cast<unsigned char>(c)] = kSkip;
    return values;
}();

}  // namespace

std::string base64_encode(std::string_view bytes) {
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t count = bytes.size() - i < 3 ? bytes.size() - i : 3;
        std::uint32_t word = 0;
        for (std::size_t k = 0; k < 3; ++k) {
            word = word << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
        }
        for (std::size_t k = 0; k < 4; ++k) {
            out.push_back(k <= count ? kAlphabet[word >> (18 - 6 * k) & 63u] : '=');
        }
    }
    return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
    std::string out;
    out.reserve(text.size() / 4 * 3 + 3);
    std::uint32_t word = 0;
    std::size_t digits = 0;
    std::size_t padding = 0;
    for (const char c : text) {
        if (c == '=') {
            ++padding;
            continue;
        }
        const std::uint8_t value = kValues[static_cast<unsigned char>(c)];
        if (value == kSkip) continue;
        if (value == kBad || padding != 0) return std::nullopt;
        word = word << 6 | value;
        if (++digits % 4 == 0) {
            out.push_back(static_cast<char>(word >> 16 & 0xffu));
            out.push_back(static_cast<char>(word >> 8 & 0xffu));
            out.push_back(static_cast<char>(word & 0xffu));
        }
    }
    const std::size_t rest = digits % 4;
    if (rest == 1 || (padding != 0 && (rest == 0 || rest + padding != 4))) return std::nullopt;
    if (rest == 2) out.push_back(static_cast<char>(word >> 4 & 0xffu));
    if (rest == 3) {
        out.push_back(static_cast<char>(word >> 10 & 0xffu));
        out.push_back(static_cast<char>(word >> 2 & 0xffu));
    }
    return out;
}

}  // namespace nereid
