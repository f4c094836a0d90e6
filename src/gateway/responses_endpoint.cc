#include "gateway/responses_endpoint.h"

#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "gateway/json_list.h"
#include "gateway/pending.h"
#include "gateway/stored_response.h"
#include "gateway/stored_stream.h"
#include "gateway/subtask.h"

namespace nereid::gateway {
namespace {

namespace responses = dialect::responses;
using CreatePtr = std::shared_ptr<responses::Create>;

std::string status_of(const Json& response) {
    const Json* s = response.find("status");
    return s != nullptr && s->is_string() ? s->as_string() : std::string();
}
bool is_background(const Json& response) {
    const Json* b = response.find("background");
    return b != nullptr && *b == Json(true);
}
bool is_running(std::string_view status) { return status == "queued" || status == "in_progress"; }

class ResponsesForm final : public Form {
  public:
    ResponsesForm(Exchange& x, CreatePtr create, responses::ResponseMeta meta)
        : x_(x), create_(std::move(create)), meta_(std::move(meta)), seal_(x.seal()) {
        io::Loop& loop = x.loop();
        meta_.now = [&loop] { return loop.wall_now().seconds(); };
    }

    std::unique_ptr<dialect::Encoder> encoder(RunFacts) override { return make(); }
    std::unique_ptr<dialect::Whole> whole(RunFacts) override { return make(); }
    bool keeps_state() const override { return create_->store || !create_->conversation.empty(); }

    io::Task<void> before_end() override {
        // Nobody knows the name of what failed, but for the caller of a background response.
        if (answer_->failed() && !create_->background) co_return;
        if (create_->background && !co_await owns_pending(x_, meta_.id)) {
            kept_ = lost_ = true;  // by another gateway
            co_return;
        }
        const std::string object = answer_->result();
        std::vector<store::Change> changes;
        if (create_->store) {
            changes.emplace_back();
            changes[0].record = response_record(x_, meta_.id, object, *create_);
        }
        if (!create_->conversation.empty() && !answer_->failed()) add_items(object, changes);
        if (create_->background) forget_pending(x_, meta_.id, changes);
        const auto kept = co_await x_.core().records->write(x_.loop(), std::move(changes));
        if (!kept.ok()) {
            x_.core().log.error("a response could not be stored",
                                {{"id", meta_.id}, {"error", kept.error().message}});
        }
        kept_ = true;
    }
    bool kept() const { return kept_; }
    // Another process has taken the response over, or ended it.
    bool lost() const { return lost_; }

  private:
    std::unique_ptr<responses::Answer> make() {
        auto answer = responses::make_answer(meta_, *create_, seal_);
        answer_ = answer.get();
        return answer;
    }
    // What this turn adds to its conversation.
    void add_items(const std::string& object, std::vector<store::Change>& changes) const {
        const auto response = parse_stored(object);
        if (!response.ok()) return;
        const auto add = [&](const Json& item) {
            store::Change change;
            change.record = item_record(x_, create_->conversation, item);
            changes.push_back(std::move(change));
        };
        for (const Json& item : create_->input) add(item);
        for (const Json& item : response->find("output")->as_array()) add(item);
    }

