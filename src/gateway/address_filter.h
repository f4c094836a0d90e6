// Which addresses an image may be fetched from: public ones. What a caller names must not reach the
// machine itself, its network, or a cloud's metadata service (SSRF). Pure.
//
// The address that counts is the one a connection was made to, not what a name said a moment before
// (DNS rebinding): see remote_file.
#pragma once

#include <string_view>

namespace nereid::gateway {

// `address` is an IPv4 or IPv6 address in text, the latter maybe in brackets. False for every
// special-purpose range of the IANA registries (RFC 6890 and later), for IPv6 forms that carry such
// an IPv4 address (mapped, NAT64, 6to4), and for what is no address at all.
bool is_public_address(std::string_view address);

}  // namespace nereid::gateway
