// Base64 (RFC 4648 §4): data URLs, embeddings. Pure, about 1 ns per byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nereid {

// With padding.
std::string base64_encode(std::string_view bytes);
// Accepts the standard and the URL-safe alphabet, with or without padding, and skips ASCII white
// space (clients wrap lines). nullopt for any other byte, for data after the padding and for a
// length that no encoder makes.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace nereid