    Exchange& x_;
    CreatePtr create_;
    responses::ResponseMeta meta_;
    dialect::Seal seal_;
    responses::Answer* answer_ = nullptr;  // owned by the responder
    bool kept_ = false;
    bool lost_ = false;
};

// False: a background response that was not ours to end any more.
io::Task<bool> run(Exchange& x, ShardTools tools, CreatePtr create, responses::ResponseMeta meta) {
    const std::string id = meta.id;
    ResponsesForm form(x, create, meta);
    co_await run_request(x, tools, std::move(create->request), form);
    if (!create->background || form.kept()) co_return !form.lost();
    if (!co_await owns_pending(x, id)) co_return false;
    // It ended before its answer did: refused, or cancelled.
    const bool cancelled = x.reply().disconnected();
    std::vector<store::Change> changes(1);
    Error error = x.failure().value_or(Error{Code::kInternal, "The response ended early."});
    const std::string object = responses::response_object(
        meta, *create, cancelled ? "cancelled" : "failed", cancelled ? nullptr : &error);
    changes[0].record = response_record(x, id, object, *create);
    forget_pending(x, id, changes);
    (void)co_await x.core().records->write(x.loop(), std::move(changes));
    co_return true;
}

io::Task<void> run_recorded(Exchange& x, ShardTools tools, CreatePtr create,
                            responses::ResponseMeta meta,
                            std::shared_ptr<std::shared_ptr<Recording>> recording) {
    StoredStream stream(x, meta.id, *recording);
    bool ours = false;
    {
        Subtask parts;
        if (x.core().records_shared) parts.start(stream.keep_parts());
        ours = co_await run(x, tools, create, meta);
    }
    co_await stream.close(ours);
}

io::Task<void> start_background(Exchange& x, ShardTools tools, CreatePtr create,
                                responses::ResponseMeta meta) {
    meta.queued = true;
    const bool stream = create->request.stream;
    create->request.stream = true;  // it is recorded as a stream, however it is asked for
    const std::string queued = responses::response_object(meta, *create, "queued");
    std::vector<store::Change> changes(1);
    changes[0].record = response_record(x, meta.id, queued, *create);
    note_pending(x, {.id = meta.id, .request = x.http().body}, changes);
    auto kept = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    const std::string name = job_name(x, meta.id);
    Core& core = x.core();
    // The job's recording is only known once the job is; the work begins after that.
    const auto recording = std::make_shared<std::shared_ptr<Recording>>();
    auto job = tools.jobs.start(
        x, Route::kResponses, {}, make_id("req", tools.prng),
        [tools, create, meta, recording](Exchange& inner) {
            return run_recorded(inner, tools, create, meta, recording);
        },
        [&core, name] { core.jobs.remove(name); });
    *recording = job->recording();
    core.jobs.add(name, job, true);
    x.record.model = meta.model;
    if (!stream) co_return co_await x.send_json(200, queued);
    co_await follow(x, job);
}

Result<CreatePtr> parse(Exchange& x, std::string_view id) {
    TRY(const Json body, parse_body(x));
    TRY(responses::Create create,
        responses::parse_create(body, id, {.strict_unknown_fields = x.options().strict_fields}));
    return std::make_shared<responses::Create>(std::move(create));
}

// The request with its history: what both answering and counting need.
io::Task<Result<CreatePtr>> prepare(Exchange& x, ShardTools tools, std::string id) {
    auto create = parse(x, id);
    if (!create.ok()) co_return create;
    if (tools.models.find((*create)->request.model) == nullptr)
        co_return no_such_model((*create)->request.model);
    Json::Array history;
    if (!(*create)->previous_response_id.empty() || !(*create)->conversation.empty()) {
        auto loaded = co_await load_history(x, **create);
        if (!loaded.ok()) co_return loaded.error();
        history = *std::move(loaded);
    }
    co_await resolve_references(x, **create, history);
    auto added = responses::add_messages(**create, history, x.seal());
    if (!added.ok()) co_return added.error();
    co_return create;
}

// A response that nobody runs any more, as it is shown and kept.
void end_as(Json& response, std::string_view status) {
    response.set("status", status);
    if (status != "failed") return;
    response.set("error", Json(Json::Object{{"code", "server_error"},
                                            {"message",
                                             "The server died while it ran, and could not run it "
                                             "again."}}));
}

// Writes the end of a response that has no job.
io::Task<void> keep_end(Exchange& x, std::string id, StoredResponse stored,
                        std::string_view status) {
    end_as(stored.response, status);
    std::vector<store::Change> changes(1);
    changes[0].record = response_record(x, id, stored);
    forget_pending(x, id, changes);
    (void)co_await x.core().records->write(x.loop(), std::move(changes));
}

io::Task<void> serve_get(Exchange& x, std::string id) {
    auto stored = co_await load_response(x, id, {});
    if (!stored.ok()) co_return co_await x.fail(std::move(stored.error()));
    const std::shared_ptr<Job> job = x.core().jobs.find(job_name(x, id));
    const std::string status = status_of(stored->response);
    if (is_running(status) && job != nullptr) {
        const Recording::View view = job->recording()->from(0);
        stored->response.set("status", view.bytes.empty() ? "queued" : "in_progress");
    } else if (is_running(status)) {
        const auto owner = co_await pending_owner(x, id);
        if (!owner) {
            end_as(stored->response, "failed");
        } else if (co_await has_parts(x, id, *owner)) {
            stored->response.set("status", "in_progress");
        }
    }
    co_await x.send_json(200, stored->response.dump());
}

io::Task<void> serve_replay(Exchange& x, std::string id) {
    std::uint64_t skip = 0;
    if (const auto after = query_value(x.http().query, "starting_after")) {
        const auto [end, error] =
            std::from_chars(after->data(), after->data() + after->size(), skip);
        if (error != std::errc{} || end != after->data() + after->size())
            co_return co_await x.fail({Code::kInvalidArgument,
                                       "`starting_after` must be a sequence number.",
                                       "starting_after"});
        if (skip < std::numeric_limits<std::uint64_t>::max()) ++skip;  // numbers begin with 0
    }
    x.record.stream = true;
    std::shared_ptr<Job> job = x.core().jobs.find(job_name(x, id));
    if (job == nullptr) {
        auto stored = co_await load_response(x, id, {});
        if (!stored.ok()) co_return co_await x.fail(std::move(stored.error()));
        if (!is_background(stored->response)) {
            co_return co_await x.fail(
                {Code::kInvalidArgument,
                 "Only the streams of background responses can be read again.", "stream"});
        }
        co_await run_until_gone(x, follow_stored(x, id, skip, job));
    }
    if (job != nullptr) co_await follow(x, job, skip);
}

// Compaction: the model writes a summary, which only we can read again.
constexpr std::string_view kSummarise =
    "Summarise the conversation so far for yourself: what was asked, what was done and found, what "
    "is decided, and what is left to do. Keep names, paths, numbers and code that matter. Write "
    "the "
    "summary only.";
constexpr std::string_view kSummaryHead = "Summary of the conversation so far:\n\n";

class Summary final : public dialect::Whole {
  public:
    Summary(std::string id, std::int64_t created, dialect::Seal seal)
        : id_(std::move(id)), created_(created), seal_(std::move(seal)) {}

