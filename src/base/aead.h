// Sealed blobs: bytes that we give away and want back unread and unchanged (reasoning that a client
// keeps for us). AES-256-SIV (RFC 5297; OpenSSL's).
//
// SIV is deterministic: equal plaintext under equal associated data gives equal blobs, which tells
// an observer that much and nothing else, and there is no nonce that two processes with one key
// could use twice. Immutable after construction; any thread. Cost: two passes of AES, about 2 ns a
// byte, and 2 us a call.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace nereid {

class Aead {
  public:
    // The cipher's keys are derived from `secret` (random, 256 bits).
    explicit Aead(const Digest256& secret);

    // 17 bytes more than `plain`. `context` is authenticated and not contained: opening needs the
    // same.
    std::string seal(std::string_view plain, std::string_view context) const;
    // nullopt: not sealed by this key under this context, or changed.
    std::optional<std::string> open(std::string_view sealed, std::string_view context) const;

  private:
    Digest256 mac_key_;
    Digest256 cipher_key_;
};

}  // namespace nereid
