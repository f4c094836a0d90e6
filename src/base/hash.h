// SHA-256 and HMAC-SHA-256 (OpenSSL's), CRC32C, and the constant-time comparison that credentials
// need.
//
// No function here fails: OpenSSL refusing SHA-256 or memory is a CHECK. The free functions may be
// called from any thread; an object belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/bytes.h"

namespace nereid {

Digest256 sha256(std::span<const std::uint8_t> data);
Digest256 hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data);

// SHA-256 of data that comes in pieces (files). Reusable: finish() begins the next message.
class Sha256 {
  public:
    Sha256();
    ~Sha256();
    Sha256(Sha256&&) noexcept;
    Sha256& operator=(Sha256&&) noexcept;
    Sha256& update(std::span<const std::uint8_t> data);
    Digest256 finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// HMAC-SHA-256 (RFC 2104) under one key for many messages: the key's two compressions and OpenSSL's
// look-ups are paid once, a message of 284 bytes then costs about 0.6 us. Reusable: finish() begins
// the next message.
class HmacSha256 {
  public:
    explicit HmacSha256(std::span<const std::uint8_t> key);
    ~HmacSha256();
    HmacSha256(HmacSha256&&) noexcept;
    HmacSha256& operator=(HmacSha256&&) noexcept;
    HmacSha256& update(std::span<const std::uint8_t> data);
    Digest256 finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// CRC-32C (Castagnoli; RFC 3720 B.4): reflected, initial and final value inverted. SSE4.2's
// instruction when the CPU has it. crc32c(b, crc32c(a)) is the checksum of a followed by b.
std::uint32_t crc32c(std::span<const std::uint8_t> data, std::uint32_t seed = 0);
// The same by tables, on any CPU; what crc32c falls back to.
std::uint32_t crc32c_portable(std::span<const std::uint8_t> data, std::uint32_t seed = 0);

// Time depends on the lengths alone. Unequal lengths are unequal.
bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

}  // namespace nereid
