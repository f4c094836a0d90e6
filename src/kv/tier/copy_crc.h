// Copy and CRC-32C in one pass over memory: what enters or leaves a cache is read once.
//
// From a cold source a copy is bound by memory, and the checksum hides behind it. Uses SSE4.2 and
// carry-less multiplication when the CPU has them. Any thread. The checksum is base's crc32c.
#pragma once

#include <cstdint>
#include <span>

namespace nereid::kv {

// Copies from.size() bytes to `to` (as long or longer; no overlap) and returns their CRC-32C. Each
// source byte is loaded once: what is checksummed is what was stored, even while another process
// writes the source.
std::uint32_t copy_crc32c(std::span<std::uint8_t> to, std::span<const std::uint8_t> from,
                          std::uint32_t seed = 0);

}  // namespace nereid::kv
