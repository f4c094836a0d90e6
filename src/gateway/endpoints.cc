#include "gateway/endpoints.h"

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "base/utf8.h"
#include "dialect/openai_error.h"
#include "gateway/json_list.h"
#include "gateway/token_plan.h"
#include "model/attachments.h"

namespace nereid::gateway {
namespace {

namespace chat = dialect::chat;

constexpr std::uint32_t kMostModels = 1000;  // on a page; Anthropic's bound

std::unexpected<Error> invalid(std::string message, std::string param) {
    return err(Code::kInvalidArgument, std::move(message), std::move(param));
}

Result<Json> parse_object(std::string_view text) {
    auto body = Json::parse(text);
    if (!body.ok())
        return invalid(
            "We could not parse the JSON body of your request: " + body.error().message + ".", {});
    if (!body->is_object()) return invalid("The body must be a JSON object.", {});
    return body;
}

// The model that a tokenizer request names; it may leave the name out when there is only one.
Result<ShardModel*> tokenizer_model(ShardModels& models, const Json& body) {
    const Json* name = body.find("model");
    ShardModel* m = nullptr;
    if (name == nullptr || name->is_null()) {
        m = models.only();
        if (m == nullptr) return invalid("You must provide a model parameter.", "model");
    } else {
        if (!name->is_string()) return invalid("`model` must be a string.", "model");
        m = models.find(name->as_string());
        if (m == nullptr) return no_such_model(name->as_string());
    }
    if (!m->entry->text.tokenizer)
        return err(Code::kUnsupported, "This model's tokenizer is at its own server, not here.",
                   "model");
    return m;
}

Result<bool> flag(const Json& body, std::string_view name, bool fallback) {
    const Json* v = body.find(name);
    if (v == nullptr || v->is_null()) return fallback;
    if (!v->is_bool())
        return invalid(fmt::format("`{}` must be true or false.", name), std::string(name));
    return v->as_bool();
}

Result<std::vector<TokenId>> tokenize_messages(const Json& body, ShardModel& m) {
    if (!m.entry->text.chat_template)
        return err(Code::kUnsupported, "This model has no chat template.", "messages");
    Json with_model = body;  // the dialect wants a name, this endpoint does not
    with_model.set("model", m.entry->id);
    TRY(model::Request request, chat::parse_chat(with_model));
    if (const auto documents = model::documents_of(request); !documents.empty())
        return err(Code::kUnsupported, "Documents are read for answers and counts only.",
                   documents[0]->path);
    TRY(request.add_generation_prompt, flag(body, "add_generation_prompt", true));
    TRY(text::RenderedPrompt rendered, m.entry->text.chat_template->render(request));
    return std::move(rendered.tokens);
}

Result<std::vector<TokenId>> tokenize(const Json& body, ShardModel& m) {
    const auto given = [&](const char* name) {
        const Json* v = body.find(name);
        return v == nullptr || v->is_null() ? nullptr : v;
    };
    const Json* prompt = given("prompt");
    if (given("messages") != nullptr) {
        if (prompt != nullptr) return invalid("Give `prompt` or `messages`, not both.", "prompt");
        return tokenize_messages(body, m);
    }
    if (prompt == nullptr || !prompt->is_string())
        return invalid("`prompt` must be a string.", "prompt");
    TRY(const bool special, flag(body, "add_special_tokens", true));
    const text::Tokenizer& tokenizer = *m.entry->text.tokenizer;
    return encode_prompt(tokenizer, prompt->as_string(), special && tokenizer.adds_bos());
}

Result<std::string> tokenize_answer(std::string_view http_body, ShardModels& models) {
    TRY(const Json body, parse_object(http_body));
    TRY(ShardModel* const m, tokenizer_model(models, body));
    TRY(const auto tokens, tokenize(body, *m));
    TRY(const bool strings, flag(body, "return_token_strs", false));
    std::string out;
    JsonWriter w(out);
    w.begin_object()
        .member("count", static_cast<std::uint64_t>(tokens.size()))
        .member("max_model_len", m->context());
    w.key("tokens").begin_array();
    for (const TokenId id : tokens) w.value(id);
    w.end_array().key("token_strs");
    if (strings) {
        w.begin_array();
        for (const TokenId id : tokens)
            w.value(m->entry->text.tokenizer->piece(id, text::Special::kParse));
        w.end_array();
    } else {
        w.null();
    }
    w.end_object();
    return out;
}

Result<std::string> detokenize_answer(std::string_view http_body, ShardModels& models) {
    TRY(const Json body, parse_object(http_body));
    TRY(ShardModel* const m, tokenizer_model(models, body));
    const Json* tokens = body.find("tokens");
    if (tokens == nullptr || !tokens->is_array())
        return invalid("`tokens` must be an array of token ids.", "tokens");
    const text::Tokenizer& tokenizer = *m->entry->text.tokenizer;
    std::string text;
    for (const Json& element : tokens->as_array()) {
        const auto id = element.is_number() ? element.as_int() : std::nullopt;
        if (!id || *id < 0 || *id >= static_cast<std::int64_t>(tokenizer.vocab_size())) {
            return invalid(
                fmt::format("`tokens` must hold ids from 0 to {}.", tokenizer.vocab_size() - 1),
                "tokens");
        }
        text += tokenizer.piece(static_cast<TokenId>(*id), text::Special::kParse);
    }
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("prompt", std::string_view(replace_invalid_utf8(text))).end_object();
    return out;
}

io::Task<void> answer(Exchange& x, Result<std::string> body) {
    if (body.ok()) return x.send_json(200, *std::move(body));
    if (body.error().code == Code::kInvalidArgument) x.core().probe.parse_error();
    return x.fail(std::move(body.error()));
}

}  // namespace

io::Task<void> serve_models(Exchange& x, const ShardModels& models) {
    const auto cards = models.cards(x.options());
    const std::string_view query = x.http().query;
    auto page = read_page(query, false, kMostModels);
    if (!page.ok()) return x.fail(std::move(page.error()));
    // OpenAI's clients do not ask for a second page.
    if (!query_value(query, "limit")) page->limit = std::numeric_limits<std::uint32_t>::max();
    const std::vector<std::string_view> ids = [&] {
        std::vector<std::string_view> out;
        for (const auto& card : cards) out.push_back(card.id);
        return out;
    }();
    auto range = range_of(ids, *page);
    if (!range.ok()) return x.fail(std::move(range.error()));
    return x.send_json(
        200, chat::models_body(std::span(cards).subspan(range->begin, range->end - range->begin),
                               range->has_more));
}

io::Task<void> serve_model(Exchange& x, const ShardModels& models, std::string_view id) {
    for (const auto& card : models.cards(x.options())) {
        if (card.id == id) return x.send_json(200, chat::model_body(card));
    }
    return x.fail(no_such_model(id));
}

io::Task<void> serve_tokenize(Exchange& x, ShardModels& models) {
    return answer(x, tokenize_answer(x.http().body, models));
}
io::Task<void> serve_detokenize(Exchange& x, ShardModels& models) {
    return answer(x, detokenize_answer(x.http().body, models));
}

io::Task<void> serve_health(Exchange& x) { return x.send_json(200, R"({"status":"ok"})"); }

io::Task<void> serve_ready(Exchange& x, const ShardModels& models) {
    const bool draining = x.core().admission.draining();
    bool ready = false;
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("models").begin_object();
    for (const ShardModel& m : models.all()) {
        const std::string why = m.not_ready();
        ready = ready || why.empty();
        w.member(m.entry->id, why.empty() ? std::string_view("ready") : std::string_view(why));
    }
    w.end_object();
    ready = ready && !draining;
    w.member("status", ready ? "ready" : draining ? "draining" : "no model is ready").end_object();
    return x.send_json(ready ? 200 : 503, std::move(out));
}

io::Task<void> serve_metrics(Exchange& x, const ShardModels& models) {
    Core& core = x.core();
    core.probe.gauges(core.admission.in_flight(), core.admission.draining(),
                      core.access_log.dropped());
    for (const ShardModel& m : models.all()) {
        if (m.worker) core.probe.engine(m.entry->id, m.worker->name(), m.worker->status());
    }
    return x.send(200, x.headers(ops::kMetricsContentType), core.registry.render());
}

io::Task<void> serve_root(Exchange& x) {
    return x.send_json(
        200,
        R"({"service":"nereid","api":["/v1/chat/completions","/v1/completions","/v1/embeddings","/v1/models"]})");
}

io::Task<void> serve_unknown_route(Exchange& x) {
    x.ended_as("unknown_route");
    return x.send_json(
        404, x.error_json(404,
                          fmt::format("Unknown request URL: {} {}. Please check the URL for typos.",
                                      x.http().method.substr(0, 16), x.http().path.substr(0, 200)),
                          "unknown_url"));
}

io::Task<void> serve_wrong_method(Exchange& x, std::string_view allow) {
    x.ended_as("wrong_method");
    io::Headers headers = x.headers("application/json");
    headers.add("allow", allow);
    return x.send(405, std::move(headers),
                  x.error_json(405,
                               fmt::format("Not allowed to {} on {}; allowed: {}.",
                                           x.http().method.substr(0, 16),
                                           x.http().path.substr(0, 200), allow),
                               "method_not_allowed"));
}

}  // namespace nereid::gateway
