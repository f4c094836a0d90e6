#include "gateway/probe.h"

#include <string>
#include <vector>

namespace nereid::gateway {
namespace {

constexpr std::array<std::string_view, 5> kClasses{"none", "2xx", "4xx", "5xx", "failed"};
constexpr std::array<std::string_view, kDocumentCount> kDocuments{"text", "pdf", "refused"};
constexpr std::array<std::string_view, kRejectedCount> kCauses{"queue", "key", "draining", "auth"};

std::size_t class_of(const RequestRecord& r) {
    const int status = r.status;
    if (r.failed && status >= 200 && status < 400) return 4;
    return status < 200 ? 0 : status < 400 ? 1 : status < 500 ? 2 : 3;
}

ops::Counter& tokens(ops::Registry& registry, std::string_view kind) {
    return registry
        .counter("nereid_gateway_tokens_total",
                 "Tokens of ended requests: prompts (in), of these restored from a cache (cached), "
                 "answers (out).",
                 {{"kind", {"in", "cached", "out"}}})
        .with({kind});
}

}  // namespace

Probe::Probe(ops::Registry& registry)
    : registry_(registry),
      tokens_in_(tokens(registry, "in")),
      tokens_cached_(tokens(registry, "cached")),
      tokens_out_(tokens(registry, "out")),
      disconnects_(registry.counter("nereid_gateway_disconnects_total",
                                    "Requests whose client went away before their end.")),
      slow_clients_(registry.counter("nereid_gateway_slow_clients_total",
                                     "Streams cut because their client did not read.")),
      aborts_(registry.counter(
          "nereid_gateway_aborts_total",
          "Engine requests aborted: the client went away, or a stop string was reached.")),
      keepalives_(registry.counter("nereid_gateway_keepalives_total",
                                   "Comments sent into silent streams.")),
      parse_errors_(registry.counter("nereid_gateway_parse_errors_total",
                                     "Bodies that are no valid request.")),
      parts_not_written_(registry.counter(
          "nereid_gateway_stream_parts_failed_total",
          "Writes of a running response's stream, for other gateways, that failed (and are tried "
          "again).")),
      in_flight_(
          registry.gauge("nereid_gateway_requests_in_flight", "Requests admitted and not ended.")),
      draining_(registry.gauge("nereid_gateway_draining", "1 while the gateway shuts down.")),
      access_lines_dropped_(
          registry.gauge("nereid_gateway_access_lines_dropped",
                         "Access-log lines that could not be written since the start.")),
      first_token_(registry.histogram("nereid_gateway_time_to_first_token_seconds",
                                      "From the request's first byte to the first output.",
                                      ops::request_seconds_buckets())),
      inter_token_(
          registry.histogram("nereid_gateway_inter_token_seconds",
                             "Between two outputs of a request, as they leave the gateway.",
                             ops::token_seconds_buckets())),
      request_(registry.histogram("nereid_gateway_request_seconds",
                                  "Generating requests, from the first byte to the end.",
                                  ops::request_seconds_buckets())) {
    auto& requests = registry.counter(
        "nereid_gateway_requests_total",
        "Requests ended, by route and class of status (none: the client left first; failed: an "
        "error ended a stream that had begun).",
        {"route", "status"});
    for (std::size_t r = 0; r < kRouteCount; ++r) {
        for (std::size_t c = 0; c < kClassCount; ++c)
            requests_[r][c] = &requests.with({to_string(static_cast<Route>(r)), kClasses[c]});
    }
    auto& documents = registry.counter(
        "nereid_gateway_documents_total",
        "Documents in requests: read as text, read as PDF, refused (or replaced by a note).",
        {"result"});
    for (std::size_t d = 0; d < kDocumentCount; ++d)
        documents_[d] = &documents.with({kDocuments[d]});
    auto& rejected = registry.counter(
        "nereid_gateway_rejected_total",
        "Requests turned away: queue bound, the key's own limit, draining, no valid key.",
        {"cause"});
    for (std::size_t c = 0; c < kRejectedCount; ++c) rejected_[c] = &rejected.with({kCauses[c]});
}

void Probe::ended(const RequestRecord& r, TimePoint now) {
    requests_[static_cast<std::size_t>(r.route)][class_of(r)]->add();
    if (r.prompt_tokens != 0) {
        tokens_in_.add(r.prompt_tokens);
        tokens_cached_.add(r.cached_tokens);
        tokens_out_.add(r.completion_tokens);
    }
    if (r.keepalives != 0) keepalives_.add(r.keepalives);
    if (r.end == kEndClientGone) disconnects_.add();
    if (r.first_token != TimePoint{}) {
        first_token_.observe(r.first_token - r.received);
        request_.observe(now - r.received);
    }
}

void Probe::gauges(std::int64_t in_flight, bool draining, std::uint64_t access_lines_dropped) {
    in_flight_.set(static_cast<double>(in_flight));
    draining_.set(draining ? 1 : 0);
    access_lines_dropped_.set(static_cast<double>(access_lines_dropped));
}

void Probe::engine(std::string_view model, std::string_view worker, const pools::WorkerStatus& s) {
    const auto set = [&](std::string_view name, std::string_view help, double value) {
        registry_.gauge(name, help, {"model", "worker"}).with({model, worker}).set(value);
    };
    set("nereid_engine_up", "1 when the engine takes requests.",
        s.state == pools::WorkerState::kReady ? 1 : 0);
    set("nereid_engine_restarts", "Times the engine's process was started again.",
        static_cast<double>(s.restarts));
    set("nereid_engine_in_flight", "Requests submitted and not ended, queued ones included.",
        s.in_flight);
    set("nereid_engine_running", "Sequences with KV in the engine.", s.load.running);
    set("nereid_engine_waiting", "Requests in the engine's queue.", s.load.waiting);
    set("nereid_engine_waiting_uncached_tokens", "Prefill still to do.",
        s.load.waiting_uncached_tokens);
    set("nereid_engine_kv_used_tokens", "Tokens in the KV cache.", s.load.kv_used_tokens);
    set("nereid_engine_kv_total_tokens", "Tokens that the KV cache can hold.",
        s.load.kv_total_tokens);
    set("nereid_engine_prefix_store_bytes", "Bytes of saved prefix blocks.",
        static_cast<double>(s.load.prefix_store_bytes));
    set("nereid_engine_prefix_hit_tokens",
        "Prompt tokens found in the prefix store since the engine's start.",
        static_cast<double>(s.load.prefix_hit_tokens));
    set("nereid_engine_prefix_miss_tokens", "Prompt tokens computed since the engine's start.",
        static_cast<double>(s.load.prefix_miss_tokens));
    set("nereid_engine_preempted", "Sequences preempted since the engine's start.",
        static_cast<double>(s.load.preempted));
    set("nereid_engine_last_step_seconds", "Time of the last step.", to_seconds(s.load.last_step));
    set("nereid_engine_steps", "Steps since the engine's start.", static_cast<double>(s.steps));
}

}  // namespace nereid::gateway
