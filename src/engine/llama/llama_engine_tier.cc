// LlamaEngine: prompt blocks that lie beyond this process (block_tier.h). A request whose prefix is
// not here waits outside the queue until the tier has answered; nobody else waits for it.
#include <algorithm>
#include <utility>

#include "engine/llama/llama_engine.h"

namespace nereid::engine::llama {

void LlamaEngine::use_tier(std::unique_ptr<BlockTier> tier) {
    if (store_.capacity() == 0) return;  // blocks could neither be kept nor restored
    tier_ = std::move(tier);
    tier_->open(info_.layout);
    store_.set_on_stored([this](std::span<const model::BlockKey> chain, std::uint32_t index,
                                const BlockBytes& bytes) { save_block(chain, index, bytes); });
}

// Who computes a block has its chain, and chains of one root are of one namespace.
void LlamaEngine::save_block(std::span<const model::BlockKey> chain, std::uint32_t index,
                             const BlockBytes& bytes) {
    for (const auto& [id, s] : sequences_) {
        if (s.chain.empty() || s.chain.front() != chain.front()) continue;
        tier_->save(s.request.kv_namespace, chain[index], index, bytes);
        return;
    }
}

// How many blocks from the start a restore could use, and the store can hold.
std::uint32_t LlamaEngine::wanted_blocks(const Sequence& s) const {
    if (tier_ == nullptr || s.request.prompt_logprobs || s.transfer.has_value()) return 0;
    const auto most = std::min<std::uint64_t>(restorable(s), s.chain.size());
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(most, store_.capacity() / info_.layout.block_bytes));
}

// True when the prefix is here as far as it can be used.
bool LlamaEngine::has_prefix(const Sequence& s, std::uint32_t wanted) const {
    const auto chain = std::span(s.chain).first(wanted);
    if (store_.match(chain) == wanted) return true;
    return std::ranges::any_of(streams_, [&](const Stream& stream) {
        return stream.owner == nullptr && stream.resident.size() >= wanted &&
               std::equal(chain.begin(), chain.end(), stream.resident.begin());
    });
}

// Asks for what is missing. What is here already is pinned, since the rest hangs on it.
void LlamaEngine::start_fetch(Sequence& s) {
    const std::uint32_t wanted = wanted_blocks(s);
    if (wanted == 0 || has_prefix(s, wanted)) return;
    const auto chain = std::span(s.chain).first(wanted);
    const std::uint32_t from = store_.match(chain);
    s.fetching = tier_->fetch({.id = s.request.id,
                               .ns = s.request.kv_namespace,
                               .chain = {chain.begin(), chain.end()},
                               .from = from});
    if (!s.fetching) return;
    ++counters_.fetches;
    store_.pin(chain.first(from));
    fetched_pins_[s.request.id] = {chain.begin(), chain.begin() + from};
}

// Blocks go to the store, where the restore will check them, and stay until the request begins.
void LlamaEngine::adopt_fetched(Sequence& s, BlockTier::Fetched& fetched) {
    auto& pinned = fetched_pins_[s.request.id];
    std::uint32_t index = fetched.from;
    for (auto& bytes : fetched.blocks) {
        const auto chain = std::span(s.chain).first(index + 1);
        if (index >= s.chain.size() || bytes->size() != info_.layout.block_bytes ||
            !store_.adopt(chain, index, std::move(bytes)))
            break;
        store_.pin(chain.subspan(index, 1));
        pinned.push_back(s.chain[index]);
        counters_.fetched_tokens += kBlockTokens;
        ++index;
    }
}

void LlamaEngine::end_fetch(Sequence& s) {
    s.fetching = false;
    if (s.phase != Phase::kFetching) return;
    s.phase = Phase::kQueued;
    queue_.insert(queue_key(s));
}

void LlamaEngine::take_fetched() {
    if (tier_ == nullptr) return;
    bool any = false;
    for (auto& fetched : tier_->take()) {
        const auto it = sequences_.find(fetched.id);
        if (it == sequences_.end() || !it->second.fetching) continue;
        adopt_fetched(it->second, fetched);
        end_fetch(it->second);
        any = true;
    }
    // Others may have waited for the same blocks: they are here now.
    for (auto& [id, s] : sequences_) {
        if (!any || !s.fetching || !has_prefix(s, wanted_blocks(s))) continue;
        tier_->cancel(id);
        const auto chain = std::span(s.chain).first(store_.match(s.chain));
        auto& pinned = fetched_pins_[id];
        store_.pin(chain.subspan(std::min(pinned.size(), chain.size())));
        for (std::size_t i = pinned.size(); i < chain.size(); ++i) pinned.push_back(chain[i]);
        end_fetch(s);
    }
    std::erase_if(fetched_pins_, [this](const auto& entry) {
        const auto it = sequences_.find(entry.first);
        if (it != sequences_.end() && !it->second.begun) return false;
        store_.unpin(entry.second);
        return true;
    });
}

void LlamaEngine::set_waker(std::function<void()> wake) {
    if (tier_ != nullptr) tier_->set_waker(std::move(wake));
}

}  // namespace nereid::engine::llama
