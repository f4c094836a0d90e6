// HttpMetrics: what the HTTP layer counts, on /metrics. Each shard feeds its own counters from its
// own loop, when a request begins and when the HTTP layer answers by itself; so what happens on an
// otherwise silent shard is seen with its next request. Feeding costs nothing when nothing changed.
#pragma once

#include "io/http.h"
#include "ops/metrics.h"

namespace nereid::gateway {

class HttpMetrics {
  public:
    explicit HttpMetrics(ops::Registry& registry);

    class Feed {
      public:
        explicit Feed(HttpMetrics& to) : to_(to) {}
        void publish(const io::HttpCounters& now);

      private:
        HttpMetrics& to_;
        io::HttpCounters told_;
    };

  private:
    ops::Counter& connections_;
    ops::Counter& refused_;
    ops::Counter& bad_requests_;
    ops::Counter& timeouts_;
    ops::Counter& disconnects_;
    ops::Gauge& open_;
};

}  // namespace nereid::gateway
