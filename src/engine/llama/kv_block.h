// The bytes of KV blocks, and llama.cpp's sequence state around them. Pure. Format:
// docs/formats/llama-kv-block.md.
//
// A block is up to 64 consecutive tokens of one sequence: a 64-byte header with the block's key,
// then for each tensor of the geometry (K of every layer, then V of every layer) the rows of these
// tokens. It names nothing of the cache it came from (stream, number of streams), so it fits any
// context of the same geometry.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/units.h"
#include "model/block_key.h"

namespace nereid::engine::llama {

struct KvTensor {
    std::uint32_t layer = 0;
    bool value = false;           // V, otherwise K
    std::int32_t type = 0;        // ggml_type
    std::uint64_t row_bytes = 0;  // of one token
    bool operator==(const KvTensor&) const = default;
};
struct KvGeometry {
    std::vector<KvTensor>
        tensors;  // K of every layer, then V of every layer: the order of llama.cpp's state
    std::uint32_t state_magic = 0;  // first word of llama.cpp's sequence state
    std::uint32_t streams = 0;

    std::uint64_t token_bytes() const;                   // all rows of one token
    std::uint64_t block_bytes(TokenCount tokens) const;  // header + rows
    std::uint32_t fingerprint() const;                   // CRC32C over the tensors
};

inline constexpr std::size_t kBlockHeaderBytes = 64;

// Appends a block to `out`; `fill` writes the rows of the tensors, one after the other, into the
// span it is given (tokens * token_bytes() bytes).
template <class Fill>
void seal_block(const KvGeometry& geometry, const model::BlockKey& key, TokenCount first_token,
                TokenCount tokens, std::string& out, Fill&& fill);

struct BlockView {
    model::BlockKey key;
    TokenCount first_token = 0;
    TokenCount tokens = 0;
    std::span<const std::uint8_t> rows;
    std::size_t size = 0;  // of the whole block
};
// Reads the block at the start of `bytes` (which may go on behind it). kCorrupt names what is
// wrong: too short, magic, version, geometry, checksum of the header or of the rows. With
// `check_rows` = false the rows' checksum is left out.
Result<BlockView> open_block(const KvGeometry& geometry, std::string_view bytes,
                             bool check_rows = true);

// llama.cpp's sequence state (llama_state_seq_get_data_ext) for tokens 0.. of consecutive blocks.
// Precondition: the blocks follow one another from token 0 (CHECK).
void assemble_state(const KvGeometry& geometry, std::span<const BlockView> blocks,
                    std::string& out);
// The same without the magic, the sequence's number and all rows: what llama.cpp's cache reads
// itself when it takes in a sequence of `tokens` tokens.
std::string state_frame(const KvGeometry& geometry, TokenCount tokens);

// ---------------------------------------------------------------- inline

namespace detail {
void begin_block(const KvGeometry& geometry, const model::BlockKey& key, TokenCount first_token,
                 TokenCount tokens, std::string& out);
void finish_block(std::string& out, std::size_t at);
}  // namespace detail

template <class Fill>
void seal_block(const KvGeometry& geometry, const model::BlockKey& key, TokenCount first_token,
                TokenCount tokens, std::string& out, Fill&& fill) {
    const std::size_t at = out.size();
    detail::begin_block(geometry, key, first_token, tokens, out);
    fill(std::span<std::uint8_t>(
        reinterpret_cast<std::uint8_t*>(out.data()) + at + kBlockHeaderBytes,
        out.size() - at - kBlockHeaderBytes));
    detail::finish_block(out, at);
}

}  // namespace nereid::engine::llama
