// The stream: one JsonWriter pass per chunk between a prefix and a suffix made once.
#include <algorithm>
#include <set>
#include <vector>

#include "base/check.h"
#include "dialect/chat/chat.h"
#include "dialect/chat/shapes.h"
#include "dialect/openai_error.h"

namespace nereid::dialect::chat {
namespace {

struct Call {
    bool begun = false;
    bool has_arguments = false;
    bool custom = false;
};

struct Choice {
    bool begun = false;
    bool ended = false;
    std::vector<Call> calls;
    std::size_t text_offset = 0;  // completions with logprobs: characters so far
};

// More would be a bug of ours: n is bounded by ParseLimits, prompts too.
constexpr std::uint32_t kMaxChoices = 1u << 20;
constexpr std::uint32_t kMaxCalls = 1u << 16;

}  // namespace

struct StreamEncoder::State {
    explicit State(ResponseMeta m)
        : meta(std::move(m)), chat(meta.endpoint != model::Endpoint::kCompletions) {
        JsonWriter w(head);
        head = "data: ";
        w.begin_object();
        w.member("id", meta.id)
            .member("object", chat ? "chat.completion.chunk" : "text_completion");
        w.member("created", meta.created).member("model", meta.model);
        if (!meta.system_fingerprint.empty())
            w.member("system_fingerprint", meta.system_fingerprint);
        if (meta.service_tier) w.member("service_tier", "default");
        head += ",\"choices\":[";
        // A50: with usage asked for, every chunk but the last says null.
        const std::string_view usage = meta.include_usage ? ",\"usage\":null}\n\n" : "}\n\n";
        open_tail = std::string("]").append(usage);
        unfinished_tail = std::string(",\"finish_reason\":null}").append(open_tail);
    }

    Choice& choice(std::uint32_t index) {
        CHECK_MSG(index < kMaxChoices, "choice index out of range");
        if (index >= choices.size()) choices.resize(index + 1);
        return choices[index];
    }

    // `{"index":N,` of one choice.
    void begin_chunk(std::uint32_t index, std::string& out) const {
        out += head;
        out += "{\"index\":";
        JsonWriter(out).value(index);
        out += ',';
    }
    void end_chunk(std::string& out) const { out += unfinished_tail; }

    // The choice's opening chunk: the role (chat), the echoed prompt (completions).
    void begin(std::uint32_t index, std::string& out) {
        Choice& c = choice(index);
        if (c.begun) return;
        c.begun = true;
        if (chat) {
            begin_chunk(index, out);
            out += "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
            end_chunk(out);
            return;
        }
        const std::size_t prompt = meta.n == 0 ? 0 : index / meta.n;
        if (prompt >= meta.echo.size()) return;
        const bool with_logprobs = meta.logprobs && prompt < meta.echo_logprobs.size();
        begin_chunk(index, out);
        out += "\"text\":";
        append_json_string(out, meta.echo[prompt]);
        out += ",\"logprobs\":";
        JsonWriter w(out);
        if (with_logprobs)
            c.text_offset = write_completion_logprobs(w, meta.echo_logprobs[prompt], 0);
        else
            w.null();
        end_chunk(out);
    }

    void text(const model::TextDelta& delta, std::string& out) {
        if (delta.text.empty() && (!meta.logprobs || delta.logprobs.empty())) return;
        if (choice(delta.choice).ended) return;
        begin(delta.choice, out);
        begin_chunk(delta.choice, out);
        out += !chat           ? "\"text\":"
               : delta.refusal ? "\"delta\":{\"refusal\":"
                               : "\"delta\":{\"content\":";
        append_json_string(out, delta.text);
        if (chat) out += '}';
        if (!meta.logprobs || delta.logprobs.empty()) {
            out += ",\"logprobs\":null";
        } else if (chat) {
            out += ",\"logprobs\":";
            JsonWriter w(out);
            const std::vector<model::TokenLogprob> none;
            write_choice_logprobs(w, delta.refusal ? none : delta.logprobs,
                                  delta.refusal ? delta.logprobs : none);
        } else {
            out += ",\"logprobs\":";
            JsonWriter w(out);
            Choice& c = choice(delta.choice);
            c.text_offset = write_completion_logprobs(w, delta.logprobs, c.text_offset);
        }
        end_chunk(out);
    }

    void reasoning(const model::ReasoningDelta& delta, std::string& out) {
        if (delta.text.empty() || !chat || choice(delta.choice).ended) return;
        begin(delta.choice, out);
        begin_chunk(delta.choice, out);
        out += "\"delta\":{\"reasoning_content\":";
        append_json_string(out, delta.text);
        out += "},\"logprobs\":null";
        end_chunk(out);
    }

