#include "gateway/http_metrics.h"

namespace nereid::gateway {

HttpMetrics::HttpMetrics(ops::Registry& registry)
    : connections_(
          registry.counter("nereid_http_connections_total", "Connections that were accepted.")),
      refused_(registry.counter("nereid_http_connections_refused_total",
                                "Connections over the limit, answered 503 and closed.")),
      bad_requests_(
          registry.counter("nereid_http_bad_requests_total",
                           "Requests that the HTTP layer itself answered with 4xx or 5xx.")),
      timeouts_(registry.counter("nereid_http_timeouts_total",
                                 "Clients too slow with a header, a body or reading an answer.")),
      disconnects_(registry.counter("nereid_http_disconnects_total",
                                    "Clients that went away before their answer was complete.")),
      open_(registry.gauge("nereid_http_connections_open", "Connections now.")) {}

void HttpMetrics::Feed::publish(const io::HttpCounters& now) {
    const auto add = [](ops::Counter& to, std::uint64_t before, std::uint64_t after) {
        if (after != before) to.add(after - before);
    };
    add(to_.connections_, told_.connections, now.connections);
    add(to_.refused_, told_.refused, now.refused);
    add(to_.bad_requests_, told_.bad_requests, now.bad_requests);
    add(to_.timeouts_, told_.timeouts, now.timeouts);
    add(to_.disconnects_, told_.disconnects, now.disconnects);
    if (now.open != told_.open)
        to_.open_.add(static_cast<double>(now.open) - static_cast<double>(told_.open));
    told_ = now;
}

}  // namespace nereid::gateway
