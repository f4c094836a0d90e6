#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace nereid {
namespace {

enum class Step : std::uint8_t { kValid, kIncomplete, kInvalid };

struct Scan {
    Step step;
    std::size_t length;  // bytes of the character, of the incomplete rest, or of the maximal
                         // invalid subpart
};

// Looks at the character that begins at s[0]; s is not empty. Table 3-7 of the Unicode Standard:
// the second byte's range depends on the first, which rules out overlong forms, surrogates and
// values over U+10FFFF.
Scan scan_one(std::string_view s) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned lead = at(0);
    if (lead < 0x80) return {Step::kValid, 1};
    unsigned low = 0x80;
    unsigned high = 0xbf;
    std::size_t need;
    if (lead >= 0xc2 && lead <= 0xdf) {
        need = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        need = 3;
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        need = 4;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
    } else {
        return {Step::kInvalid, 1};
    }
    for (std::size_t i = 1; i < need; ++i) {
        if (i == s.size()) return {Step::kIncomplete, i};
        if (at(i) < low || at(i) > high) return {Step::kInvalid, i};
        low = 0x80;
        high = 0xbf;
    }
    return {Step::kValid, need};
}

// Length of the run of ASCII that s begins with; 8 bytes a turn, since most text that passes here
// is ASCII.
std::size_t ascii_run(std::string_view s) {
    std::size_t i = 0;
    for (; i + 8 <= s.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, s.data() + i, 8);
        if ((word & 0x8080808080808080u) != 0) break;
    }
    while (i < s.size() && static_cast<unsigned char>(s[i]) < 0x80) ++i;
    return i;
}

}  // namespace

bool is_valid_utf8(std::string_view s) { return valid_utf8_prefix(s) == s.size(); }

std::size_t valid_utf8_prefix(std::string_view s) {
    std::size_t i = 0;
    while (true) {
        i += ascii_run(s.substr(i));
        if (i == s.size()) return i;
        const Scan scan = scan_one(s.substr(i));
        if (scan.step != Step::kValid) return i;
        i += scan.length;
    }
}

std::string replace_invalid_utf8(std::string_view s) {
    std::string out;
    out.reserve(s.size());
    std::size_t i = 0;
    while (true) {
        const std::size_t run = ascii_run(s.substr(i));
        out.append(s, i, run);
        i += run;
        if (i == s.size()) return out;
        const Scan scan = scan_one(s.substr(i));
        if (scan.step == Step::kValid) {
            out.append(s, i, scan.length);
        } else {
            out.append("\xef\xbf\xbd");
        }
        i += scan.length;
    }
}

std::size_t complete_utf8_prefix(std::string_view s) {
    // Only the last three bytes can begin a character that is still incomplete.
    const std::size_t first = s.size() < 3 ? 0 : s.size() - 3;
    for (std::size_t i = first; i < s.size(); ++i) {
        if (scan_one(s.substr(i)).step == Step::kIncomplete) return i;
    }
    return s.size();
}

void append_utf8(std::string& out, std::uint32_t c) {
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xc0 | c >> 6);
        out += static_cast<char>(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        out += static_cast<char>(0xe0 | c >> 12);
        out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
        out += static_cast<char>(0x80 | (c & 0x3f));
    } else {
        out += static_cast<char>(0xf0 | c >> 18);
        out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
        out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
        out += static_cast<char>(0x80 | (c & 0x3f));
    }
}

}  // namespace nereid
