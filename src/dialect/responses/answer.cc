// The answer: segments are output items. What a stream says piece by piece and what the response
// object holds come from the same place.
#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dialect/chat/shapes.h"
#include "dialect/responses/items.h"
#include "dialect/responses/responses.h"
#include "dialect/responses/tools.h"
#include "dialect/segments.h"

namespace nereid::dialect::responses {

void write_usage(JsonWriter& w, const model::Usage& u) {
    w.begin_object().member("input_tokens", u.prompt_tokens);
    w.key("input_tokens_details").begin_object().member("cached_tokens", u.cached_tokens);
    w.member("cache_write_tokens", 0).end_object();
    w.member("output_tokens", u.completion_tokens);
    w.key("output_tokens_details").begin_object();
    w.member("reasoning_tokens", u.reasoning_tokens).end_object();
    w.member("total_tokens", static_cast<std::uint64_t>(u.prompt_tokens) + u.completion_tokens);
    w.end_object();
}

namespace {

struct Outcome {
    std::string_view status;
    std::string_view incomplete_reason = {};
    const Error* error = nullptr;
    const model::Usage* usage = nullptr;
    std::optional<std::int64_t> completed_at = {};
};

void write_response(JsonWriter& w, const ResponseMeta& meta, const Json& settings,
                    const std::vector<std::string>& output, const Outcome& o) {
    w.begin_object().member("id", meta.id).member("object", "response");
    w.member("created_at", meta.created).key("completed_at");
    if (o.completed_at)
        w.value(*o.completed_at);
    else
        w.null();
    w.member("status", o.status).member("model", meta.model).key("incomplete_details");
    if (o.incomplete_reason.empty())
        w.null();
    else
        w.begin_object().member("reason", o.incomplete_reason).end_object();
    w.key("error");
    if (o.error == nullptr) {
        w.null();
    } else {
        w.begin_object().member("code", response_error_code(*o.error));
        w.member("message", o.error->message).end_object();
    }
    w.key("output").begin_array();
    for (const std::string& item : output) w.raw(item);
    w.end_array().key("usage");
    if (o.usage == nullptr)
        w.null();
    else
        write_usage(w, *o.usage);
    for (const auto& [name, value] : settings.as_object()) w.key(name).value(value);
    w.end_object();
}

// How the text of an item is said: its part's type, the frames that tell of it, its place in them.
struct PartForm {
    std::string_view type, added, delta, done, part_done, index;
    std::string_view text = "text";  // the name of its text, in the part and in the done frame
    bool has_logprobs = false;       // and annotations
};
constexpr PartForm kOutputText{.type = "output_text",
                               .added = "response.content_part.added",
                               .delta = "response.output_text.delta",
                               .done = "response.output_text.done",
                               .part_done = "response.content_part.done",
                               .index = "content_index",
                               .has_logprobs = true};
constexpr PartForm kRefusal{.type = "refusal",
                            .added = "response.content_part.added",
                            .delta = "response.refusal.delta",
                            .done = "response.refusal.done",
                            .part_done = "response.content_part.done",
                            .index = "content_index",
                            .text = "refusal"};
constexpr PartForm kReasoningText{.type = "reasoning_text",
                                  .added = "response.content_part.added",
                                  .delta = "response.reasoning_text.delta",
                                  .done = "response.reasoning_text.done",
                                  .part_done = "response.content_part.done",
                                  .index = "content_index"};
constexpr PartForm kSummaryText{.type = "summary_text",
                                .added = "response.reasoning_summary_part.added",
                                .delta = "response.reasoning_summary_text.delta",
                                .done = "response.reasoning_summary_text.done",
                                .part_done = "response.reasoning_summary_part.done",
                                .index = "summary_index"};

// One output item: what it is, and how far it has come.
struct Item {
    std::string id;
    const ToolName* tool = nullptr;  // of a call to a known tool
    std::string name;                // of a call
    std::string call_id;
    InputExtractor extractor;  // custom tools
    std::string input;         // custom tools: extracted so far

