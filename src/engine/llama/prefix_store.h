// PrefixStore: prompt blocks in host memory, by their key. A pure container with a byte cap.
//
// A block is stored under its parent (the block before it in the chain), so what is kept is a
// forest in which every stored block is reachable: a block is evicted only when it has no child
// here (the tail of a prefix goes before its head) and nobody pins it; among these the one not used
// for the longest time goes first. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/units.h"
#include "model/block_key.h"

namespace nereid::engine::llama {

struct PrefixStoreStats {
    std::uint64_t inserted = 0;
    std::uint64_t evicted = 0;
    std::uint64_t refused = 0;  // no room beside what is pinned or needed, or no parent
    std::uint64_t dropped = 0;  // with drop(): corrupt
};

class PrefixStore {
  public:
    explicit PrefixStore(ByteCount capacity) : capacity_(capacity) {}

    // How many blocks of `chain`, counted from its start, are here. Marks nothing as used.
    std::uint32_t match(std::span<const model::BlockKey> chain) const;
    // nullptr when absent. The pointer lives until the next put or drop.
    const std::string* find(const model::BlockKey& key) const;
    bool contains(const model::BlockKey& key) const { return find(key) != nullptr; }

    // Stores block `index` of `chain`. False (and nothing is changed) when its parent is absent or
    // room cannot be made; true without a copy when it is here already.
    bool put(std::span<const model::BlockKey> chain, std::uint32_t index, std::string bytes);
    // The same of bytes that others hold, too; `on_stored` is not called.
    bool adopt(std::span<const model::BlockKey> chain, std::uint32_t index,
               std::shared_ptr<const std::string> bytes);
    // Called by each put that stored something.
    using OnStored = std::function<void(std::span<const model::BlockKey> chain, std::uint32_t index,
                                        const std::shared_ptr<const std::string>& bytes)>;
    void set_on_stored(OnStored on_stored) { on_stored_ = std::move(on_stored); }
    // Marks the blocks of `chain` that are here as just used.
    void touch(std::span<const model::BlockKey> chain);
    // Removes a block and everything that hangs on it, pinned or not.
    void drop(const model::BlockKey& key);

    // Pinned blocks stay. Each pin is undone by one unpin of the same span; absent blocks are
    // passed over by both, so a span must be pinned after it was stored.
    std::uint32_t pin(
        std::span<const model::BlockKey> chain);  // how many, from the start, were there
    void unpin(std::span<const model::BlockKey> chain);

    ByteCount bytes() const { return bytes_; }
    ByteCount capacity() const { return capacity_; }
    std::size_t size() const { return entries_.size(); }
    const PrefixStoreStats& stats() const { return stats_; }

  private:
    struct Entry {
        std::shared_ptr<const std::string> bytes;
        model::BlockKey parent;
        bool root = false;
        std::uint32_t children = 0;
        std::uint32_t pins = 0;
        std::list<model::BlockKey>::iterator order;
    };
    using Map = std::unordered_map<model::BlockKey, Entry>;
    bool make_room(ByteCount need, const model::BlockKey* keep);
    void erase(Map::iterator it);

    ByteCount capacity_;
    OnStored on_stored_;
    ByteCount bytes_ = 0;
    Map entries_;
    std::list<model::BlockKey> order_;  // most recently used first
    PrefixStoreStats stats_;
};

}  // namespace nereid::engine::llama