    void on(const model::Event& event) override {
        if (const auto* t = std::get_if<model::TextDelta>(&event); t != nullptr && !t->refusal)
            text_ += t->text;
        if (const auto* d = std::get_if<model::Done>(&event)) usage_ = d->usage;
        if (const auto* f = std::get_if<model::Failed>(&event)) error_ = f->error;
    }
    Result<std::string> body() const override {
        if (error_) return *error_;
        if (!usage_) return err(Code::kInternal, "the summary is not complete");
        // A client would go on with nothing for its history.
        if (text_.empty()) return err(Code::kInternal, "the model wrote no summary");
        std::string out;
        JsonWriter w(out);
        w.begin_object().member("id", "resp_" + id_).member("object", "response.compaction");
        w.member("created_at", created_).key("output").begin_array().begin_object();
        w.member("id", "cmp_" + id_).member("type", "compaction");
        w.member("encrypted_content", seal_.hide(std::string(kSummaryHead) + text_)).end_object();
        w.end_array().key("usage");
        responses::write_usage(w, *usage_);
        w.end_object();
        return out;
    }

  private:
    std::string id_;
    std::int64_t created_;
    dialect::Seal seal_;
    std::string text_;
    std::optional<model::Usage> usage_;
    std::optional<Error> error_;
};

class CompactForm final : public Form {
  public:
    explicit CompactForm(std::unique_ptr<Summary> summary) : summary_(std::move(summary)) {}
    std::unique_ptr<dialect::Encoder> encoder(RunFacts) override { return nullptr; }  // no stream
    std::unique_ptr<dialect::Whole> whole(RunFacts) override { return std::move(summary_); }

  private:
    std::unique_ptr<Summary> summary_;
};

// Ends a job of this caller and waits until nothing of it will be written any more.
io::Task<void> end_job(Exchange& x, std::string id) {
    while (const auto job = x.core().jobs.find(job_name(x, id))) {
        job->cancel();
        const auto view = job->recording()->from(0);
        if (view.ended)
            co_await x.loop().sleep_for(1ms);  // its last record is being written
        else
            co_await job->recording()->changed(x.loop(), view.version);
    }
}

io::Task<void> serve_delete(Exchange& x, std::string id) {
    auto stored = co_await load_response(x, id, {});
    if (!stored.ok()) co_return co_await x.fail(std::move(stored.error()));
    co_await end_job(x, id);
    std::vector<store::Change> changes(2);
    changes[0] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kResponseKind, id)}};
    changes[1] = {.op = store::Change::Op::kRemove, .record = {.key = stored_stream_key(x, id)}};
    forget_pending(x, id, changes);
    auto removed = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
    std::string out;
    JsonWriter(out)
        .begin_object()
        .member("id", id)
        .member("object", "response.deleted")
        .member("deleted", true)
        .end_object();
    co_await x.send_json(200, std::move(out));
}

}  // namespace