    bool custom() const { return tool != nullptr && tool->kind == ToolKind::kCustom; }
    bool search() const { return tool != nullptr && tool->kind == ToolKind::kSearch; }
};

class AnswerImpl final : public Answer, private SegmentSink {
  public:
    AnswerImpl(ResponseMeta meta, const Create& create, const Seal& seal)
        : meta_(std::move(meta)), create_(create), seal_(seal) {}

    void on(const model::Event& event, std::string& out) override {
        out_ = &out;
        feed(event);
        out_ = nullptr;
    }
    void on(const model::Event& event) override { feed(event); }

    Result<std::string> body() const override {
        if (error_) return *error_;
        if (!usage_) return err(Code::kInternal, "the answer is not complete");
        return result();
    }

    std::string result() const override {
        Outcome o = outcome();
        if (o.status == "completed") o.completed_at = completed_at_;
        std::string out;
        JsonWriter w(out);
        write_response(w, meta_, create_.settings, output_, o);
        return out;
    }

    bool ended() const override { return usage_ || error_; }
    bool failed() const override { return error_.has_value(); }

  private:
    void feed(const model::Event& event) {
        if (ended()) return;
        std::visit([this](const auto& e) { take(e); }, event);
    }
    void take(const model::Start&) { begin(); }
    void take(const model::EmbeddingOut&) {}
    template <class Delta>
    void take(const Delta& e) {
        if (e.choice != 0 || end_) return;
        begin();
        segments_.on(e, *this);
    }
    void take(const model::ChoiceEnd& e) {
        if (e.choice != 0 || end_) return;
        begin();
        end_ = e;
        segments_.end(*this);
    }
    void take(const model::Done& e) {
        if (!end_)
            return take(model::Failed{{Code::kInternal, "the answer ended without a reason"}});
        usage_ = e.usage;
        completed_at_ = meta_.now ? meta_.now() : meta_.created;
        final_frame(outcome().status == "completed" ? "response.completed" : "response.incomplete");
    }
    void take(const model::Failed& e) {
        begin();
        error_ = e.error;
        final_frame("response.failed");
    }

    Outcome outcome() const {
        Outcome o{.status = "in_progress"};
        if (usage_) o.usage = &*usage_;
        if (error_) {
            o.status = "failed";
            o.error = &*error_;
        } else if (usage_ && end_->reason == model::FinishReason::kLength) {
            o.status = "incomplete";
            o.incomplete_reason = "max_output_tokens";
        } else if (usage_ && end_->reason == model::FinishReason::kContentFilter) {
            o.status = "incomplete";
            o.incomplete_reason = "content_filter";
        } else if (usage_) {
            o.status = "completed";
        }
        return o;
    }

    void begin() {
        if (begun_) return;
        begun_ = true;
        if (out_ == nullptr) return;
        if (meta_.queued) {
            state_frame("response.created", "queued");
            state_frame("response.queued", "queued");
        } else {
            state_frame("response.created", "in_progress");
        }
        state_frame("response.in_progress", "in_progress");
    }
    void state_frame(std::string_view type, std::string_view status) {
        frame(type, [&](JsonWriter& w) {
            w.key("response");
            write_response(w, meta_, create_.settings, {}, {.status = status});
        });
    }
    void final_frame(std::string_view type) {
        frame(type, [this](JsonWriter& w) { w.key("response").raw(result()); });
    }

    // ---- items

    void opened(const Segment& s) override {
        item_ = Item();
        const std::size_t index = output_.size();
        const std::string_view tail =
            std::string_view(meta_.id).substr(meta_.id.starts_with("resp_") ? 5 : 0);
        std::string_view prefix = s.kind == SegmentKind::kReasoning ? "rs"
                                  : s.kind == SegmentKind::kCall    ? "fc"
                                                                    : "msg";
        if (s.kind == SegmentKind::kCall) {
            const auto known = create_.tools.find(s.name);
            if (known != create_.tools.end()) item_.tool = &known->second;
            item_.name = item_.tool != nullptr ? item_.tool->name : s.name;
            item_.call_id = s.id.empty() ? fmt::format("call_{}_{}", tail, index) : s.id;
            if (item_.custom()) prefix = "ctc";
            if (item_.search()) prefix = "tsc";
        }
        item_.id = fmt::format("{}_{}_{}", prefix, tail, index);
        if (out_ == nullptr) return;
        frame("response.output_item.added", [&](JsonWriter& w) {
            w.member("output_index", index).key("item");
            write_item(w, s, "in_progress", false);
        });
        if (s.kind == SegmentKind::kCall) return;
        const PartForm& form = form_of(s.kind);
        frame(form.added, [&](JsonWriter& w) {
            place(w, form);
            w.key("part");
            write_part(w, form, {}, nullptr);
        });
    }

