// What the shards of one gateway share: counters (relaxed atomics), the log, and the knobs. Knobs
// and keys are immutable snapshots: a reload gives each shard a new one, requests that run keep
// theirs.
#pragma once

#include <memory>
#include <utility>

#include "base/aead.h"

#include "gateway/access_log.h"
#include "gateway/admission.h"
#include "gateway/auth.h"
#include "gateway/gateway.h"
#include "gateway/http_metrics.h"
#include "gateway/job_table.h"
#include "gateway/probe.h"
#include "io/tls.h"
#include "store/records.h"

namespace nereid::gateway {

struct Settings {
    GatewayOptions options;
    std::shared_ptr<const KeyTable> keys;  // null = no authentication
};

struct Core {
    Core(std::int64_t queue_max, ops::Logger& logger, ops::Registry& metrics, State kept)
        : admission(queue_max),
          probe(metrics),
          http(metrics),
          log(logger),
          registry(metrics),
          records(std::move(kept.records)),
          records_shared(kept.shared),
          process_id(std::move(kept.process_id)),
          aead(kept.secret),
          helper(kept.helper) {
        auto& lost = metrics.counter("nereid_log_lines_dropped_total",
                                     "Log lines that were lost, whole or in part.");
        metrics.before_render([&lost, &logger] { lost.add(logger.dropped() - lost.value()); });
    }
    Admission admission;
    Probe probe;
    HttpMetrics http;
    ops::Logger& log;
    ops::Registry& registry;
    AccessLog access_log;
    std::shared_ptr<store::Records> records;  // never null
    bool records_shared;                      // with other gateways
    std::string process_id;                   // tells our records from those of others
    Aead aead;                                // seals reasoning that clients keep
    io::Loop* helper;                         // for long computations; may be null
    JobTable jobs;                            // background responses and repeatable requests
    std::unique_ptr<io::TlsServer> tls;       // null = plain
};

}  // namespace nereid::gateway
