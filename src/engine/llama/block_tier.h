// BlockTier: where the engine's prompt blocks are kept beyond its own memory and life: a KV cache
// node (pools/cache/kv_link.h), or a fake in tests.
//
// Nothing here waits: what the engine computed is offered and may be refused, what it would like
// to have is asked for and comes later or not at all. Whatever does not come is computed. The
// engine believes no byte of it: blocks are checked again when they are restored (kv_block.h).
//
// Threads: all calls on the engine's. The tier does its work elsewhere and calls the waker on the
// engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/block_key.h"
#include "model/engine_port.h"

namespace nereid::engine::llama {

using BlockBytes = std::shared_ptr<const std::string>;  // a whole block: llama-kv-block

class BlockTier {
  public:
    struct Fetch {
        RequestId id;
        model::Namespace ns;
        std::vector<model::BlockKey> chain;  // blocks chain[from .. end) are wanted
        std::uint32_t from = 0;
    };
    struct Fetched {
        RequestId id;
        std::uint32_t from = 0;
        std::vector<BlockBytes> blocks;  // chain[from], chain[from + 1], ...: what was there
    };

    virtual ~BlockTier() = default;
    // Once, before anything else.
    virtual void open(const model::KvLayout& layout) = 0;
    // True: take() will have an answer for this id, within the tier's own deadline. False: do not
    // wait. One fetch per id at a time.
    virtual bool fetch(Fetch fetch) = 0;
    // The answer is not wanted any more; none comes.
    virtual void cancel(RequestId id) = 0;
    virtual bool has_fetched() const = 0;
    virtual std::vector<Fetched> take() = 0;
    // chain[index] was computed. Kept, or dropped when the tier's queue is full.
    virtual void save(const model::Namespace& ns, const model::BlockKey& key, std::uint32_t index,
                      BlockBytes bytes) = 0;
    // Called when has_fetched() has become true.
    virtual void set_waker(std::function<void()> wake) = 0;
};

}  // namespace nereid::engine::llama
