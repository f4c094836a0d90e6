#include "gateway/generate.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/hash.h"
#include "dialect/chat/chat.h"
#include "dialect/overflow.h"
#include "gateway/attachments.h"
#include "gateway/responder.h"
#include "gateway/subtask.h"
#include "gateway/token_plan.h"
#include "gateway/token_request.h"
#include "model/attachments.h"
#include "store/offload.h"

namespace nereid::gateway {
namespace {

namespace chat = dialect::chat;

Result<model::Request> parse(Exchange& x, const Json& body) {
    const chat::ParseLimits limits{.max_n = static_cast<std::uint32_t>(x.options().max_n),
                                   .strict_unknown_fields = x.options().strict_fields};
    switch (x.record.route) {
        case Route::kCompletions:
            return chat::parse_completion(body, limits);
        case Route::kEmbeddings:
            return chat::parse_embeddings(body, limits);
        default:
            return chat::parse_chat(body, limits);
    }
}

std::string_view id_prefix(model::Endpoint endpoint) {
    switch (endpoint) {
        case model::Endpoint::kCompletions:
            return "cmpl";
        case model::Endpoint::kEmbeddings:
            return "embd";
        default:
            return "chatcmpl";
    }
}

class ChatForm final : public Form {
  public:
    ChatForm(const model::Request& r, std::string id, WallTime now) {
        meta_.id = std::move(id);
        meta_.model = r.model;
        meta_.created = now.seconds();
        meta_.include_usage = r.include_usage;
        meta_.logprobs = r.logprobs;
        meta_.endpoint = r.endpoint;
        meta_.encoding_format = r.encoding_format;
        meta_.service_tier = chat::names_service_tier(r);
        meta_.legacy_functions = r.legacy_functions;
    }
    std::unique_ptr<dialect::Encoder> encoder(RunFacts facts) override {
        return std::make_unique<chat::StreamEncoder>(with(std::move(facts)));
    }
    std::unique_ptr<dialect::Whole> whole(RunFacts facts) override {
        return std::make_unique<chat::Collector>(with(std::move(facts)));
    }