    void grew(const Segment& s, std::string_view piece,
              const std::vector<model::TokenLogprob>& logprobs) override {
        if (s.kind == SegmentKind::kCall && item_.custom()) {
            std::string text;
            item_.extractor.feed(piece, text);
            return custom_input(text);
        }
        if (out_ == nullptr || item_.search()) return;
        if (s.kind == SegmentKind::kCall) {
            return frame("response.function_call_arguments.delta", [&](JsonWriter& w) {
                place_item(w);
                w.member("delta", piece);
            });
        }
        const PartForm& form = form_of(s.kind);
        frame(form.delta, [&](JsonWriter& w) {
            place(w, form);
            w.member("delta", piece);
            if (!form.has_logprobs) return;
            w.key("logprobs");
            chat::write_chat_logprobs(w, logprobs);
        });
    }

    void custom_input(const std::string& text) {
        if (text.empty()) return;
        item_.input += text;
        if (out_ == nullptr) return;
        frame("response.custom_tool_call_input.delta", [&](JsonWriter& w) {
            place_item(w);
            w.member("delta", text);
        });
    }

    void closed(Segment& s) override {
        if (s.kind == SegmentKind::kCall && item_.custom()) {
            std::string rest;
            item_.extractor.finish(rest);
            custom_input(rest);
        }
        // An item that the end of the budget cut is not whole.
        const bool cut = end_ && end_->reason == model::FinishReason::kLength;
        std::string item;
        JsonWriter w(item);
        write_item(w, s, cut ? "incomplete" : "completed", true);
        if (out_ != nullptr) say_done(s, item);
        output_.push_back(std::move(item));
    }

    void say_done(const Segment& s, const std::string& item) {
        if (s.kind == SegmentKind::kCall) {
            if (!item_.search()) say_call_done(s);
        } else {
            const PartForm& form = form_of(s.kind);
            frame(form.done, [&](JsonWriter& w) {
                place(w, form);
                w.member(form.text, s.text);
                if (!form.has_logprobs) return;
                w.key("logprobs");
                chat::write_chat_logprobs(w, s.logprobs);
            });
            frame(form.part_done, [&](JsonWriter& w) {
                place(w, form);
                w.key("part");
                write_part(w, form, s.text, &s.logprobs);
            });
        }
        frame("response.output_item.done", [&](JsonWriter& w) {
            w.member("output_index", static_cast<std::uint64_t>(output_.size()));
            w.key("item").raw(item);
        });
    }
    void say_call_done(const Segment& s) {
        const bool custom = item_.custom();
        frame(custom ? "response.custom_tool_call_input.done"
                     : "response.function_call_arguments.done",
              [&](JsonWriter& w) {
                  place_item(w);
                  if (custom) {
                      w.member("input", item_.input);
                  } else {
                      w.member("name", item_.name).member("arguments", s.text);
                  }
              });
    }

    const PartForm& form_of(SegmentKind kind) const {
        if (kind == SegmentKind::kText) return kOutputText;
        if (kind == SegmentKind::kRefusal) return kRefusal;
        return create_.summary ? kSummaryText : kReasoningText;
    }
    static void write_part(JsonWriter& w, const PartForm& form, std::string_view text,
                           const std::vector<model::TokenLogprob>* logprobs) {
        w.begin_object().member("type", form.type).member(form.text, text);
        if (form.has_logprobs) {
            w.key("annotations").begin_array().end_array().key("logprobs");
            chat::write_chat_logprobs(
                w, logprobs == nullptr ? std::vector<model::TokenLogprob>() : *logprobs);
        }
        w.end_object();
    }

