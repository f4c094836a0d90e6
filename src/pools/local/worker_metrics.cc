#include "pools/local/worker_metrics.h"

#include <array>
#include <utility>

namespace nereid::pools {

namespace {

using Read = std::uint64_t (*)(const Supervisor&);

template <DeathCause cause>
std::uint64_t deaths(const Supervisor& s) {
    return s.counters().deaths[static_cast<std::size_t>(cause)];
}

constexpr std::array<std::pair<DeathCause, Read>, kDeathCauses> kDeaths = {{
    {DeathCause::kExit, deaths<DeathCause::kExit>},
    {DeathCause::kSignal, deaths<DeathCause::kSignal>},
    {DeathCause::kStalled, deaths<DeathCause::kStalled>},
    {DeathCause::kStartTimeout, deaths<DeathCause::kStartTimeout>},
    {DeathCause::kBadMessage, deaths<DeathCause::kBadMessage>},
    {DeathCause::kLinkClosed, deaths<DeathCause::kLinkClosed>},
    {DeathCause::kSpawnFailed, deaths<DeathCause::kSpawnFailed>},
}};

}  // namespace

WorkerMetrics::WorkerMetrics(ops::Registry& registry, const std::string& worker)
    : waiting_(&registry
                    .gauge("nereid_worker_waiting_requests",
                           "Requests held until the engine process takes them.", {"worker"})
                    .with({worker})),
      in_flight_(
          &registry.gauge("nereid_worker_requests", "Requests submitted and not ended.", {"worker"})
               .with({worker})) {
    auto& restarts = registry.counter("nereid_worker_restarts_total",
                                      "Ends of the engine process that were answered by a new one.",
                                      {"worker", "cause"});
    for (const auto& [cause, read] : kDeaths) {
        lines_.push_back({&restarts.with({worker, to_string(cause)}), read});
    }
    const auto add = [&](const char* name, const char* help, Read read) {
        lines_.push_back({&registry.counter(name, help, {"worker"}).with({worker}), read});
    };
    add("nereid_worker_config_failures_total", "Engine processes that can never start.",
        [](const Supervisor& s) { return s.counters().config_failures; });
    add("nereid_worker_requests_readmitted_total",
        "Requests given to the next engine process after the death of one.",
        [](const Supervisor& s) { return s.counters().readmitted; });
    add("nereid_worker_requests_lost_total", "Requests that a dead engine process took along.",
        [](const Supervisor& s) { return s.counters().lost; });
    add("nereid_worker_requests_aborted_total", "Requests whose caller went away.",
        [](const Supervisor& s) { return s.counters().aborted; });
    add("nereid_worker_bad_messages_total", "Messages from an engine process that made no sense.",
        [](const Supervisor& s) { return s.counters().bad_messages; });
    add("nereid_worker_unknown_results_total",
        "Results for requests that the engine process did not have.",
        [](const Supervisor& s) { return s.counters().unknown_ids; });
    add("nereid_worker_pings_total", "Questions to a silent engine process.",
        [](const Supervisor& s) { return s.counters().pings; });
    auto& refused = registry.counter("nereid_worker_requests_refused_total",
                                     "Requests that were not taken.", {"worker", "cause"});
    lines_.push_back({&refused.with({worker, "overloaded"}),
                      [](const Supervisor& s) { return s.counters().refused_overloaded; }});
    lines_.push_back({&refused.with({worker, "unavailable"}),
                      [](const Supervisor& s) { return s.counters().refused_unavailable; }});
    lines_.push_back({&refused.with({worker, "too_large"}),
                      [](const Supervisor& s) { return s.counters().refused_too_large; }});
}

void WorkerMetrics::update(const Supervisor& supervisor) {
    for (Line& line : lines_) {
        const std::uint64_t now = line.read(supervisor);
        if (now != line.seen) line.counter->add(now - std::exchange(line.seen, now));
    }
    waiting_->set(static_cast<double>(supervisor.waiting()));
    in_flight_->set(static_cast<double>(supervisor.status().in_flight));
}

}  // namespace nereid::pools
