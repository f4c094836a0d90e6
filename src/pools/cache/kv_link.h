// KvLink: an engine's prompt blocks in a KV cache node (libnereid_kv's C ABI, kv-wire). It is the
// BlockTier of the embedded engine: saves behind its back, fetches beside its steps.
//
// The node's client blocks and copies megabytes, so it has a thread of its own. The engine's thread
// only puts into bounded queues and takes what has come. Fetches go before saves. A fetch that has
// no answer by its deadline is answered with nothing: the engine computes. A node that is gone,
// slow or broken is left alone for a while (1 s, doubling to 30 s), in which nothing is asked and
// what would be saved is dropped.
//
// Threads: as BlockTier says: all calls on the engine's loop. Memory: what waits to be saved shares
// its bytes with the engine's store; at most `queue_bytes`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/llama/block_tier.h"
#include "io/loop.h"

namespace nereid::pools {

struct KvLinkOptions {
    std::string socket;  // of the node
    std::string name = "nereid worker";
    Duration fetch_deadline = 2s;
    Duration answer_deadline = 2s;  // of a node to a command that reads nothing
    Duration retry = 1s;            // after the first trouble
    Duration retry_max = 30s;
    ByteCount queue_bytes = 128 << 20;
    ByteCount staging_bytes = 32 << 20;
    Duration flush = 1s;  // at the end: what waits is still saved, so long
};

struct KvLinkCounters {
    std::uint64_t saved_blocks = 0;
    std::uint64_t save_dropped = 0;  // queue full, or no node
    std::uint64_t save_failed = 0;   // the node had no room or refused
    std::uint64_t fetched_blocks = 0;
    std::uint64_t fetch_timeouts = 0;
    std::uint64_t fetch_failed = 0;  // promised, and gone or damaged on arrival
    std::uint64_t skipped = 0;       // fetches not asked: no node
    std::uint64_t troubles = 0;      // times that the node was given up for a while
    bool operator==(const KvLinkCounters&) const = default;
};

class KvLink final : public engine::llama::BlockTier {
  public:
    // Connects when first needed. `loop` is the engine's and outlives it.
    KvLink(io::Loop& loop, KvLinkOptions options);
    ~KvLink() override;

    void open(const model::KvLayout& layout) override;
    bool fetch(Fetch fetch) override;
    void cancel(RequestId id) override;
    bool has_fetched() const override;
    std::vector<Fetched> take() override;
    void save(const model::Namespace& ns, const model::BlockKey& key, std::uint32_t index,
              engine::llama::BlockBytes bytes) override;
    void set_waker(std::function<void()> wake) override;

    KvLinkCounters counters() const;
    // Nothing waits and nothing is under way.
    bool idle() const;

  private:
    struct Front;  // the engine's thread
    class Back;    // the link's
    Duration fetch_deadline_;
    std::shared_ptr<Front> front_;
    std::unique_ptr<Back> back_;
};

}  // namespace nereid::pools