io::Task<void> serve_responses(Exchange& x, ShardTools tools) {
    const std::string id = hex_id(tools.prng);
    auto create = co_await prepare(x, tools, id);
    if (!create.ok()) co_return co_await refuse(x, std::move(create.error()));
    responses::ResponseMeta meta{.id = "resp_" + id,
                                 .model = (*create)->request.model,
                                 .created = x.loop().wall_now().seconds()};
    if ((*create)->background)
        co_return co_await start_background(x, tools, *std::move(create), std::move(meta));
    co_await run(x, tools, *std::move(create), std::move(meta));
}

io::Task<void> serve_response(Exchange& x, ShardTools, std::string id) {
    if (x.http().method == "DELETE") return serve_delete(x, std::move(id));
    if (query_value(x.http().query, "stream").value_or("") == "true")
        return serve_replay(x, std::move(id));
    return serve_get(x, std::move(id));
}

io::Task<void> serve_response_cancel(Exchange& x, ShardTools, std::string id) {
    auto stored = co_await load_response(x, id, {});
    if (!stored.ok()) co_return co_await x.fail(std::move(stored.error()));
    if (!is_background(stored->response)) {
        co_return co_await x.fail(
            {Code::kInvalidArgument, "Only background responses can be cancelled."});
    }
    const bool waits =
        is_running(status_of(stored->response)) && x.core().jobs.find(job_name(x, id)) == nullptr;
    if (waits && co_await is_pending(x, id)) {
        co_await keep_end(x, id, *std::move(stored), "cancelled");
    } else {
        co_await end_job(x, id);
    }
    co_await serve_get(x, std::move(id));
}

io::Task<void> resume_response(Exchange& x, ShardTools tools, Pending pending,
                               std::shared_ptr<std::shared_ptr<Recording>> recording) {
    auto stored = co_await load_response(x, pending.id, {});
    if (!stored.ok()) co_return;
    x.http().body = std::move(pending.request);
    constexpr std::string_view kPrefix = "resp_";
    auto create = pending.give_up ? Result<CreatePtr>(Error{Code::kInternal, "given up"})
                                  : co_await prepare(x, tools, pending.id.substr(kPrefix.size()));
    if (!create.ok()) {
        co_await keep_end(x, pending.id, *std::move(stored), "failed");
        co_return;
    }
    const Json* created = stored->response.find("created_at");
    responses::ResponseMeta meta{.id = pending.id,
                                 .model = (*create)->request.model,
                                 .created = created == nullptr ? 0 : created->as_int().value_or(0)};
    meta.queued = true;
    (*create)->request.stream = true;
    co_await run_recorded(x, tools, *std::move(create), std::move(meta), std::move(recording));
}

io::Task<void> serve_input_items(Exchange& x, std::string id) {
    auto stored = co_await load_response(x, id, {});
    if (!stored.ok()) co_return co_await x.fail(std::move(stored.error()));
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    auto list = page_of(stored->input, *page);
    if (!list.ok()) co_return co_await x.fail(std::move(list.error()));
    co_await x.send_json(200, *std::move(list));
}

io::Task<void> count_input(Exchange& x, ShardTools tools) {
    auto create = co_await prepare(x, tools, hex_id(tools.prng));
    if (!create.ok()) co_return co_await refuse(x, std::move(create.error()));
    const model::Request& request = (*create)->request;
    x.record.model = request.model;
    auto tokens = co_await count_prompt(x, tools, *tools.models.find(request.model), request);
    if (!tokens.ok()) co_return co_await x.fail(std::move(tokens.error()));
    co_await x.send_json(
        200, fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})", *tokens));
}

io::Task<void> serve_input_tokens(Exchange& x, ShardTools tools) {
    return run_until_gone(x, count_input(x, tools));
}

io::Task<void> serve_compact(Exchange& x, ShardTools tools) {
    const std::string id = hex_id(tools.prng);
    auto create = co_await prepare(x, tools, id);
    if (!create.ok()) co_return co_await refuse(x, std::move(create.error()));
    model::Request& request = (*create)->request;
    request.stream = false;
    request.tools.clear();
    request.tool_choice = {};
    request.format = {};
    request.messages.push_back(
        {.role = model::Role::kUser, .parts = {model::TextPart{std::string(kSummarise)}}});
    CompactForm form(std::make_unique<Summary>(id, x.loop().wall_now().seconds(), x.seal()));
    co_await run_request(x, tools, std::move(request), form);
}

}  // namespace nereid::gateway
