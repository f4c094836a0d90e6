// Names of KV blocks: a keyed SHA-256 chain over what determines a block's bytes (DESIGN §6).
//
//   ns   = SHA-256("nereid-kv-ns\1" | model_digest | layout_fingerprint | salt_len:u32 | salt |
//   determinism:u8) k[0] = HMAC-SHA-256(ns, "root")[0..16) k[i] = HMAC-SHA-256(ns, k[i-1] | n:u32 |
//   token ids as i32 LE | m:u32 | m images | adapter_len:u32 | adapter)[0..16) image = offset of
//   its first placeholder in the block:u32 | digest
// k[0] names nothing; the first block is k[1].
//
// Only whole blocks have names. The salt is set by the gateway (tenant), never by a client. The
// format is frozen in docs/formats/block-key.md; changing it changes the domain string.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/units.h"

namespace nereid::model {

struct BlockKey {
    std::array<std::uint8_t, 16> bytes{};
    auto operator<=>(const BlockKey&) const = default;
};

struct Namespace {
    Digest256 digest{};
    bool operator==(const Namespace&) const = default;
};

struct NamespaceParts {
    Digest256 model_digest{};        // of the weights file(s)
    Digest256 layout_fingerprint{};  // KvLayout::fingerprint()
    std::string salt;                // tenant
    bool determinism = true;         // false: blocks written by decode are shared too
};
Namespace make_namespace(const NamespaceParts& parts);

struct ImageRef {
    TokenCount position;  // first placeholder token in the prompt
    Digest256 digest;     // of the image's content and size
};

// Keys of all whole blocks of `tokens`: tokens.size() / block_tokens keys. An image belongs to the
// block that holds its first placeholder; images must be sorted by position (CHECK; engine-wire
// refuses others). Precondition: block_tokens >= 1. Cost: one HMAC per block (about 0.7 us for 64
// tokens).
std::vector<BlockKey> block_chain(const Namespace& ns, std::span<const TokenId> tokens,
                                  TokenCount block_tokens, std::span<const ImageRef> images = {},
                                  std::string_view adapter = {});

}  // namespace nereid::model

template <>
struct std::hash<nereid::model::BlockKey> {
    std::size_t operator()(const nereid::model::BlockKey& k) const noexcept {
        std::uint64_t v;
        std::memcpy(&v, k.bytes.data(), sizeof v);
        return static_cast<std::size_t>(v);
    }
};
