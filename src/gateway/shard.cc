#include "gateway/shard.h"

#include <utility>

#include "dialect/messages/messages.h"
#include "dialect/openai_error.h"
#include "gateway/batches.h"
#include "gateway/conversations.h"
#include "gateway/endpoints.h"
#include "gateway/files.h"
#include "gateway/generate.h"
#include "gateway/idempotency.h"
#include "gateway/messages_endpoint.h"
#include "gateway/pending.h"
#include "gateway/responses_endpoint.h"

namespace nereid::gateway {
namespace {

constexpr Duration kWaitForModels = std::chrono::minutes(10);
constexpr Duration kLookAgain = 100ms;

io::HttpLimits limits_of(const GatewayOptions& options) {
    io::HttpLimits limits;
    limits.max_header_bytes = static_cast<std::size_t>(options.max_header.value);
    limits.max_body_bytes = static_cast<std::size_t>(options.max_body.value);
    return limits;
}

// In the default dialect: the HTTP layer fails before a route is known.
std::string http_error_body(int status, std::string_view message) {
    std::string_view type = "invalid_request_error";
    std::string_view code = "bad_request";
    switch (status) {
        case 408:
            code = "request_timeout";
            break;
        case 411:
            code = "length_required";
            break;
        case 413:
            code = "request_too_large";
            break;
        case 414:
            code = "uri_too_long";
            break;
        case 431:
            code = "headers_too_large";
            break;
        case 501:
            code = "not_implemented";
            break;
        case 505:
            code = "http_version_not_supported";
            break;
        default:
            if (status < 500) break;
            type = "server_error";
            code = status == 503 ? "overloaded" : "internal_error";
    }
    return dialect::openai_error_json(message, type, code);
}

bool is_encoded(const io::HttpRequest& http) {
    const auto encoding = http.headers.get("content-encoding");
    return !encoding.empty() && encoding != "identity";
}

io::Task<void> refuse_encoding(Exchange& x) {
    x.ended_as("unsupported_encoding");
    return x.send_json(
        415,
        x.error_json(415, "A compressed body is not supported; send it without content-encoding.",
                     "unsupported_content_encoding"));
}

}  // namespace

GatewayShard::GatewayShard(Core& core, ShardContext context, std::size_t number,
                           std::shared_ptr<const Settings> settings,
                           const std::vector<ModelEntry>& entries)
    : core_(core),
      loop_(*context.loop),
      network_(*context.network),
      settings_(std::move(settings)),
      prng_(static_cast<std::uint64_t>(context.loop->wall_now().since_epoch.count()) * 1000 +
            number),
      http_metrics_(core.http),
      models_(entries, context),
      pdf_(*context.loop, context.launcher),
      dispatch_([this](Exchange& x, const RouteMatch& route) { return dispatch(x, route); }),
      jobs_(core, *context.loop) {
    io::HttpLimits limits = limits_of(settings_->options);
    limits.error_body = [this](int status, std::string_view message, std::string_view target,
                               io::Headers& headers) {
        const std::string id = make_id("req", prng_);
        headers.add("content-type", "application/json");
        headers.add("x-request-id", id);
        http_metrics_.publish(server_->counters());
        if (!is_messages_path(target)) return http_error_body(status, message);
        headers.add("request-id", id);
        return dialect::messages::error_body(dialect::messages::error_type(status), message, id);
    };
    server_ = io::make_http_server(
        loop_, std::move(limits),
        [this](io::HttpRequest& http, io::HttpReply& reply) { return handle(http, reply); });
}

io::Task<void> GatewayShard::handle(io::HttpRequest& http, io::HttpReply& reply) {
    http_metrics_.publish(server_->counters());
    const RouteMatch route = match_route(http.method, http.path);
    Exchange x(core_, loop_, settings_, http, reply, make_id("req", prng_));
    x.record.route = route.route;
    co_await dispatch(x, route);
}

io::Task<void> GatewayShard::drain_server(TimePoint deadline, std::function<void()> done) {
    co_await server_->drain(deadline);
    done();
}

io::Task<void> GatewayShard::watch_pending() {
    const auto ready = [this] {
        for (const ShardModel& m : models_.all()) {
            if (!m.not_ready().empty()) return false;
        }
        return true;
    };
    // What begins before its model is there would fail.
    for (Duration waited{0}; waited < kWaitForModels && !ready(); waited += kLookAgain)
        co_await loop_.sleep_for(kLookAgain);
    const ShardTools tools{models_, prng_, jobs_, network_, pdf_, dispatch_};
    for (;;) {
        co_await resume_pending(core_, loop_, settings_, tools);
        if (!core_.records_shared) co_return;
        co_await loop_.sleep_for(settings_->options.job_lease / 3);
    }
}

io::Task<void> GatewayShard::dispatch(Exchange& x, const RouteMatch& route) {
    if (needs_key(route.route) && !x.authenticate()) {
        core_.probe.rejected(Rejected::kAuth);
        const bool presented = !presented_key(x.http().headers).empty();
        return x.fail(
            {Code::kUnauthenticated,
             presented
                 ? "Incorrect API key provided."
                 : "You didn't provide an API key. Send it as `Authorization: Bearer YOUR_KEY`."});
    }
    if (route.route == Route::kUnknown) return serve_unknown_route(x);
    if (!route.method_allowed) return serve_wrong_method(x, route.allow);
    if (is_encoded(x.http())) return refuse_encoding(x);
    const ShardTools tools{models_, prng_, jobs_, network_, pdf_, dispatch_};
    if (is_repeatable(x, route.route)) return serve_repeatable(x, tools, route.route);
    switch (route.route) {
        case Route::kChat:
        case Route::kCompletions:
        case Route::kEmbeddings:
            return generate(x, tools);
        case Route::kMessages:
            return serve_messages(x, tools);
        case Route::kCountTokens:
            return serve_count_tokens(x, tools);
        case Route::kResponses:
            return serve_responses(x, tools);
        case Route::kResponse:
            return serve_response(x, tools, std::string(route.id));
        case Route::kResponseCancel:
            return serve_response_cancel(x, tools, std::string(route.id));
        case Route::kInputItems:
            return serve_input_items(x, std::string(route.id));
        case Route::kInputTokens:
            return serve_input_tokens(x, tools);
        case Route::kCompact:
            return serve_compact(x, tools);
        case Route::kConversations:
            return serve_conversations(x, tools);
        case Route::kConversation:
            return serve_conversation(x, std::string(route.id));
        case Route::kConversationItems:
            return serve_conversation_items(x, tools, std::string(route.id));
        case Route::kConversationItem:
            return serve_conversation_item(x, std::string(route.id), std::string(route.id2));
        case Route::kMessageBatches:
            return serve_message_batches(x, tools);
        case Route::kMessageBatch:
            return serve_message_batch(x, std::string(route.id));
        case Route::kMessageBatchCancel:
            return serve_message_batch_cancel(x, std::string(route.id));
        case Route::kMessageBatchResults:
            return serve_message_batch_results(x, std::string(route.id));
        case Route::kFiles:
            return serve_files(x, tools);
        case Route::kFile:
            return serve_file(x, std::string(route.id));
        case Route::kFileContent:
            return serve_file_content(x, std::string(route.id));
        case Route::kBatches:
            return serve_batches(x, tools);
        case Route::kBatch:
            return serve_batch(x, std::string(route.id));
        case Route::kBatchCancel:
            return serve_batch_cancel(x, std::string(route.id));
        case Route::kModels:
            return serve_models(x, models_);
        case Route::kModel:
            return serve_model(x, models_, route.id);
        case Route::kTokenize:
            return serve_tokenize(x, models_);
        case Route::kDetokenize:
            return serve_detokenize(x, models_);
        case Route::kHealth:
            return serve_health(x);
        case Route::kReady:
            return serve_ready(x, models_);
        case Route::kMetrics:
            return serve_metrics(x, models_);
        case Route::kRoot:
            return serve_root(x);
        default:
            break;
    }
    return serve_unknown_route(x);
}

}  // namespace nereid::gateway
