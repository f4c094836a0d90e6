// NodeProbe: a node's numbers as metrics. The runner calls publish() on the node's loop (every
// second); what is registered may be rendered from any thread.
//
// Names: nereid_kv_*. Tokens, bytes, objects; ratios are left to the query.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kv/node/counters.h"
#include "kv/node/hit_curve.h"
#include "kv/tier/tier.h"
#include "ops/metrics.h"

namespace nereid::kv {

class NodeProbe {
  public:
    explicit NodeProbe(ops::Registry& registry);
    // `ssd` may be null. Values that count are expected never to fall.
    void publish(const NodeCounters& counters, const NodeHeld& held, const SsdStats* ssd,
                 const std::vector<HitCurve::Point>& curve);
    // One report of a client.
    void add(const ClientCounts& counts) {
        for (std::size_t i = 0; i < kClientCounts; ++i) clients_[i]->add(counts[i]);
    }
    // Latency of one command inside the node, as the runner measured it.
    void observe_lookup(Duration d) { lookup_seconds_.observe(d); }

  private:
    struct Source {
        std::uint64_t NodeCounters::* field;
        ops::Counter* counter;
    };
    ops::Registry& registry_;
    std::vector<Source> sources_;
    std::array<ops::Counter*, kEvictCauses> evictions_{};
    std::array<ops::Counter*, kClientCounts> clients_{};
    ops::Histogram& lookup_seconds_;
    ops::Gauge& leases_;
    ops::Gauge& pinned_;
    ops::Gauge& reservations_;
    ops::Gauge& append_queue_;
    ops::Gauge& blocks_;
    ops::Family<ops::Gauge>& tier_bytes_;
    ops::Family<ops::Gauge>& tier_capacity_;
    ops::Gauge& write_amplification_;
    ops::Family<ops::Gauge>& curve_;
    ops::Counter& device_corrupt_;
    ops::Counter& device_errors_;
    NodeCounters last_;
    SsdStats last_ssd_;
};

}  // namespace nereid::kv