    void tool_call(const model::ToolCallDelta& delta, std::string& out) {
        if (!chat || choice(delta.choice).ended) return;
        begin(delta.choice, out);
        Choice& c = choice(delta.choice);
        CHECK_MSG(delta.index < kMaxCalls, "tool call index out of range");
        if (delta.index >= c.calls.size()) c.calls.resize(delta.index + 1);
        Call& call = c.calls[delta.index];
        const bool first = !call.begun;
        if (first) call = {true, false, delta.custom};
        if (!first && delta.arguments.empty()) return;
        call.has_arguments = call.has_arguments || !delta.arguments.empty();

        if (meta.legacy_functions && delta.index > 0) return;
        begin_chunk(delta.choice, out);
        if (meta.legacy_functions) {
            out += "\"delta\":{\"function_call\":";
            JsonWriter legacy(out);
            legacy.begin_object();
            if (first) legacy.member("name", delta.name);
            legacy.member("arguments", delta.arguments).end_object();
            out += "},\"logprobs\":null";
            return end_chunk(out);
        }
        out += "\"delta\":{\"tool_calls\":[";
        JsonWriter w(out);
        w.begin_object().member("index", delta.index);  // A17
        const std::string_view kind = call.custom ? "custom" : "function";
        if (first) {  // A19: id, type and name once
            w.key("id");
            if (delta.id.empty())
                w.value("call_" + meta.id + "_" + std::to_string(delta.choice) + "_" +
                        std::to_string(delta.index));
            else
                w.value(delta.id);
            w.member("type", kind);
        }
        w.key(kind).begin_object();
        if (first) w.member("name", delta.name);
        w.member(call.custom ? "input" : "arguments", delta.arguments);
        w.end_object().end_object();
        out += "]},\"logprobs\":null";
        end_chunk(out);
    }

    void end(const model::ChoiceEnd& event, std::string& out) {
        if (choice(event.choice).ended) return;
        begin(event.choice, out);
        // A5: a call without parameters has the empty object as arguments, not nothing.
        for (std::uint32_t i = 0; i < choice(event.choice).calls.size(); ++i) {
            const Call call = choice(event.choice).calls[i];
            if (!call.begun || call.has_arguments || call.custom) continue;
            tool_call({.choice = event.choice, .index = i, .arguments = "{}"}, out);
        }
        choice(event.choice).ended = true;
        begin_chunk(event.choice, out);
        out += chat ? "\"delta\":{},\"logprobs\":null,\"finish_reason\":\""
                    : "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"";
        out += finish_name(event.reason, meta.legacy_functions);
        out += "\"}";
        out += open_tail;
    }

    void done(const model::Usage& usage, std::string& out) {
        finished = true;
        // A27: a stream that has no finish reason ends with an error, never quietly.
        const bool whole = !choices.empty() && std::ranges::all_of(choices, &Choice::ended);
        if (!whole) {
            fail({Code::kInternal, "the answer ended without a finish reason", {}}, out);
            return;
        }
        if (meta.include_usage) {
            out += head;
            out += "],\"usage\":";
            JsonWriter w(out);
            write_usage(w, usage);
            out += "}\n\n";
        }
        out += "data: [DONE]\n\n";
    }

    void fail(const Error& error, std::string& out) {
        finished = true;
        out += "data: ";
        out += openai_error_body(error);  // the SDK raises on a truthy `error`
        out += "\n\n";
    }

    ResponseMeta meta;
    bool chat;
    std::string head;             // `data: {...,"choices":[`
    std::string unfinished_tail;  // `,"finish_reason":null}]...}\n\n`
    std::string open_tail;        // `]...}\n\n`
    std::vector<Choice> choices;
    bool finished = false;
};

StreamEncoder::StreamEncoder(ResponseMeta meta)
    : state_(std::make_unique<State>(std::move(meta))) {}
StreamEncoder::~StreamEncoder() = default;

void StreamEncoder::on(const model::Event& event, std::string& out) {
    if (state_->finished) return;
    std::visit(
        [&](const auto& e) {
            using T = std::decay_t<decltype(e)>;
            if constexpr (std::is_same_v<T, model::TextDelta>)
                state_->text(e, out);
            else if constexpr (std::is_same_v<T, model::ReasoningDelta>)
                state_->reasoning(e, out);
            else if constexpr (std::is_same_v<T, model::ToolCallDelta>)
                state_->tool_call(e, out);
            else if constexpr (std::is_same_v<T, model::ChoiceEnd>)
                state_->end(e, out);
            else if constexpr (std::is_same_v<T, model::Done>)
                state_->done(e.usage, out);
            else if constexpr (std::is_same_v<T, model::Failed>)
                state_->fail(e.error, out);
            // Start: the role chunk leaves with the first text, in one write. EmbeddingOut:
            // embeddings do not stream.
        },
        event);
}

}  // namespace nereid::dialect::chat
