// The gateway's metrics. Labels hold routes, classes and configured names, never what a client
// invented. All functions may be called from any shard; but for engine() and gauges() they are a
// few relaxed atomic additions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/units.h"
#include "gateway/record.h"
#include "ops/metrics.h"
#include "pools/worker.h"

namespace nereid::gateway {

enum class Document : std::uint8_t { kText, kPdf, kRefused };
inline constexpr std::size_t kDocumentCount = 3;

enum class Rejected : std::uint8_t { kQueue, kKey, kDraining, kAuth };
inline constexpr std::size_t kRejectedCount = 4;

class Probe {
  public:
    explicit Probe(ops::Registry& registry);

    void ended(const RequestRecord& r, TimePoint now);
    void inter_token(Duration gap) { inter_token_.observe(gap); }
    void rejected(Rejected why) { rejected_[static_cast<std::size_t>(why)]->add(); }
    void document(Document result) { documents_[static_cast<std::size_t>(result)]->add(); }
    void parse_error() { parse_errors_.add(); }
    void aborted() { aborts_.add(); }
    void slow_client() { slow_clients_.add(); }
    void part_not_written() { parts_not_written_.add(); }

    // Before the text is rendered.
    void gauges(std::int64_t in_flight, bool draining, std::uint64_t access_lines_dropped);
    void engine(std::string_view model, std::string_view worker, const pools::WorkerStatus& status);

  private:
    static constexpr std::size_t kClassCount = 5;  // none, 2xx, 4xx, 5xx, failed
    ops::Registry& registry_;
    std::array<std::array<ops::Counter*, kClassCount>, kRouteCount> requests_;
    std::array<ops::Counter*, kRejectedCount> rejected_;
    std::array<ops::Counter*, kDocumentCount> documents_;
    ops::Counter& tokens_in_;
    ops::Counter& tokens_cached_;
    ops::Counter& tokens_out_;
    ops::Counter& disconnects_;
    ops::Counter& slow_clients_;
    ops::Counter& aborts_;
    ops::Counter& keepalives_;
    ops::Counter& parse_errors_;
    ops::Counter& parts_not_written_;
    ops::Gauge& in_flight_;
    ops::Gauge& draining_;
    ops::Gauge& access_lines_dropped_;
    ops::Histogram& first_token_;
    ops::Histogram& inter_token_;
    ops::Histogram& request_;
};

}  // namespace nereid::gateway
