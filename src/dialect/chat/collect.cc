// The whole answer, and the model list.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/base64.h"
#include "base/check.h"
#include "dialect/chat/chat.h"
#include "dialect/chat/shapes.h"
#include "dialect/rfc3339.h"

namespace nereid::dialect::chat {
namespace {

struct Call {
    bool begun = false;
    std::string id;
    std::string name;
    std::string arguments;
    bool custom = false;
};

struct Choice {
    std::string text;
    std::string refusal;
    std::string reasoning;
    std::vector<model::TokenLogprob> logprobs;
    std::vector<model::TokenLogprob> refusal_logprobs;
    std::vector<Call> calls;
    std::optional<model::FinishReason> reason;
};

constexpr std::uint32_t kMaxChoices = 1u << 20;
constexpr std::uint32_t kMaxCalls = 1u << 16;

std::string float_bytes(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    if (!values.empty())
        std::memcpy(bytes.data(), values.data(), bytes.size());  // little-endian, as numpy reads it
    return bytes;
}

}  // namespace

struct Collector::State {
    explicit State(ResponseMeta m) : meta(std::move(m)) {}

    Choice& choice(std::uint32_t index) {
        CHECK_MSG(index < kMaxChoices, "choice index out of range");
        if (index >= choices.size()) choices.resize(index + 1);
        return choices[index];
    }

    // Nothing follows the end of a choice: as in the stream.
    void on(const model::TextDelta& e) {
        Choice& c = choice(e.choice);
        if (c.reason) return;
        // Completions have no place for a refusal.
        const bool refusal = e.refusal && meta.endpoint != model::Endpoint::kCompletions;
        (refusal ? c.refusal : c.text) += e.text;
        if (!meta.logprobs) return;
        auto& logprobs = refusal ? c.refusal_logprobs : c.logprobs;
        logprobs.insert(logprobs.end(), e.logprobs.begin(), e.logprobs.end());
    }
    void on(const model::ReasoningDelta& e) {
        Choice& c = choice(e.choice);
        if (!c.reason) c.reasoning += e.text;
    }
    void on(const model::ToolCallDelta& e) {
        Choice& c = choice(e.choice);
        if (c.reason) return;
        CHECK_MSG(e.index < kMaxCalls, "tool call index out of range");
        if (e.index >= c.calls.size()) c.calls.resize(e.index + 1);
        Call& call = c.calls[e.index];
        if (!call.begun) call = {true, e.id, e.name, {}, e.custom};
        call.arguments += e.arguments;
    }
    void on(const model::ChoiceEnd& e) {
        Choice& c = choice(e.choice);
        if (!c.reason) c.reason = e.reason;
    }
    void on(const model::EmbeddingOut& e) {
        CHECK_MSG(e.index < kMaxChoices, "embedding index out of range");
        if (e.index >= embeddings.size()) embeddings.resize(e.index + 1);
        embeddings[e.index] = e.values;
    }
    void on(const model::Done& e) { usage = e.usage; }
    void on(const model::Failed& e) { error = e.error; }
    void on(const model::Start&) {}

    void write_call(JsonWriter& w, const Call& call, std::size_t choice_index,
                    std::size_t index) const {
        const std::string_view kind = call.custom ? "custom" : "function";
        w.begin_object().key("id");
        w.value(call.id.empty() ? fmt::format("call_{}_{}_{}", meta.id, choice_index, index)
                                : call.id);
        w.member("type", kind).key(kind).begin_object().member("name", call.name);
        if (call.custom)
            w.member("input", call.arguments);
        else
            w.member("arguments", call.arguments.empty() ? std::string("{}") : call.arguments);
        w.end_object().end_object();
    }

    void write_chat_choice(JsonWriter& w, const Choice& c, std::size_t index) const {
        w.begin_object()
            .member("index", static_cast<std::uint64_t>(index))
            .key("message")
            .begin_object();
        w.member("role", "assistant").key("content");
        if (c.text.empty() && (!c.calls.empty() || !c.refusal.empty()))
            w.null();
        else
            w.value(c.text);
        w.key("refusal");
        if (c.refusal.empty())
            w.null();
        else
            w.value(c.refusal);
        if (!c.reasoning.empty()) w.member("reasoning_content", c.reasoning);
        if (!c.calls.empty() && meta.legacy_functions) {
            const Call& call = c.calls[0];
            w.key("function_call").begin_object().member("name", call.name);
            w.member("arguments", call.arguments.empty() ? "{}" : call.arguments).end_object();
        } else if (!c.calls.empty()) {
            w.key("tool_calls").begin_array();
            for (std::size_t i = 0; i < c.calls.size(); ++i) write_call(w, c.calls[i], index, i);
            w.end_array();
        }
        w.end_object().key("logprobs");
        if (meta.logprobs) {
            write_choice_logprobs(w, c.logprobs, c.refusal_logprobs);
        } else {
            w.null();
        }
        w.member("finish_reason", finish_name(*c.reason, meta.legacy_functions)).end_object();
    }

