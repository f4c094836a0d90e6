// /v1/messages/batches: see batches.h.
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "dialect/messages/messages.h"
#include "dialect/rfc3339.h"
#include "gateway/batch_run.h"
#include "gateway/batches.h"
#include "gateway/json_list.h"
#include "gateway/pending.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kBatchKind[] = "message_batch";
constexpr char kResultsKind[] = "message_batch_results";
constexpr std::size_t kMaxLines = 100'000;
constexpr std::int64_t kDay = 24 * 3600;

bool ended(const Json& batch) {
    const Json* s = batch.find("processing_status");
    return s != nullptr && *s == Json("ended");
}

Json counts(std::size_t processing, std::size_t succeeded, std::size_t errored,
            std::size_t canceled) {
    Json out;
    out.set("processing", static_cast<std::uint64_t>(processing));
    out.set("succeeded", static_cast<std::uint64_t>(succeeded));
    out.set("errored", static_cast<std::uint64_t>(errored));
    out.set("canceled", static_cast<std::uint64_t>(canceled));
    out.set("expired", 0);
    return out;
}

struct Accepted {
    Json batch;
    std::vector<BatchLine> lines;
};
Result<Accepted> accept(Exchange& x, const std::string& id) {
    TRY(const Json body, parse_body(x));
    const Json* requests = body.find("requests");
    if (requests == nullptr || !requests->is_array() || requests->size() == 0)
        return err(Code::kInvalidArgument, "`requests` must be an array with at least one request.",
                   "requests");
    if (requests->size() > kMaxLines)
        return err(Code::kTooLarge,
                   fmt::format("{} requests are more than {}.", requests->size(), kMaxLines));
    Accepted out;
    std::set<std::string> names;
    for (std::size_t i = 0; i < requests->size(); ++i) {
        const Json& one = requests->as_array()[i];
        const Json* name = one.find("custom_id");
        const Json* params = one.find("params");
        const auto wrong = [&](std::string_view what) {
            return err(Code::kInvalidArgument, fmt::format("requests[{}]: {}", i, what),
                       fmt::format("requests[{}]", i));
        };
        if (name == nullptr || !name->is_string() || name->as_string().empty())
            return wrong("`custom_id` is missing.");
        if (!names.insert(name->as_string()).second)
            return wrong("its `custom_id` is taken by an earlier one.");
        if (params == nullptr || !params->is_object()) return wrong("`params` is missing.");
        Json plain = *params;
        plain.set("stream", false);
        out.lines.push_back({name->as_string(), "/v1/messages", plain.dump()});
    }
    const std::int64_t now = x.clock().wall_now().seconds();
    Json& b = out.batch;
    b.set("id", id);
    b.set("type", "message_batch");
    b.set("processing_status", "in_progress");
    b.set("request_counts", counts(out.lines.size(), 0, 0, 0));
    b.set("created_at", dialect::rfc3339(now));
    b.set("expires_at", dialect::rfc3339(now + kDay));
    for (const char* at : {"ended_at", "archived_at", "cancel_initiated_at", "results_url"})
        b.set(at, Json());
    return out;
}

store::Record record_of(const Exchange& x, const Json& batch) {
    store::Record r{.key = response_key(x, kBatchKind, batch.find("id")->as_string()),
                    .body = batch.dump()};
    r.expires = expiry(x);
    return r;
}

io::Task<Result<Json>> load(Exchange& x, std::string id) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kBatchKind, id));
    if (!record.ok()) {
        if (record.code() != Code::kNotFound) co_return record.error();
        co_return Error{Code::kNotFound, fmt::format("Message batch {} not found.", id)};
    }
    auto batch = Json::parse(record->body);
    if (!batch.ok()) co_return Error{Code::kCorrupt, "the stored batch cannot be read"};
    if (!ended(*batch) && x.core().jobs.find(job_name(x, id)) == nullptr &&
        !co_await is_pending(x, id)) {
        batch->set("processing_status", "ended");  // its process has gone
        batch->set("ended_at", dialect::rfc3339(x.clock().wall_now().seconds()));
    }
    co_return *std::move(batch);
}

