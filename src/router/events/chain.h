// Our own chain of prefix blocks for engines whose block hashes mean nothing outside (vLLM seeds
// them per process): a 64-bit hash over (parent, token ids, extra keys), the same for a request and
// for the events that say what an engine holds; and the translation of one rank's events into it.
//
// It is a routing hint, not an identity: a collision (2^-64 a pair) or a forged one costs a miss.
// Engines of ours name blocks by model::BlockKey and need none of this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "router/events/kv_events.h"

namespace nereid::router {

// The parent of a chain's first block. Never 0.
BlockHash chain_root(std::string_view lora);
// About 0.4 ns a token. Never 0.
BlockHash chain_step(BlockHash parent, std::span<const TokenId> tokens, std::string_view extra);
// Of all whole blocks of a prompt. `salt`: the request's cache_salt, in the first block as vLLM has
// it.
std::vector<BlockHash> chain_of(std::span<const TokenId> tokens, TokenCount block_tokens,
                                std::string_view lora = {}, std::string_view salt = {});

// The same over text, for engines whose tokens are not known here: one block per `block_bytes`
// bytes, the rest left out.
class TextChain {
  public:
    explicit TextChain(std::size_t block_bytes);
    void add(std::string_view text);
    const std::vector<BlockHash>& blocks() const { return blocks_; }
    std::size_t bytes() const { return bytes_; }

  private:
    std::size_t block_bytes_;
    std::string partial_;
    std::size_t bytes_ = 0;
    std::vector<BlockHash> blocks_;
};

// One rank's engine hashes -> our chain. 32 bytes a block at most; bounded.
class ChainTranslator {
  public:
    explicit ChainTranslator(TokenCount block_tokens, std::uint32_t max_blocks = 1u << 20u);

    struct Stored {
        BlockHash parent = 0;  // 0: begins here
        std::vector<BlockHash> blocks;
    };
    // Empty when the parent is unknown, the block size another, the tokens missing, or the table
    // full: counted.
    Stored stored(const BlockStored& event);
    std::vector<BlockHash> removed(const BlockRemoved& event);
    void clear();
    std::size_t size() const { return used_; }
    std::uint64_t orphans() const { return orphans_; }        // R22
    std::uint64_t mismatched() const { return mismatched_; }  // R19
    std::uint64_t refused() const { return refused_; }

  private:
    struct Entry {
        EngineHash engine = 0;
        BlockHash ours = 0;  // 0: free
    };
    std::size_t home(EngineHash engine) const;
    Entry* find(EngineHash engine);
    bool insert(EngineHash engine, BlockHash ours);
    void erase(Entry* entry);
    void grow();

    TokenCount block_tokens_;
    std::size_t max_blocks_;
    std::vector<Entry> table_;  // linear probing, a power of two
    std::size_t used_ = 0;
    std::uint64_t orphans_ = 0, mismatched_ = 0, refused_ = 0;
};

}  // namespace nereid::router