    void write_item(JsonWriter& w, const Segment& s, std::string_view status, bool whole) const {
        w.begin_object().member("id", item_.id);
        switch (s.kind) {
            case SegmentKind::kReasoning:
                w.member("type", "reasoning");
                for (const bool summary : {true, false}) {
                    w.key(summary ? "summary" : "content").begin_array();
                    if (whole && summary == create_.summary)
                        write_part(w, form_of(s.kind), s.text, nullptr);
                    w.end_array();
                }
                w.key("encrypted_content");
                if (whole && create_.include_encrypted)
                    w.value(seal_.hide(s.text));
                else
                    w.null();
                break;
            case SegmentKind::kText:
            case SegmentKind::kRefusal:
                w.member("type", "message").member("status", status);
                w.member("role", "assistant").key("content").begin_array();
                if (whole) write_part(w, form_of(s.kind), s.text, &s.logprobs);
                w.end_array();
                break;
            case SegmentKind::kCall:
                write_call(w, s, status, whole);
        }
        w.end_object();
    }

    void write_call(JsonWriter& w, const Segment& s, std::string_view status, bool whole) const {
        if (item_.search()) {
            w.member("type", "tool_search_call").member("status", status);
            w.member("call_id", item_.call_id).member("execution", "client").key("arguments");
            if (whole && Json::parse(s.text).ok())
                w.raw(s.text);
            else
                w.begin_object().end_object();
            return;
        }
        w.member("type", item_.custom() ? "custom_tool_call" : "function_call");
        w.member("status", status).member("call_id", item_.call_id).member("name", item_.name);
        if (item_.tool != nullptr && !item_.tool->name_space.empty())
            w.member("namespace", item_.tool->name_space);  // A77, A102
        if (item_.custom())
            w.member("input", whole ? item_.input : std::string());
        else
            w.member("arguments", whole ? s.text : std::string());
    }

    void place_item(JsonWriter& w) const {
        w.member("item_id", item_.id);
        w.member("output_index", static_cast<std::uint64_t>(output_.size()));
    }
    void place(JsonWriter& w, const PartForm& form) const {
        place_item(w);
        w.member(form.index, 0);
    }

    template <class Fill>
    void frame(std::string_view type, const Fill& fill) {
        if (out_ == nullptr) return;
        std::string& out = *out_;
        out.append("event: ").append(type).append("\ndata: ");
        JsonWriter w(out);
        w.begin_object().member("type", type).member("sequence_number", sequence_++);
        fill(w);
        w.end_object();
        out += "\n\n";
    }

    ResponseMeta meta_;
    const Create& create_;
    Seal seal_;
    Segments segments_;
    Item item_;                        // of the open segment
    std::vector<std::string> output_;  // closed items, as JSON
    std::string* out_ = nullptr;       // of the running on(); null when not streaming
    std::uint64_t sequence_ = 0;
    std::optional<model::ChoiceEnd> end_;
    std::optional<model::Usage> usage_;
    std::optional<Error> error_;
    std::int64_t completed_at_ = 0;
    bool begun_ = false;
};

}  // namespace

std::unique_ptr<Answer> make_answer(ResponseMeta meta, const Create& create, const Seal& seal) {
    return std::make_unique<AnswerImpl>(std::move(meta), create, seal);
}

std::string response_object(const ResponseMeta& meta, const Create& create, std::string_view status,
                            const Error* error) {
    std::string out;
    JsonWriter w(out);
    write_response(w, meta, create.settings, {}, {.status = status, .error = error});
    return out;
}

std::string_view response_error_code(const Error& error) {
    switch (error.code) {
        case Code::kContextLength:
            return "context_length_exceeded";  // Codex says "ran out of room" and does not retry
        case Code::kRateLimited:
            return "rate_limit_exceeded";
        case Code::kInvalidArgument:
        case Code::kUnsupported:
            return "invalid_prompt";
        default:
            return "server_error";
    }
}

}  // namespace nereid::dialect::responses
