// What leaves DRAM first: S3-FIFO (Yang et al., SOSP'23) over slot numbers.
//
// New objects enter a small queue (a tenth); those hit there go on to the main queue, the others
// leave early, and if they come back soon (their name is still remembered) they enter the main
// queue at once. The main queue is a FIFO with up to three second chances. On both Mooncake traces
// (replay_test.cc, facts/kv.md §4.1) it is the best below 10 % of the working set and within 4
// points of LRU above; a hit costs one saturating increment.
//
// Order inside a prefix: callers insert and touch the tail before the head, so that of equals the
// tail goes first.
//
// Pure. Several queues (per tenant and size) share one PolicyNodes, since a slot is in one of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace nereid::kv {

inline constexpr std::uint32_t kNobody = 0xffffffff;

struct PolicyNodes {
    struct Node {
        std::uint32_t before = kNobody;  // entered earlier
        std::uint32_t after = kNobody;
        std::uint8_t queue = 0;  // 0 none, 1 small, 2 main
        std::uint8_t uses = 0;   // 0..3
    };
    explicit PolicyNodes(std::size_t slots) : nodes(slots) {}
    std::vector<Node> nodes;
};

// Names that left not long ago: membership within the last `window` insertions. Fixed-size entries,
// grows with the window.
class GhostNames {
  public:
    void insert(std::uint64_t name, std::uint32_t window);
    // Was it inserted within the last `window` insertions? Forgets it.
    bool take(std::uint64_t name, std::uint32_t window);

  private:
    struct Entry {
        std::uint64_t name = 0;
        std::uint32_t at = 0;
        bool used = false;
    };
    std::array<std::span<Entry>, 2> buckets(std::uint64_t name);
    Entry& place_for(std::uint64_t name, std::uint32_t window);
    void grow(std::uint32_t window);
    std::vector<Entry> entries_;
    std::uint32_t clock_ = 0;
};

class S3Fifo {
  public:
    explicit S3Fifo(PolicyNodes& nodes) : nodes_(&nodes.nodes) {}

    void insert(std::uint32_t id, std::uint64_t name);  // id is in no queue
    void touch(std::uint32_t id);
    void remove(std::uint32_t id);  // not by choice: not remembered
    // The next to go among those for which `may_go` holds, or nullopt. It stays queued until
    // evict() or remove(). Amortised O(1): a call meets at most kHeldBack that may not go in each
    // queue, and begins behind them the next time; so it may say nullopt though one is further on.
    static constexpr std::uint32_t kHeldBack = 512;
    std::optional<std::uint32_t> victim(const std::function<bool(std::uint32_t)>& may_go);
    void evict(std::uint32_t id, std::uint64_t name);  // remembers it

    std::uint32_t size() const { return small_.count + main_.count; }

  private:
    struct Queue {
        std::uint32_t oldest = kNobody;
        std::uint32_t newest = kNobody;
        std::uint32_t count = 0;
    };
    void push(Queue& q, std::uint8_t number, std::uint32_t id);
    void unlink(std::uint32_t id);
    std::uint32_t ghost_window() const;
    std::optional<std::uint32_t> from_small(const std::function<bool(std::uint32_t)>& may_go);
    std::optional<std::uint32_t> from_main(const std::function<bool(std::uint32_t)>& may_go);

    std::vector<PolicyNodes::Node>* nodes_;
    Queue small_;
    Queue main_;
    GhostNames ghosts_;
};

}  // namespace nereid::kv