std::string results_of(const std::vector<BatchLine>& lines, const std::vector<BatchResult>& all) {
    std::string out;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        JsonWriter w(out);
        w.begin_object().member("custom_id", lines[i].custom_id).key("result").begin_object();
        const bool whole = all[i].status != 0 && parse_stored(all[i].body).ok();
        if (!whole) {
            w.member("type", "canceled");
        } else if (all[i].status < 300) {
            w.member("type", "succeeded").key("message").raw(all[i].body);
        } else {
            w.member("type", "errored").key("error").raw(all[i].body);
        }
        w.end_object().end_object();
        out += '\n';
    }
    return out;
}

// Runs the batch inside its job; `batch` is its object.
io::Task<void> note(std::shared_ptr<store::Records> records, io::Loop& loop,
                    std::vector<store::Change> changes) {
    (void)co_await records->write(loop, std::move(changes));
}
io::Task<void> run(Exchange& x, ShardTools tools, std::shared_ptr<Accepted> accepted,
                   bool give_up) {
    Json& batch = accepted->batch;
    const std::size_t total = accepted->lines.size();
    const auto succeeded = std::make_shared<std::size_t>(0);
    const auto errored = std::make_shared<std::size_t>(0);
    const std::string id = batch.find("id")->as_string();
    std::vector<BatchResult> done = co_await kept_lines(x, id, total);
    const auto count = [&](const BatchResult& r) {
        if (r.status != 0) ++*(r.status < 300 ? succeeded : errored);
    };
    for (const BatchResult& r : done) count(r);
    // With nothing to run, what is not done counts as cancelled.
    std::vector<BatchResult> results;
    if (give_up) {
        results = std::move(done);
    } else {
        results = co_await run_batch(
            x, tools, accepted->lines, std::move(done),
            [&](std::size_t index, const BatchResult& r) {
                if (r.status == 0) return;
                count(r);
                const std::size_t left = total - *succeeded - *errored;
                batch.set("request_counts", counts(left, *succeeded, *errored, 0));
                std::vector<store::Change> kept(2);
                kept[0].record = record_of(x, batch);
                kept[1].record = line_record(x, id, index, r);
                tools.jobs.spawn(note(x.core().records, x.loop(), std::move(kept)));
            });
    }
    batch.set("processing_status", "ended");
    const std::string now = dialect::rfc3339(x.clock().wall_now().seconds());
    batch.set("ended_at", now);
    if (x.reply().disconnected()) batch.set("cancel_initiated_at", now);
    batch.set("request_counts", counts(0, *succeeded, *errored, total - *succeeded - *errored));
    std::vector<store::Change> changes(2);
    forget_pending(x, id, changes);
    forget_lines(x, id, total, changes);
    changes[0].record = record_of(x, batch);
    changes[1].record = {.key = response_key(x, kResultsKind, id),
                         .body = results_of(accepted->lines, results),
                         .expires = expiry(x)};
    const auto kept = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!kept.ok()) co_return co_await x.fail(kept.error());
    co_await x.send_json(200, batch.dump());
}

// The object as a caller sees it: where its results are.
std::string shown(Exchange& x, Json batch) {
    if (ended(batch)) {
        const std::string_view host = x.http().headers.get("host");
        batch.set(
            "results_url",
            fmt::format("{}://{}/v1/messages/batches/{}/results", x.http().tls ? "https" : "http",
                        host.empty() ? "localhost" : host, batch.find("id")->as_string()));
    }
    return batch.dump();
}

