// Inside io: pieces of HTTP/1.1 text that server and client share. No Boost here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/units.h"

namespace nereid::io {

// "OK" for 200; "Unknown" for a status without a registered phrase.
std::string_view http_reason(int status);
// RFC 9110 §5.6.7, 29 characters: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(WallTime at);
// ASCII, no locale.
bool iequals(std::string_view a, std::string_view b);
// "name: value\r\n"; control characters, which would split the message, become spaces.
void append_header(std::string& out, std::string_view name, std::string_view value);
void append_decimal(std::string& out, std::uint64_t value);
void append_hex(std::string& out, std::uint64_t value);
// Is `token` in a comma-separated list such as the value of Connection?
bool list_has_token(std::string_view list, std::string_view token);

}  // namespace nereid::io
