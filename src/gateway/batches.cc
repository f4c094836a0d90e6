#include "gateway/batches.h"

#include <array>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "gateway/batch_run.h"
#include "gateway/files.h"
#include "gateway/json_list.h"
#include "gateway/pending.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kBatchKind[] = "batch";
constexpr std::size_t kMaxLines = 50'000;
constexpr std::int64_t kDay = 24 * 3600;
constexpr char kJsonLines[] = "application/jsonl";
constexpr std::array kEndpoints{"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                "/v1/responses"};

std::unexpected<Error> invalid(std::string message, std::string param) {
    return err(Code::kInvalidArgument, std::move(message), std::move(param));
}

Result<std::string> string_of(const Json& body, std::string_view name) {
    const Json* v = body.find(name);
    if (v == nullptr || v->is_null())
        return invalid(fmt::format("Missing required parameter: '{}'.", name), std::string(name));
    if (!v->is_string())
        return invalid(fmt::format("`{}` must be a string.", name), std::string(name));
    return v->as_string();
}

std::string status_of(const Json& batch) {
    const Json* s = batch.find("status");
    return s != nullptr && s->is_string() ? s->as_string() : std::string();
}
bool is_over(std::string_view status) {
    return status == "completed" || status == "failed" || status == "cancelled";
}

io::Task<Result<Json>> load(Exchange& x, std::string id) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kBatchKind, id));
    if (!record.ok()) {
        if (record.code() != Code::kNotFound) co_return record.error();
        co_return Error{Code::kNotFound, fmt::format("No batch found with id '{}'.", id), "id"};
    }
    auto batch = Json::parse(record->body);
    if (!batch.ok()) co_return Error{Code::kCorrupt, "the stored batch cannot be read"};
    const bool runs = is_over(status_of(*batch)) ||
                      x.core().jobs.find(job_name(x, id)) != nullptr || co_await is_pending(x, id);
    if (!runs) {
        batch->set("status", "failed");
        batch->set("failed_at", x.clock().wall_now().seconds());
    }
    co_return *std::move(batch);
}

io::Task<Result<void>> keep(Exchange& x, const Json& batch) {
    store::Record r{.key = response_key(x, kBatchKind, batch.find("id")->as_string()),
                    .body = batch.dump()};
    r.expires = expiry(x);
    return x.core().records->put(x.loop(), std::move(r));
}

struct Accepted {
    Json batch;
    std::string file;
    std::string endpoint;
};
Result<Accepted> accept(Exchange& x, const std::string& id) {
    TRY(const Json body, parse_body(x));
    if (!body.is_object()) return invalid("The body must be a JSON object.", {});
    Accepted out;
    TRY(out.file, string_of(body, "input_file_id"));
    TRY(out.endpoint, string_of(body, "endpoint"));
    TRY(const std::string window, string_of(body, "completion_window"));
    if (std::ranges::find(kEndpoints, out.endpoint) == kEndpoints.end())
        return invalid(fmt::format("'{}' cannot be batched.", out.endpoint.substr(0, 64)),
                       "endpoint");
    if (window != "24h") return invalid("`completion_window` must be '24h'.", "completion_window");
    const Json* metadata = body.find("metadata");
    if (metadata != nullptr && !metadata->is_null() && !metadata->is_object())
        return invalid("`metadata` must be an object.", "metadata");
    const std::int64_t now = x.clock().wall_now().seconds();
    Json& b = out.batch;
    b.set("id", id).set("object", "batch").set("endpoint", out.endpoint).set("errors", Json());
    b.set("input_file_id", out.file).set("completion_window", window).set("status", "validating");
    b.set("output_file_id", Json()).set("error_file_id", Json()).set("created_at", now);
    b.set("expires_at", now + kDay);
    for (const char* at : {"in_progress_at", "finalizing_at", "completed_at", "failed_at",
                           "expired_at", "cancelling_at", "cancelled_at"})
        b.set(at, Json());
    Json counts(Json::Object{{"total", 0}, {"completed", 0}, {"failed", 0}});
    b.set("request_counts", std::move(counts));
    b.set("metadata", metadata == nullptr ? Json() : *metadata);
    return out;
}

