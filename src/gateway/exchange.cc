#include "gateway/exchange.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "dialect/messages/messages.h"
#include "dialect/openai_error.h"
#include "gateway/rate_limits.h"
#include "ops/trace.h"

namespace nereid::gateway {
namespace {

constexpr std::string_view kApiVersion = "2020-10-01";  // what OpenAI's own servers say
constexpr std::string_view kJson = "application/json";

std::int64_t ceil_seconds(Duration d) {
    return std::max<std::int64_t>(1, (d + 1s - Duration{1}) / 1s);
}

// The official SDKs obey x-should-retry first, then retry-after-ms, then retry-after. They repeat
// 409, 429 and 5xx unless they are told not to. `spent`: output was made that would be made again.
void add_retry_headers(io::Headers& headers, const Error& error, int status, Duration retry_after,
                       bool spent) {
    if (status < 500 && status != 429 && status != 409) return;
    const bool retry = code_info(error.code).retryable && !spent;
    headers.add("x-should-retry", retry ? "true" : "false");
    if (!retry || (status != 429 && status != 503 && status != 529)) return;
    headers.add("retry-after", fmt::to_string(ceil_seconds(retry_after)));
    headers.add("retry-after-ms", fmt::to_string(retry_after / 1ms));
}

// Asked every few seconds by machines: counted in the metrics, not logged.
bool is_probe(Route route) {
    return route == Route::kHealth || route == Route::kReady || route == Route::kMetrics;
}

}  // namespace

Exchange::Exchange(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
                   io::HttpRequest& http, io::HttpReply& reply, std::string fallback_id)
    : core_(core), loop_(loop), settings_(std::move(settings)), http_(http), reply_(reply) {
    const auto offered = sane_request_id(http_.headers.get("x-request-id"));
    record.id = offered.empty() ? std::move(fallback_id) : std::string(offered);
    record.received = http_.received;
    record.peer = http_.peer;
    if (const auto parent = http_.headers.get("traceparent"); !parent.empty()) {
        if (const auto context = ops::parse_traceparent(parent))
            record.trace_id = context->trace_id_hex();
    }
}

Exchange::~Exchange() {
    if (record.end.empty()) record.end = record.status == 0 ? "aborted" : "ok";
    const TimePoint now = loop_.now();
    core_.probe.ended(record, now);
    if (core_.access_log.enabled() && !is_probe(record.route))
        core_.access_log.write(access_line(record, now, loop_.wall_now()));
}

bool Exchange::authenticate() {
    if (adopted_ || !settings_->keys) return true;
    key_ = settings_->keys->find(presented_key(http_.headers));
    if (key_ == nullptr) return false;
    record.key = key_->name;
    return true;
}

void Exchange::adopt_key(const ApiKey* key) {
    key_ = key;
    adopted_ = true;
    if (key != nullptr) record.key = key->name;
}

Result<void> Exchange::admit() {
    TRY(ticket_, core_.admission.enter(key_));
    return {};
}

bool Exchange::speaks_messages() const {
    return gateway::speaks_messages(record.route, http_.path,
                                    !http_.headers.get("anthropic-version").empty());
}

io::Headers Exchange::headers(std::string_view content_type) const {
    io::Headers h;
    h.add("content-type", content_type);
    h.add("x-request-id", record.id);
    if (speaks_messages()) {
        h.add("request-id", record.id);
    } else {
        h.add("openai-version", kApiVersion);
        h.add("openai-processing-ms", fmt::to_string((loop_.now() - record.received) / 1ms));
    }
    if (key_ != nullptr && key_->max_concurrency > 0) {
        const auto used = key_->in_flight->load(std::memory_order_relaxed);
        const RateLimit limit{
            .what = "requests",
            .limit = key_->max_concurrency,
            .remaining = std::max<std::int64_t>(0, key_->max_concurrency - used),
            .reset = used < key_->max_concurrency ? Duration{0} : options().retry_after};
        add_rate_limits(h, std::span(&limit, 1), speaks_messages(), loop_.wall_now());
    }
    if (core_.admission.draining()) h.add("connection", "close");
    return h;
}

io::Task<void> Exchange::send(int status, io::Headers headers, std::string body) {
    record.status = status;
    const auto sent = co_await reply_.send(status, headers, body);
    if (!sent.ok()) write_failed(sent.error());
}

io::Task<void> Exchange::send_json(int status, std::string body) {
    return send(status, headers(kJson), std::move(body));
}

io::Task<void> Exchange::fail(Error error) {
    const bool messages = speaks_messages();
    const int status =
        messages ? dialect::messages::error_status(error) : code_info(error.code).http_status;
    ended_as(code_info(error.code).name);
    failure_ = error;
    io::Headers h = headers(kJson);
    add_retry_headers(h, error, status, options().retry_after, record.first_token != TimePoint{});
    if (status == 401) h.add("www-authenticate", "Bearer");
    return send(status, std::move(h),
                messages ? dialect::messages::error_body(error, record.id)
                         : dialect::openai_error_body(error));
}

std::string Exchange::error_json(int status, std::string_view message,
                                 std::string_view code) const {
    if (!speaks_messages())
        return dialect::openai_error_json(message, "invalid_request_error", code);
    return dialect::messages::error_body(dialect::messages::error_type(status), message, record.id);
}

void Exchange::ended_as(std::string_view why) {
    if (record.end.empty()) record.end = why;
}

void Exchange::write_failed(const Error& error) {
    record.end = error.code == Code::kDeadlineExceeded ? kEndSlowClient : kEndClientGone;
}

}  // namespace nereid::gateway
