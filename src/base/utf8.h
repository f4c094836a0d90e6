// UTF-8 at the edges: validation, replacement, and cutting a byte stream at a character boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nereid {

bool is_valid_utf8(std::string_view s);
// Length of the longest prefix that is valid on its own.
std::size_t valid_utf8_prefix(std::string_view s);
// Every maximal invalid subpart becomes U+FFFD (Unicode 15 §3.9, the W3C practice).
std::string replace_invalid_utf8(std::string_view s);
// Length of the longest prefix of `s` that does not end inside an incomplete (but so far valid)
// character. At most 3 bytes are held back. An invalid byte is not held back.
std::size_t complete_utf8_prefix(std::string_view s);
// `c` is a scalar value: at most 0x10ffff and no surrogate.
void append_utf8(std::string& out, std::uint32_t c);

}  // namespace nereid
