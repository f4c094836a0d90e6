#include "engine/llama/prefix_store.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace nereid::engine::llama {

std::uint32_t PrefixStore::match(std::span<const model::BlockKey> chain) const {
    std::uint32_t n = 0;
    while (n < chain.size() && entries_.contains(chain[n])) ++n;
    return n;
}

const std::string* PrefixStore::find(const model::BlockKey& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : it->second.bytes.get();
}

bool PrefixStore::put(std::span<const model::BlockKey> chain, std::uint32_t index,
                      std::string bytes) {
    CHECK(index < chain.size());
    if (entries_.contains(chain[index])) return true;
    const auto shared = std::make_shared<std::string>(std::move(bytes));
    if (!adopt(chain, index, shared)) return false;
    if (on_stored_) on_stored_(chain, index, shared);
    return true;
}

bool PrefixStore::adopt(std::span<const model::BlockKey> chain, std::uint32_t index,
                        std::shared_ptr<const std::string> bytes) {
    CHECK(index < chain.size());
    const auto& key = chain[index];
    if (entries_.contains(key)) return true;
    const model::BlockKey* parent = index == 0 ? nullptr : &chain[index - 1];
    if ((parent != nullptr && !entries_.contains(*parent)) || !make_room(bytes->size(), parent)) {
        ++stats_.refused;
        return false;
    }
    if (parent != nullptr) ++entries_.at(*parent).children;
    bytes_ += bytes->size();
    order_.push_front(key);
    entries_.emplace(key, Entry{.bytes = std::move(bytes),
                                .parent = parent != nullptr ? *parent : model::BlockKey{},
                                .root = parent == nullptr,
                                .order = order_.begin()});
    ++stats_.inserted;
    return true;
}

// Evicts leaves from the old end. `keep` is the parent of what comes in.
bool PrefixStore::make_room(ByteCount need, const model::BlockKey* keep) {
    if (need > capacity_) return false;
    auto at = order_.end();
    while (bytes_ + need > capacity_) {
        if (at == order_.begin()) return false;
        --at;
        const auto it = entries_.find(*at);
        const Entry& e = it->second;
        if (e.children > 0 || e.pins > 0 || (keep != nullptr && *at == *keep)) continue;
        erase(it);
        ++stats_.evicted;
        at = order_.end();  // a parent that became a leaf may be older than where we stand
    }
    return true;
}

void PrefixStore::erase(Map::iterator it) {
    const Entry& e = it->second;
    if (!e.root) {
        const auto parent = entries_.find(e.parent);
        if (parent != entries_.end()) --parent->second.children;
    }
    bytes_ -= e.bytes->size();
    order_.erase(e.order);
    entries_.erase(it);
}

void PrefixStore::touch(std::span<const model::BlockKey> chain) {
    for (std::size_t i = match(chain); i-- > 0;) {  // tail first, so that the head is the younger
        order_.splice(order_.begin(), order_, entries_.at(chain[i]).order);
    }
}

void PrefixStore::drop(const model::BlockKey& key) {
    const auto first = entries_.find(key);
    if (first == entries_.end()) return;
    // Descendants are found through their parents; drops are rare (a bad checksum), so a walk over
    // the list is fine.
    std::vector<model::BlockKey> doomed{key};
    for (std::size_t i = 0; i < doomed.size(); ++i) {
        if (entries_.at(doomed[i]).children == 0) continue;
        for (const auto& k : order_) {
            const Entry& e = entries_.at(k);
            if (!e.root && e.parent == doomed[i]) doomed.push_back(k);
        }
    }
    for (std::size_t i = doomed.size(); i-- > 0;) {
        erase(entries_.find(doomed[i]));
        ++stats_.dropped;
    }
}

std::uint32_t PrefixStore::pin(std::span<const model::BlockKey> chain) {
    const std::uint32_t n = match(chain);
    for (std::uint32_t i = 0; i < n; ++i) ++entries_.at(chain[i]).pins;
    return n;
}

void PrefixStore::unpin(std::span<const model::BlockKey> chain) {
    for (const auto& key : chain) {
        const auto it = entries_.find(key);
        if (it != entries_.end() && it->second.pins > 0) --it->second.pins;
    }
}

}  // namespace nereid::engine::llama