// The lines of the input file, or what is wrong with them, each with its number.
struct Lines {
    std::vector<BatchLine> lines;
    Json::Array errors;
};
Lines read_lines(std::string_view text, std::string_view endpoint) {
    Lines out;
    std::set<std::string> names;
    std::int64_t number = 0;
    const auto wrong = [&](std::string_view code, std::string_view message) {
        if (out.errors.size() >= 100) return;
        Json e(Json::Object{{"code", code}, {"message", message}, {"param", Json()}});
        e.set("line", number);
        out.errors.push_back(std::move(e));
    };
    while (!text.empty()) {
        const auto end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
        ++number;
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;
        auto json = Json::parse(line);
        if (!json.ok() || !json->is_object()) {
            wrong("invalid_json_line", "This line is not parseable as valid JSON.");
            continue;
        }
        const auto id = string_of(*json, "custom_id");
        const auto url = string_of(*json, "url");
        const Json* body = json->find("body");
        if (!id.ok() || id->empty()) {
            wrong("missing_required_parameter", "'custom_id' is missing.");
        } else if (!names.insert(*id).second) {
            wrong("duplicate_custom_id", "The custom_id of this line is taken by an earlier one.");
        } else if (!url.ok() || *url != endpoint) {
            wrong("mismatched_endpoint", "The url of this line is not the batch's endpoint.");
        } else if (body == nullptr || !body->is_object()) {
            wrong("missing_required_parameter", "'body' is missing.");
        } else {
            Json plain = *body;
            if (plain.find("stream") != nullptr) plain.set("stream", false);
            out.lines.push_back({*id, std::string(endpoint), plain.dump()});
        }
    }
    if (out.lines.empty() && out.errors.empty()) wrong("empty_file", "The input file is empty.");
    if (out.lines.size() > kMaxLines) wrong("too_many_lines", "The input file has too many lines.");
    return out;
}

void append_result(std::string& out, const std::string& id, const BatchLine& line,
                   const BatchResult& r) {
    JsonWriter w(out);
    w.begin_object().member("id", id).member("custom_id", line.custom_id).key("response");
    w.begin_object().member("status_code", r.status).member("request_id", r.request_id);
    w.key("body");
    if (parse_stored(r.body).ok())
        w.raw(r.body);
    else
        w.value(r.body);
    w.end_object().key("error").null().end_object();
    out += '\n';
}

class BatchWork {
  public:
    BatchWork(ShardTools tools, Json batch, std::string file, std::string endpoint)
        : tools_(tools),
          batch_(std::move(batch)),
          file_(std::move(file)),
          endpoint_(std::move(endpoint)) {}

    io::Task<void> run(Exchange& x) {
        auto file = co_await load_file(x, file_);
        if (!file.ok()) co_return co_await fail(x, std::move(file.error()));
        Lines read = read_lines(file->bytes, endpoint_);
        if (!read.errors.empty()) {
            Json errors(Json::Object{{"object", "list"}});
            errors.set("data", Json(std::move(read.errors)));
            batch_.set("errors", std::move(errors));
            co_return co_await end(x, "failed", "failed_at");
        }
        total_ = read.lines.size();
        mark(x, "in_progress", "in_progress_at");
        (void)co_await keep(x, batch_);
        const std::vector<BatchLine> lines = read.lines;
        std::vector<BatchResult> done = co_await kept_lines(x, id(), total_);
        for (const BatchResult& r : done) count(r);
        const auto results = co_await run_batch(
            x, tools_, std::move(read.lines), std::move(done),
            [&](std::size_t index, const BatchResult& r) {
                if (r.status == 0) return;  // cut by a cancellation
                count(r);
                // Seen by those who ask; a batch is not slowed down for it.
                batch_.set("request_counts", counts());
                std::vector<store::Change> changes(2);
                changes[0].record = progress(x);
                changes[1].record = line_record(x, id(), index, r);
                tools_.jobs.spawn(note(x.core().records, x.loop(), std::move(changes)));
            });
        co_await finish(x, lines, results);
    }
    // Ends it without running.
    io::Task<void> give_up(Exchange& x) {
        co_await fail(x, {Code::kInternal, "The server died while the batch ran."});
    }