  private:
    chat::ResponseMeta with(RunFacts facts) {
        meta_.system_fingerprint = std::move(facts.system_fingerprint);
        meta_.n = facts.choices;
        meta_.echo = std::move(facts.echo);
        return std::move(meta_);
    }
    chat::ResponseMeta meta_;
};

// Same weights, same layout: same fingerprint.
std::string fingerprint(const model::EngineInfo& info) {
    return "fp_" + to_hex(std::span(info.model_digest).first(5));
}

// Of prompt: some 4,000 tokens, which take 10 ms to render and tokenise.
constexpr std::size_t kLongPrompt = 16u << 10;

bool is_long(const model::Request& request) {
    std::size_t bytes = 0;
    for (const model::Message& m : request.messages) {
        bytes += m.reasoning.size();
        for (const model::ToolCall& call : m.tool_calls) bytes += call.arguments.size();
        for (const model::Part& part : m.parts) {
            if (const auto* text = std::get_if<model::TextPart>(&part)) bytes += text->text.size();
        }
        if (bytes >= kLongPrompt) return true;
    }
    for (const auto& prompt : request.prompts) {
        if (const auto* text = std::get_if<std::string>(&prompt)) bytes += text->size();
    }
    return bytes >= kLongPrompt;
}

// What planning reads, owned: it may go on when the request is gone.
struct Planning {
    model::Request request;
    model::EngineInfo info;
    text::TextModel text;
    model::Namespace kv_namespace = {};
};

// A long prompt is planned beside the loop. `request` comes back as plan_tokens leaves it.
io::Task<Result<TokenPlan>> plan_request(Exchange& x, ShardTools tools, ShardModel& m,
                                         const model::EngineInfo& info, model::Request& request) {
    const model::Namespace ns = m.kv_namespace(x.record.key, request.cache_salt, info);
    const auto plan = [limit = m.entry->context_tokens, seed = tools.prng.next() >> 1,
                       family = m.family](model::Request& r, const text::TextModel& text,
                                          const model::EngineInfo& engine,
                                          const model::Namespace& name) {
        return plan_tokens(r, {.text = text,
                               .info = engine,
                               .context_limit = limit,
                               .kv_namespace = name,
                               .seed = seed,
                               .family = family});
    };
    if (x.core().helper == nullptr || !is_long(request))
        co_return plan(request, m.entry->text, info, ns);
    const auto job =
        std::make_shared<Planning>(Planning{std::move(request), info, m.entry->text, ns});
    auto planned = co_await store::offload(*x.core().helper, x.loop(), [job, plan] {
        return plan(job->request, job->text, job->info, job->kv_namespace);
    });
    request = std::move(job->request);
    co_return planned;
}

io::Task<void> run_tokens(Exchange& x, ShardTools tools, ShardModel& m, model::Request request,
                          Form& form) {
    const auto info = m.engine();
    if (!info.ok()) {
        co_await x.fail(info.error());
        co_return;
    }
    if ((*info)->images) {
        auto brought = co_await bring_images(x, tools.network, request);
        if (!brought.ok()) co_return co_await x.fail(std::move(brought.error()));
    } else {
        note_images(request);
    }
    if (request.priority) x.record.ignored_fields.emplace_back("priority");
    const TimePoint begin = x.loop().now();
    const std::string system_fingerprint = fingerprint(**info);
    auto plan = co_await plan_request(x, tools, m, **info, request);
    x.record.render = x.loop().now() - begin;
    if (!plan.ok()) {
        co_await x.fail(std::move(plan.error()));
        co_return;
    }
    x.record.dropped_messages = plan->dropped_messages;
    RunFacts facts{.system_fingerprint = system_fingerprint,
                   .choices = plan->n,
                   .echo = std::move(plan->echo),
                   .prompt_tokens = plan->prompt_tokens.empty() ? 0 : plan->prompt_tokens[0]};
    Responder responder(x, form, std::move(facts), request.stream);
    TokenRequest tokens(x, m, request, *std::move(plan), responder, hex_id(tools.prng));
    co_await tokens.run();
}

// What a caller names divides its own cache: the same name of another tenant is another salt.
std::string salt_of(const Exchange& x, const std::string& named) {
    if (x.record.key.empty()) return named;
    return to_hex(hmac_sha256(as_bytes(x.record.key), as_bytes(named)));
}

// Some servers end calls with "stop" (A11). `calling`: the choices that have called something.
void mend_reasons(std::vector<model::Event>& events, std::set<std::uint32_t>& calling) {
    for (model::Event& event : events) {
        if (const auto* call = std::get_if<model::ToolCallDelta>(&event)) {
            calling.insert(call->choice);
        } else if (auto* end = std::get_if<model::ChoiceEnd>(&event)) {
            if (end->reason == model::FinishReason::kStop && calling.contains(end->choice))
                end->reason = model::FinishReason::kToolCalls;
        }
    }
}

// The server gave all of the `room` that it named, unless it says that it gave less.
void mark_context_end(std::vector<model::Event>& events, TokenCount room) {
    TokenCount given = 0;
    for (const model::Event& event : events) {
        if (const auto* done = std::get_if<model::Done>(&event))
            given = done->usage.completion_tokens;
    }
    for (model::Event& event : events) {
        if (auto* end = std::get_if<model::ChoiceEnd>(&event))
            end->context_full =
                end->reason == model::FinishReason::kLength && (given == 0 || given >= room);
    }
}

// Clients of Messages name the most output they can think of (A61), and a server that refuses it
// says what there is room for. Nullopt: `events` are no such refusal.
std::optional<TokenCount> room_for_less(const model::Request& request,
                                        const std::vector<model::Event>& events) {
    if (request.endpoint != model::Endpoint::kMessages || events.size() != 1) return std::nullopt;
    const auto* failed = std::get_if<model::Failed>(&events[0]);
    if (failed == nullptr || failed->error.code != Code::kContextLength) return std::nullopt;
    const dialect::Overflow said = dialect::read_overflow(failed->error.message);
    if (said.prompt == 0 || said.prompt >= said.context) return std::nullopt;
    const auto room = static_cast<TokenCount>(said.context - said.prompt);
    if (room >= request.max_output_tokens.value_or(0)) return std::nullopt;
    return room;
}

io::Task<void> run_text(Exchange& x, ShardTools tools, ShardModel& m, model::Request request,
                        Form& form) {
    auto brought = co_await bring_images(x, tools.network, request);
    if (!brought.ok()) co_return co_await x.fail(std::move(brought.error()));
    // How long the prompt is, that server knows.
    if (request.drop_oldest_turns) x.record.ignored_fields.emplace_back("truncation");
    Responder responder(x, form, {.system_fingerprint = {}, .choices = request.n, .echo = {}},
                        request.stream);
    request.model = m.entry->id;  // an alias means nothing to the server
    if (!request.cache_salt.empty()) request.cache_salt = salt_of(x, request.cache_salt);
    if (request.priority && !x.options().pass_priority) {
        request.priority.reset();
        x.record.ignored_fields.emplace_back("priority");
    }
    std::set<std::uint32_t> calling;  // choices
    std::optional<TokenCount> room;   // what there is, where more was asked for
    const auto give = [&](std::vector<model::Event>& events) {
        if (request.tool_choice.kind != model::ToolChoice::Kind::kNamed)
            mend_reasons(events, calling);
        if (room) mark_context_end(events, *room);
        return responder.on_events(events);
    };
    const auto first_try = [&](std::vector<model::Event>& events) -> io::Task<bool> {
        room = room_for_less(request, events);
        if (room) co_return false;
        co_return co_await give(events);
    };
    co_await m.backend->run(request, first_try, &x.record.worker);
    if (!room) co_return;
    request.max_output_tokens = *room;
    co_await m.backend->run(request, give, &x.record.worker);
}

Result<void> admit(Exchange& x) {
    auto admitted = x.admit();
    if (!admitted.ok()) {
        x.core().probe.rejected(admitted.error().code == Code::kRateLimited ? Rejected::kKey
                                : x.core().admission.draining()             ? Rejected::kDraining
                                                                            : Rejected::kQueue);
    }
    return admitted;
}

io::Task<void> run_admitted(Exchange& x, ShardTools tools, ShardModel& m, model::Request request,
                            Form& form) {
    auto read = co_await bring_documents(x, tools.network, tools.pdf, request);
    if (!read.ok()) co_return co_await x.fail(std::move(read.error()));
    if (m.worker)
        co_await run_tokens(x, tools, m, std::move(request), form);
    else
        co_await run_text(x, tools, m, std::move(request), form);
}

}  // namespace

// The disconnect is told from the loop, never on the stack of `work`.
io::Task<void> run_until_gone(Exchange& x, io::Task<void> work) {
    Subtask task;
    const auto cancel = std::make_shared<Subtask*>(&task);
    x.reply().on_disconnect([weak = std::weak_ptr<Subtask*>(cancel)] {
        if (const auto alive = weak.lock()) (*alive)->cancel();
    });
    task.start(std::move(work));
    if (!co_await task.join()) x.record.end = kEndClientGone;
}

std::string hex_id(Prng& prng) {
    return fmt::format("{:016x}{:08x}", prng.next(), prng.next() >> 32);
}

std::string make_id(std::string_view prefix, Prng& prng) {
    return fmt::format("{}-{}", prefix, hex_id(prng));
}

Result<Json> parse_body(Exchange& x) {
    auto body = Json::parse(x.http().body);
    if (body.ok()) return body;
    return err(Code::kInvalidArgument,
               "We could not parse the JSON body of your request: " + body.error().message + ".");
}

io::Task<void> refuse(Exchange& x, Error error) {
    x.core().probe.parse_error();
    return x.fail(std::move(error));
}

io::Task<Result<TokenCount>> count_prompt(Exchange& x, ShardTools tools, ShardModel& m,
                                          model::Request request) {
    // Counts come in bursts and are cheap, but for what has to be fetched or read.
    if (!model::documents_of(request).empty() || !model::images_of(request).empty())
        CO_TRY_VOID(admit(x));
    CO_TRY_VOID(co_await bring_documents(x, tools.network, tools.pdf, request));
    if (!m.worker) {
        CO_TRY_VOID(co_await bring_images(x, tools.network, request));
        request.model = m.entry->id;
        co_return co_await m.backend->count(request);
    }
    CO_TRY(const model::EngineInfo* info, m.engine());
    if (info->images)
        CO_TRY_VOID(co_await bring_images(x, tools.network, request));
    else
        note_images(request);
    if (x.core().helper == nullptr || !is_long(request))
        co_return plan_count(std::move(request), m.entry->text, *info);
    const auto job = std::make_shared<Planning>(Planning{std::move(request), *info, m.entry->text});
    co_return co_await store::offload(*x.core().helper, x.loop(), [job] {
        return plan_count(std::move(job->request), job->text, job->info);
    });
}

io::Task<void> generate(Exchange& x, ShardTools tools) {
    auto body = parse_body(x);
    auto request = body.ok() ? parse(x, *body) : Result<model::Request>(std::move(body.error()));
    if (!request.ok()) {
        co_await refuse(x, std::move(request.error()));
        co_return;
    }
    ChatForm form(*request, make_id(id_prefix(request->endpoint), tools.prng), x.loop().wall_now());
    co_await run_request(x, tools, *std::move(request), form);
}

io::Task<void> run_request(Exchange& x, ShardTools tools, model::Request request, Form& form) {
    x.record.model = request.model;
    x.record.stream = request.stream;
    x.record.ignored_fields = std::move(request.ignored_fields);
    ShardModel* m = tools.models.find(request.model);
    if (m == nullptr) {
        x.record.model.clear();  // a name of the caller's invention is no label and no log text
        co_await x.fail(no_such_model(request.model));
        co_return;
    }
    if (auto admitted = admit(x); !admitted.ok())
        co_return co_await x.fail(std::move(admitted.error()));
    co_await run_until_gone(x, run_admitted(x, tools, *m, std::move(request), form));
}

}  // namespace nereid::gateway