    void write_completion_choice(JsonWriter& w, const Choice& c, std::size_t index) const {
        const std::size_t prompt = meta.n == 0 ? 0 : index / meta.n;
        const bool echo = prompt < meta.echo.size();
        w.begin_object().member("index", static_cast<std::uint64_t>(index));
        w.member("text", echo ? meta.echo[prompt] + c.text : c.text).key("logprobs");
        if (meta.logprobs) {
            std::vector<model::TokenLogprob> entries;
            if (echo && prompt < meta.echo_logprobs.size()) entries = meta.echo_logprobs[prompt];
            entries.insert(entries.end(), c.logprobs.begin(), c.logprobs.end());
            write_completion_logprobs(w, entries, 0);
        } else {
            w.null();
        }
        w.member("finish_reason", finish_name(*c.reason, meta.legacy_functions)).end_object();
    }

    std::string embeddings_body() const {
        std::string out;
        JsonWriter w(out);
        w.begin_object().member("object", "list").key("data").begin_array();
        for (std::size_t i = 0; i < embeddings.size(); ++i) {
            w.begin_object()
                .member("object", "embedding")
                .member("index", static_cast<std::uint64_t>(i))
                .key("embedding");
            if (meta.encoding_format == "base64") {
                w.value(base64_encode(float_bytes(embeddings[i])));
            } else {
                w.begin_array();
                for (const float v : embeddings[i]) w.value(v);
                w.end_array();
            }
            w.end_object();
        }
        w.end_array().member("model", meta.model).key("usage").begin_object();
        w.member("prompt_tokens", usage->prompt_tokens)
            .member("total_tokens", usage->prompt_tokens)
            .end_object()
            .end_object();
        return out;
    }

    Result<std::string> body() const {
        if (error) return *error;
        if (!usage) return err(Code::kInternal, "the answer is not complete");
        if (meta.endpoint == model::Endpoint::kEmbeddings) return embeddings_body();
        if (choices.empty() ||
            !std::ranges::all_of(choices, [](const Choice& c) { return c.reason.has_value(); })) {
            return err(Code::kInternal, "the answer ended without a finish reason");
        }
        const bool chat = meta.endpoint != model::Endpoint::kCompletions;
        std::string out;
        JsonWriter w(out);
        w.begin_object()
            .member("id", meta.id)
            .member("object", chat ? "chat.completion" : "text_completion");
        w.member("created", meta.created).member("model", meta.model).key("choices").begin_array();
        for (std::size_t i = 0; i < choices.size(); ++i) {
            if (chat)
                write_chat_choice(w, choices[i], i);
            else
                write_completion_choice(w, choices[i], i);
        }
        w.end_array().key("usage");
        write_usage(w, *usage);
        if (!meta.system_fingerprint.empty())
            w.member("system_fingerprint", meta.system_fingerprint);
        if (meta.service_tier) w.member("service_tier", "default");
        w.end_object();
        return out;
    }

    ResponseMeta meta;
    std::vector<Choice> choices;
    std::vector<std::vector<float>> embeddings;
    std::optional<model::Usage> usage;
    std::optional<Error> error;
};

Collector::Collector(ResponseMeta meta) : state_(std::make_unique<State>(std::move(meta))) {}
Collector::~Collector() = default;

void Collector::on(const model::Event& event) {
    if (state_->usage || state_->error) return;  // nothing follows Done or Failed
    std::visit([&](const auto& e) { state_->on(e); }, event);
}

Result<std::string> Collector::body() const { return state_->body(); }

// ---------------------------------------------------------------- models

namespace {

// The union of OpenAI's and Anthropic's model objects: satisfies both SDKs.
void write_model(JsonWriter& w, const ModelCard& model) {
    w.begin_object()
        .member("id", model.id)
        .member("object", "model")
        .member("created", model.created);
    w.member("owned_by", model.owned_by).member("type", "model").member("display_name", model.id);
    w.member("created_at", rfc3339(model.created)).member("lifecycle", "active");
    if (model.context != 0) {
        w.member("max_model_len", model.context);  // vLLM's name; opencode and others read it
        w.member("max_input_tokens", model.context).member("max_tokens", model.context);
    }
    if (model.capabilities.is_object()) w.member("capabilities", model.capabilities);
    w.end_object();
}

}  // namespace

std::string models_body(std::span<const ModelCard> models, bool has_more) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("object", "list").key("data").begin_array();
    for (const ModelCard& model : models) write_model(w, model);
    w.end_array().member("has_more", has_more).key("first_id");
    if (models.empty())
        w.null();
    else
        w.value(models.front().id);
    w.key("last_id");
    if (models.empty())
        w.null();
    else
        w.value(models.back().id);
    w.end_object();
    return out;
}

std::string model_body(const ModelCard& model) {
    std::string out;
    JsonWriter w(out);
    write_model(w, model);
    return out;
}

}  // namespace nereid::dialect::chat