io::Task<void> create(Exchange& x, ShardTools tools) {
    const std::string id = "msgbatch_" + hex_id(tools.prng);
    auto accepted = accept(x, id);
    if (!accepted.ok()) co_return co_await refuse(x, std::move(accepted.error()));
    std::vector<store::Change> changes(1);
    changes[0].record = record_of(x, accepted->batch);
    note_pending(x, {.kind = PendingKind::kMessageBatch, .id = id, .request = x.http().body},
                 changes);
    auto kept = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    std::string answer = accepted->batch.dump();
    const auto work = std::make_shared<Accepted>(*std::move(accepted));
    const std::string name = job_name(x, id);
    Core& core = x.core();
    core.jobs.add(name,
                  tools.jobs.start(
                      x, Route::kMessageBatch, {}, make_id("req", tools.prng),
                      [tools, work](Exchange& inner) { return run(inner, tools, work, false); },
                      [&core, name] { core.jobs.remove(name); }),
                  true);
    co_await x.send_json(200, std::move(answer));
}

io::Task<void> list(Exchange& x) {
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    // Newest first; before_id: those next to it that are newer.
    store::ListQuery query{.kind = kBatchKind,
                           .tenant = x.record.key,
                           .parent = {},
                           .after = page->before.empty() ? page->after : page->before};
    query.newest_first = page->before.empty();
    query.limit = page->limit + 1;
    auto found = co_await x.core().records->list(x.loop(), query);
    if (!found.ok()) co_return co_await x.fail(std::move(found.error()));
    Json::Array data;
    for (const store::Record& r : *found) {
        auto b = Json::parse(r.body);
        if (!b.ok() || data.size() == page->limit) continue;
        auto object = Json::parse(shown(x, *std::move(b)));
        if (object.ok()) data.push_back(*std::move(object));
    }
    if (!page->before.empty()) std::ranges::reverse(data);
    co_await x.send_json(200, list_object(data, found->size() > page->limit));
}

}  // namespace

io::Task<void> resume_message_batch(Exchange& x, ShardTools tools, Pending pending) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kBatchKind, pending.id));
    if (!record.ok()) co_return;
    auto batch = Json::parse(record->body);
    x.http().body = std::move(pending.request);
    auto accepted = accept(x, pending.id);
    if (!batch.ok() || !accepted.ok()) co_return;
    accepted->batch = *std::move(batch);
    co_await run(x, tools, std::make_shared<Accepted>(*std::move(accepted)), pending.give_up);
}

io::Task<void> serve_message_batches(Exchange& x, ShardTools tools) {
    return x.http().method == "POST" ? create(x, tools) : list(x);
}

io::Task<void> serve_message_batch(Exchange& x, std::string id) {
    auto batch = co_await load(x, id);
    if (!batch.ok()) co_return co_await x.fail(std::move(batch.error()));
    if (x.http().method != "DELETE") co_return co_await x.send_json(200, shown(x, *batch));
    if (!ended(*batch)) {
        co_return co_await x.fail(
            {Code::kInvalidArgument, "A batch that is in progress cannot be deleted; cancel it."});
    }
    std::vector<store::Change> changes(2);
    changes[0] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kBatchKind, id)}};
    changes[1] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kResultsKind, id)}};
    auto removed = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", id).member("type", "message_batch_deleted").end_object();
    co_await x.send_json(200, std::move(out));
}

io::Task<void> serve_message_batch_cancel(Exchange& x, std::string id) {
    auto batch = co_await load(x, id);
    if (!batch.ok()) co_return co_await x.fail(std::move(batch.error()));
    if (const auto job = x.core().jobs.find(job_name(x, id)); job && !ended(*batch)) {
        job->cancel();
        batch->set("processing_status", "canceling");
        batch->set("cancel_initiated_at", dialect::rfc3339(x.clock().wall_now().seconds()));
    }
    co_await x.send_json(200, shown(x, *batch));
}

io::Task<void> serve_message_batch_results(Exchange& x, std::string id) {
    auto batch = co_await load(x, id);
    if (!batch.ok()) co_return co_await x.fail(std::move(batch.error()));
    auto results = co_await x.core().records->get(x.loop(), response_key(x, kResultsKind, id));
    if (!results.ok()) {
        co_return co_await x.fail(
            {Code::kNotFound, fmt::format("The results of {} are not there yet.", id)});
    }
    co_await x.send(200, x.headers("application/x-jsonl"), std::move(results->body));
}

}  // namespace nereid::gateway