  private:
    static io::Task<void> note(std::shared_ptr<store::Records> records, io::Loop& loop,
                               std::vector<store::Change> changes) {
        (void)co_await records->write(loop, std::move(changes));
    }
    std::string id() const { return batch_.find("id")->as_string(); }
    void count(const BatchResult& r) {
        if (r.status != 0) ++(r.status >= 200 && r.status < 300 ? completed_ : failed_);
    }
    store::Record progress(const Exchange& x) const {
        store::Record r{.key = response_key(x, kBatchKind, batch_.find("id")->as_string()),
                        .body = batch_.dump()};
        r.expires = expiry(x);
        return r;
    }
    Json counts() const {
        Json out;
        out.set("total", static_cast<std::uint64_t>(total_));
        out.set("completed", static_cast<std::uint64_t>(completed_));
        out.set("failed", static_cast<std::uint64_t>(failed_));
        return out;
    }
    void mark(const Exchange& x, std::string_view status, std::string_view at) {
        batch_.set("status", status).set(at, x.clock().wall_now().seconds());
        batch_.set("request_counts", counts());
    }
    io::Task<void> end(Exchange& x, std::string_view status, std::string_view at) {
        mark(x, status, at);
        std::vector<store::Change> changes(1);
        changes[0].record = progress(x);
        forget_pending(x, id(), changes);
        forget_lines(x, id(), total_, changes);
        (void)co_await x.core().records->write(x.loop(), std::move(changes));
        co_await x.send_json(200, batch_.dump());
    }
    io::Task<void> fail(Exchange& x, Error error) {
        Json one(Json::Object{{"code", "invalid_file"}, {"message", error.message}});
        Json errors(Json::Object{{"object", "list"}});
        errors.set("data", Json(Json::Array{std::move(one)}));
        batch_.set("errors", std::move(errors));
        co_await end(x, "failed", "failed_at");
    }
    io::Task<void> finish(Exchange& x, const std::vector<BatchLine>& lines,
                          const std::vector<BatchResult>& results) {
        std::string good, bad;
        for (std::size_t i = 0; i < lines.size(); ++i) {
            if (results[i].status == 0) continue;
            append_result(results[i].status < 300 ? good : bad, make_id("batch_req", tools_.prng),
                          lines[i], results[i]);
        }
        std::vector<store::Change> changes;
        const auto file = [&](std::string_view member, std::string text, const char* name) {
            if (text.empty()) return;
            NewFile made =
                make_file(x, make_id("file", tools_.prng),
                          {.filename = name, .purpose = "batch_output", .media_type = kJsonLines},
                          std::move(text));
            batch_.set(member, made.id);
            for (auto& change : made.changes) changes.push_back(std::move(change));
        };
        file("output_file_id", std::move(good), "output.jsonl");
        file("error_file_id", std::move(bad), "errors.jsonl");
        if (!changes.empty()) {
            const auto kept = co_await x.core().records->write(x.loop(), std::move(changes));
            if (!kept.ok()) co_return co_await fail(x, kept.error());
        }
        const bool cancelled = x.reply().disconnected();
        if (cancelled) batch_.set("cancelling_at", x.clock().wall_now().seconds());
        co_await end(x, cancelled ? "cancelled" : "completed",
                     cancelled ? "cancelled_at" : "completed_at");
    }

