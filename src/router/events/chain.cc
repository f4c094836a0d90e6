#include "router/events/chain.h"

#include <cstring>

#include "base/check.h"

namespace nereid::router {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t kRoot = 0x6e65726569642031u;  // "nereid 1"
constexpr std::uint64_t kA = 0xa0761d6478bd642fu;
constexpr std::uint64_t kB = 0xe7037ed1a0b428dbu;

// The 128-bit product folded (wyhash's step, Wang Yi, public domain).
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64u);
}

std::uint64_t absorb(std::uint64_t h, std::string_view bytes) {
    while (bytes.size() >= 16) {
        std::uint64_t a = 0;
        std::uint64_t b = 0;
        std::memcpy(&a, bytes.data(), 8);
        std::memcpy(&b, bytes.data() + 8, 8);
        h = fold(h ^ a ^ kA, b ^ kB);
        bytes.remove_prefix(16);
    }
    std::array<std::uint64_t, 2> tail{};
    std::memcpy(tail.data(), bytes.data(), bytes.size());
    return fold(h ^ tail[0] ^ kA, tail[1] ^ kB ^ bytes.size());
}

}  // namespace

BlockHash chain_root(std::string_view lora) {
    return lora.empty() ? kRoot : absorb(kRoot, lora) | 1;
}

BlockHash chain_step(BlockHash parent, std::span<const TokenId> tokens, std::string_view extra) {
    std::uint64_t h = absorb(
        parent, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(TokenId)});
    if (!extra.empty()) h = absorb(h ^ kB, extra);
    h = fold(h ^ kB, tokens.size() + kA);
    return h == 0 ? 1 : h;
}

std::vector<BlockHash> chain_of(std::span<const TokenId> tokens, TokenCount block_tokens,
                                std::string_view lora, std::string_view salt) {
    std::string extra;
    if (!salt.empty()) {  // msgpack of [salt], as vLLM's events have it
        extra.push_back(static_cast<char>(0x91));
        if (salt.size() < 32) {
            extra.push_back(static_cast<char>(0xa0 | salt.size()));
        } else if (salt.size() < 256) {
            extra.push_back(static_cast<char>(0xd9));
            extra.push_back(static_cast<char>(salt.size()));
        } else {
            extra.push_back(static_cast<char>(0xda));
            extra.push_back(static_cast<char>(salt.size() >> 8u));
            extra.push_back(static_cast<char>(salt.size() & 0xffu));
        }
        extra += salt;
    }
    std::vector<BlockHash> out;
    out.reserve(tokens.size() / block_tokens);
    BlockHash parent = chain_root(lora);
    for (std::size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
        parent = chain_step(parent, tokens.subspan(at, block_tokens),
                            at == 0 ? extra : std::string_view{});
        out.push_back(parent);
    }
    return out;
}

TextChain::TextChain(std::size_t block_bytes) : block_bytes_(block_bytes) {
    CHECK(block_bytes > 0);
}

void TextChain::add(std::string_view text) {
    bytes_ += text.size();
    while (partial_.size() + text.size() >= block_bytes_) {
        const std::size_t take = block_bytes_ - partial_.size();
        partial_.append(text.substr(0, take));
        text.remove_prefix(take);
        const BlockHash parent = blocks_.empty() ? kRoot : blocks_.back();
        blocks_.push_back(fold(absorb(parent, partial_) ^ kB, kA) | 1);
        partial_.clear();
    }
    partial_.append(text);
}

ChainTranslator::ChainTranslator(TokenCount block_tokens, std::uint32_t max_blocks)
    : block_tokens_(block_tokens), max_blocks_(max_blocks), table_(64) {}

std::size_t ChainTranslator::home(EngineHash engine) const {
    return fold(engine ^ kA, kB) & (table_.size() - 1);
}

ChainTranslator::Entry* ChainTranslator::find(EngineHash engine) {
    for (std::size_t i = home(engine);; i = (i + 1) & (table_.size() - 1)) {
        if (table_[i].ours == 0) return nullptr;
        if (table_[i].engine == engine) return &table_[i];
    }
}

bool ChainTranslator::insert(EngineHash engine, BlockHash ours) {
    if (Entry* entry = find(engine)) {
        entry->ours = ours;
        return true;
    }
    if (used_ >= max_blocks_) return false;
    if ((used_ + 1) * 4 > table_.size() * 3) grow();
    std::size_t i = home(engine);
    while (table_[i].ours != 0) i = (i + 1) & (table_.size() - 1);
    table_[i] = {engine, ours};
    ++used_;
    return true;
}

void ChainTranslator::grow() {
    std::vector<Entry> old(table_.size() * 2);
    old.swap(table_);
    for (const Entry& e : old) {
        if (e.ours == 0) continue;
        std::size_t i = home(e.engine);
        while (table_[i].ours != 0) i = (i + 1) & (table_.size() - 1);
        table_[i] = e;
    }
}

// Closes the hole, so that no probe sequence is cut (Knuth 6.4, algorithm R).
void ChainTranslator::erase(Entry* entry) {
    const std::size_t mask = table_.size() - 1;
    auto hole = static_cast<std::size_t>(entry - table_.data());
    for (std::size_t i = (hole + 1) & mask; table_[i].ours != 0; i = (i + 1) & mask) {
        const std::size_t want = home(table_[i].engine);
        if (((i - want) & mask) >= ((i - hole) & mask)) {
            table_[hole] = table_[i];
            hole = i;
        }
    }
    table_[hole] = {};
    --used_;
}

ChainTranslator::Stored ChainTranslator::stored(const BlockStored& event) {
    Stored out;
    const std::size_t n = event.blocks.size();
    if (event.block_size != block_tokens_ || event.tokens.size() != n * block_tokens_) {
        ++mismatched_;
        return out;
    }
    BlockHash parent = chain_root(event.lora);
    if (event.parent) {
        const Entry* entry = find(*event.parent);
        if (entry == nullptr) {
            orphans_ += n;
            return out;
        }
        parent = entry->ours;
        out.parent = parent;
    }
    const std::span<const TokenId> tokens(event.tokens);
    for (std::size_t i = 0; i < n; ++i) {
        parent = chain_step(parent, tokens.subspan(i * block_tokens_, block_tokens_),
                            event.extra.empty() ? std::string_view{} : event.extra[i]);
        if (!insert(event.blocks[i], parent)) {
            refused_ += n - i;
            break;
        }
        out.blocks.push_back(parent);
    }
    return out;
}

std::vector<BlockHash> ChainTranslator::removed(const BlockRemoved& event) {
    std::vector<BlockHash> out;
    for (const EngineHash engine : event.blocks) {
        Entry* entry = find(engine);
        if (entry == nullptr) continue;
        out.push_back(entry->ours);
        erase(entry);
    }
    return out;
}

void ChainTranslator::clear() {
    table_.assign(64, {});
    used_ = 0;
}

}  // namespace nereid::router
