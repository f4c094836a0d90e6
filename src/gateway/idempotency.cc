#include "gateway/idempotency.h"

#include <utility>

#include "base/base64.h"
#include "base/hash.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kKind[] = "idempotent";
constexpr Duration kAbandonAfter = 30s;
constexpr std::int64_t kKeptSeconds = 24 * 3600;
constexpr std::size_t kMaxKey = 255;
constexpr std::size_t kMaxKept = 8u << 20;
constexpr std::string_view kHeader = "idempotency-key";

std::string text_of(const Json& object, std::string_view name) {
    const Json* v = object.find(name);
    return v != nullptr && v->is_string() ? v->as_string() : std::string();
}

Error another_body() {
    return {Code::kConflict, "This Idempotency-Key was used with another request body.",
            std::string(kHeader)};
}

store::Record record_of(const Exchange& x, const std::string& id, const std::string& digest,
                        const Recording::View& view) {
    store::Record r{.key = response_key(x, kKind, id)};
    r.expires = x.clock().wall_now().seconds() + kKeptSeconds;
    JsonWriter w(r.body);
    w.begin_object().member("digest", digest).member("status", view.head.status);
    w.member("streamed", view.head.streamed);
    w.member("type", view.head.headers.get("content-type"));
    w.member("body", base64_encode(view.bytes)).end_object();
    return r;
}

io::Task<void> keep(Exchange& x, std::string id, std::string digest,
                    std::shared_ptr<std::shared_ptr<Recording>> recording) {
    const Recording::View view = (*recording)->from(0);
    const bool later = view.head.status == 429 || view.head.status >= 500;
    if (!view.whole || later || x.record.failed || view.bytes.size() > kMaxKept) co_return;
    (void)co_await x.core().records->put(x.loop(), record_of(x, id, digest, view));
}

io::Task<void> replay(Exchange& x, const Json& kept) {
    io::Headers headers = x.headers(text_of(kept, "type"));
    headers.add("idempotent-replayed", "true");
    const auto body = base64_decode(text_of(kept, "body"));
    const int status = static_cast<int>(kept.find("status")->as_int().value_or(500));
    if (!body) co_return co_await x.fail({Code::kCorrupt, "The kept answer cannot be read."});
    if (*kept.find("streamed") != Json(true))
        co_return co_await x.send(status, std::move(headers), *body);
    x.record.status = status;
    auto sent = co_await x.reply().start(status, headers, *body);
    if (sent.ok()) sent = co_await x.reply().finish();
    if (!sent.ok()) x.write_failed(sent.error());
}

io::Task<void> abandon(io::Loop& loop, std::shared_ptr<Job> job) {
    co_await loop.sleep_for(kAbandonAfter);
    if (job->followers == 0 && !job->recording()->from(0).ended) job->cancel();
}

std::shared_ptr<Job> start(Exchange& x, ShardTools tools, Route route, const std::string& id,
                           const std::string& name, const std::string& digest) {
    const auto recording = std::make_shared<std::shared_ptr<Recording>>();
    const auto* dispatch = &tools.dispatch;
    Core& core = x.core();
    io::HttpRequest request = x.http();
    auto job = tools.jobs.start(
        x, route, std::move(request), make_id("req", tools.prng),
        [=](Exchange& inner) -> io::Task<void> {
            return [](Exchange& run, const auto* serve, Route r, std::string key, std::string body,
                      auto made) -> io::Task<void> {
                co_await (*serve)(run, {.route = r, .method_allowed = true});
                co_await keep(run, std::move(key), std::move(body), std::move(made));
            }(inner, dispatch, route, id, digest, recording);
        },
        [&core, name, recording] { core.jobs.remove(name, recording->get()); });
    *recording = job->recording();
    job->note = digest;
    return job;
}

}  // namespace

bool is_repeatable(const Exchange& x, Route route) {
    if (x.adopted() || x.http().headers.get(kHeader).empty()) return false;
    return route == Route::kChat || route == Route::kCompletions || route == Route::kEmbeddings ||
           route == Route::kMessages || route == Route::kResponses;
}

io::Task<void> serve_repeatable(Exchange& x, ShardTools tools, Route route) {
    const std::string key(x.http().headers.get(kHeader));
    if (key.size() > kMaxKey) {
        co_return co_await refuse(
            x, {Code::kInvalidArgument, "The Idempotency-Key is too long.", std::string(kHeader)});
    }
    const std::string id = std::string(to_string(route)) + "/" + key;
    const std::string name = "idempotent/" + job_name(x, id);
    const std::string digest = to_hex(sha256(as_bytes(x.http().body)));
    std::shared_ptr<Job> job = x.core().jobs.find(name);
    if (!job) {
        auto record = co_await x.core().records->get(x.loop(), response_key(x, kKind, id));
        if (record.ok()) {
            const auto kept = Json::parse(record->body);
            if (!kept.ok())
                co_return co_await x.fail({Code::kCorrupt, "The kept answer cannot be read."});
            if (text_of(*kept, "digest") != digest) co_return co_await x.fail(another_body());
            co_return co_await replay(x, *kept);
        }
        job = x.core().jobs.find(name);
    }
    if (!job) {
        job = start(x, tools, route, id, name, digest);
        if (!x.core().jobs.add(name, job)) {  // another shard was quicker
            job->cancel();
            job = x.core().jobs.find(name);
            if (!job) co_return co_await x.fail({Code::kUnavailable, "Please retry."});
        }
    }
    if (job->note != digest) co_return co_await x.fail(another_body());
    co_await follow(x, job);
    if (job->followers == 0 && !job->recording()->from(0).ended)
        tools.jobs.spawn(abandon(x.loop(), job));
}

}  // namespace nereid::gateway