    ShardTools tools_;
    Json batch_;
    std::string file_, endpoint_;
    std::size_t total_ = 0, completed_ = 0, failed_ = 0;
};

// Starts a batch as a job that can be found by its id.
void start_job(Exchange& x, ShardTools tools, const std::string& id, Route route, Jobs::Work work) {
    const std::string name = job_name(x, id);
    Core& core = x.core();
    core.jobs.add(name,
                  tools.jobs.start(x, route, {}, make_id("req", tools.prng), std::move(work),
                                   [&core, name] { core.jobs.remove(name); }),
                  true);
}

io::Task<void> create(Exchange& x, ShardTools tools) {
    const std::string id = "batch_" + hex_id(tools.prng);
    auto accepted = accept(x, id);
    if (!accepted.ok()) co_return co_await refuse(x, std::move(accepted.error()));
    if (auto file = co_await load_file(x, accepted->file); !file.ok()) {
        file.error().param = "input_file_id";
        co_return co_await x.fail(std::move(file.error()));
    }
    std::vector<store::Change> changes(1);
    changes[0].record = {.key = response_key(x, kBatchKind, id),
                         .body = accepted->batch.dump(),
                         .expires = expiry(x)};
    note_pending(x, {.kind = PendingKind::kBatch, .id = id}, changes);
    auto kept = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    std::string answer = accepted->batch.dump();
    const auto work = std::make_shared<BatchWork>(tools, std::move(accepted->batch), accepted->file,
                                                  accepted->endpoint);
    start_job(x, tools, id, Route::kBatch, [work](Exchange& inner) { return work->run(inner); });
    co_await x.send_json(200, std::move(answer));
}

io::Task<void> list(Exchange& x) {
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    store::ListQuery query{
        .kind = kBatchKind, .tenant = x.record.key, .parent = {}, .after = page->after};
    query.newest_first = true;
    query.limit = page->limit + 1;
    auto found = co_await x.core().records->list(x.loop(), query);
    if (!found.ok()) co_return co_await x.fail(std::move(found.error()));
    Json::Array data;
    for (const store::Record& r : *found) {
        if (auto b = Json::parse(r.body); b.ok() && data.size() < page->limit)
            data.push_back(*std::move(b));
    }
    co_await x.send_json(200, list_object(data, found->size() > page->limit));
}

}  // namespace

io::Task<void> resume_batch(Exchange& x, ShardTools tools, Pending pending) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kBatchKind, pending.id));
    if (!record.ok()) co_return;
    auto batch = Json::parse(record->body);
    if (!batch.ok()) co_return;
    const std::string file = string_of(*batch, "input_file_id").value_or("");
    const std::string endpoint = string_of(*batch, "endpoint").value_or("");
    BatchWork work(tools, *std::move(batch), file, endpoint);
    if (pending.give_up) co_return co_await work.give_up(x);
    co_await work.run(x);
}

io::Task<void> serve_batches(Exchange& x, ShardTools tools) {
    return x.http().method == "POST" ? create(x, tools) : list(x);
}

io::Task<void> serve_batch(Exchange& x, std::string id) {
    auto batch = co_await load(x, std::move(id));
    if (!batch.ok()) co_return co_await x.fail(std::move(batch.error()));
    co_await x.send_json(200, batch->dump());
}

io::Task<void> serve_batch_cancel(Exchange& x, std::string id) {
    auto batch = co_await load(x, id);
    if (!batch.ok()) co_return co_await x.fail(std::move(batch.error()));
    if (const auto job = x.core().jobs.find(job_name(x, id))) {
        job->cancel();
        if (!is_over(status_of(*batch))) {
            batch->set("status", "cancelling");
            batch->set("cancelling_at", x.clock().wall_now().seconds());
        }
    }
    co_await x.send_json(200, batch->dump());
}

}  // namespace nereid::gateway
