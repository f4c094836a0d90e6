// The answer, streamed and whole: segments are content blocks, written as frames or kept.
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dialect/messages/messages.h"
#include "dialect/segments.h"

namespace nereid::dialect::messages {
namespace {

// An input that is no JSON object cannot be said in this dialect (A101 in reverse): it is given as
// a string under its own name, so that nothing is lost.
void write_input(JsonWriter& w, const std::string& text) {
    if (const auto json = Json::parse(text); json.ok() && json->is_object()) {
        w.raw(text);
        return;
    }
    w.begin_object().member("input", text).end_object();
}

void write_usage(JsonWriter& w, const model::Usage& u) {
    w.begin_object().member("input_tokens", u.prompt_tokens - u.cached_tokens);
    w.member("cache_creation_input_tokens", 0).member("cache_read_input_tokens", u.cached_tokens);
    w.key("cache_creation").begin_object().member("ephemeral_5m_input_tokens", 0);
    w.member("ephemeral_1h_input_tokens", 0).end_object();
    w.member("output_tokens", u.completion_tokens);
    w.key("output_tokens_details").begin_object();
    w.member("thinking_tokens", u.reasoning_tokens).end_object();
    w.member("service_tier", "standard").end_object();
}

std::string_view stop_reason(const model::ChoiceEnd& end, const Segments& said) {
    switch (end.reason) {
        case model::FinishReason::kLength:
            return end.context_full ? "model_context_window_exceeded" : "max_tokens";
        case model::FinishReason::kContentFilter:
            return "refusal";
        case model::FinishReason::kToolCalls:
            return "tool_use";
        case model::FinishReason::kStop:
            break;
    }
    if (!end.stop_sequence.empty()) return "stop_sequence";
    if (said.has_calls()) return "tool_use";  // some engines say "stop" after calls (A11)
    return said.has_refusal() ? "refusal" : "end_turn";
}

std::string call_id(const ResponseMeta& meta, const Segment& call) {
    return call.id.empty() ? "toolu_" + meta.id + "_" + std::to_string(call.call) : call.id;
}

std::string signature(const Seal& seal, const ResponseMeta& meta, const Segment& thinking) {
    return meta.omit_thinking ? seal.hide(thinking.text) : seal.sign(thinking.text);
}

void begin_message(JsonWriter& w, const ResponseMeta& meta) {
    w.begin_object().member("id", meta.id).member("type", "message").member("role", "assistant");
    w.member("model", meta.model);
}

class FrameEncoder final : public Encoder, private SegmentSink {
  public:
    FrameEncoder(ResponseMeta meta, const Seal& seal) : meta_(std::move(meta)), seal_(seal) {}

    void on(const model::Event& event, std::string& out) override {
        if (finished_) return;
        out_ = &out;
        std::visit([this](const auto& e) { take(e); }, event);
    }

  private:
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
        segments_.end(*this);
        end_ = e;
    }
    void take(const model::Done& e) {
        if (!end_)
            return take(model::Failed{{Code::kInternal, "the answer ended without a reason"}});
        finished_ = true;
        frame("message_delta", [&](JsonWriter& w) {
            w.key("delta").begin_object();
            w.member("stop_reason", stop_reason(*end_, segments_)).key("stop_sequence");
            if (end_->stop_sequence.empty())
                w.null();
            else
                w.value(end_->stop_sequence);
            w.end_object().key("usage");
            write_usage(w, e.usage);
        });
        frame("message_stop", [](JsonWriter&) {});
    }
    // The SDK and Claude Code take a stream that just ends for a whole answer (A103).
    void take(const model::Failed& e) {
        finished_ = true;
        out_->append("event: error\ndata: ").append(error_body(e.error, {})).append("\n\n");
    }

    void begin() {
        if (begun_) return;
        begun_ = true;
        frame("message_start", [this](JsonWriter& w) {
            w.key("message");
            begin_message(w, meta_);
            w.key("content").begin_array().end_array();
            w.key("stop_reason").null().key("stop_sequence").null().key("usage");
            write_usage(w, {.prompt_tokens = meta_.prompt_tokens});
            w.end_object();
        });
        frame("ping", [](JsonWriter&) {});
    }

    void opened(const Segment& b) override {
        frame("content_block_start", [&](JsonWriter& w) {
            w.member("index", index_).key("content_block").begin_object();
            switch (b.kind) {
                case SegmentKind::kText:
                case SegmentKind::kRefusal:
                    w.member("type", "text").member("text", "");
                    break;
                case SegmentKind::kReasoning:
                    w.member("type", "thinking").member("thinking", "").member("signature", "");
                    break;
                case SegmentKind::kCall:
                    w.member("type", "tool_use").member("id", call_id(meta_, b));
                    w.member("name", b.name).key("input").begin_object().end_object();
                    break;
            }
            w.end_object();
        });
    }
    void grew(const Segment& b, std::string_view piece,
              const std::vector<model::TokenLogprob>&) override {
        switch (b.kind) {
            case SegmentKind::kText:
            case SegmentKind::kRefusal:
                return delta("text_delta", "text", piece);
            case SegmentKind::kReasoning:
                if (!meta_.omit_thinking) delta("thinking_delta", "thinking", piece);
                return;
            case SegmentKind::kCall:
                return delta("input_json_delta", "partial_json", piece);
        }
    }
    void closed(Segment& b) override {
        if (b.kind == SegmentKind::kReasoning)
            delta("signature_delta", "signature", signature(seal_, meta_, b));
        frame("content_block_stop", [this](JsonWriter& w) { w.member("index", index_); });
        ++index_;
    }
    void delta(std::string_view type, std::string_view key, std::string_view piece) {
        frame("content_block_delta", [&](JsonWriter& w) {
            w.member("index", index_).key("delta").begin_object();
            w.member("type", type).member(key, piece).end_object();
        });
    }
    template <class Fill>
    void frame(std::string_view type, const Fill& fill) {
        std::string& out = *out_;
        out.append("event: ").append(type).append("\ndata: ");
        JsonWriter w(out);
        w.begin_object().member("type", type);
        fill(w);
        w.end_object();
        out += "\n\n";
    }

    ResponseMeta meta_;
    Seal seal_;
    Segments segments_;
    std::string* out_ = nullptr;  // of the running on()
    std::uint32_t index_ = 0;     // of the open block
    std::optional<model::ChoiceEnd> end_;
    bool begun_ = false;
    bool finished_ = false;
};

class WholeMessage final : public Whole, private SegmentSink {
  public:
    WholeMessage(ResponseMeta meta, const Seal& seal) : meta_(std::move(meta)), seal_(seal) {}

    void on(const model::Event& event) override {
        if (usage_ || error_) return;
        std::visit([this](const auto& e) { take(e); }, event);
    }

    Result<std::string> body() const override {
        if (error_) return *error_;
        if (!usage_) return err(Code::kInternal, "the answer is not complete");
        if (!end_) return err(Code::kInternal, "the answer ended without a finish reason");
        std::string out;
        JsonWriter w(out);
        begin_message(w, meta_);
        w.key("content").begin_array();
        for (const Segment& b : content_) write_block(w, b);
        w.end_array().member("stop_reason", stop_reason(*end_, segments_));
        w.key("stop_sequence");
        if (end_->stop_sequence.empty())
            w.null();
        else
            w.value(end_->stop_sequence);
        w.key("usage");
        write_usage(w, *usage_);
        w.end_object();
        return out;
    }

  private:
    void take(const model::Start&) {}
    void take(const model::EmbeddingOut&) {}
    template <class Delta>
    void take(const Delta& e) {
        if (e.choice == 0 && !end_) segments_.on(e, *this);
    }
    void take(const model::ChoiceEnd& e) {
        if (e.choice != 0 || end_) return;
        segments_.end(*this);
        end_ = e;
    }
    void take(const model::Done& e) { usage_ = e.usage; }
    void take(const model::Failed& e) { error_ = e.error; }

    void opened(const Segment&) override {}
    void grew(const Segment&, std::string_view, const std::vector<model::TokenLogprob>&) override {}
    void closed(Segment& b) override { content_.push_back(std::move(b)); }

    void write_block(JsonWriter& w, const Segment& b) const {
        w.begin_object();
        switch (b.kind) {
            case SegmentKind::kText:
            case SegmentKind::kRefusal:
                w.member("type", "text").member("text", b.text);
                break;
            case SegmentKind::kReasoning:
                w.member("type", "thinking");
                w.member("thinking", meta_.omit_thinking ? std::string() : b.text);
                w.member("signature", signature(seal_, meta_, b));
                break;
            case SegmentKind::kCall:
                w.member("type", "tool_use").member("id", call_id(meta_, b));
                w.member("name", b.name).key("input");
                write_input(w, b.text);
                break;
        }
        w.end_object();
    }

    ResponseMeta meta_;
    Seal seal_;
    Segments segments_;
    std::vector<Segment> content_;
    std::optional<model::ChoiceEnd> end_;
    std::optional<model::Usage> usage_;
    std::optional<Error> error_;
};

}  // namespace

std::unique_ptr<Encoder> make_encoder(ResponseMeta meta, const Seal& seal) {
    return std::make_unique<FrameEncoder>(std::move(meta), seal);
}

std::unique_ptr<Whole> make_whole(ResponseMeta meta, const Seal& seal) {
    return std::make_unique<WholeMessage>(std::move(meta), seal);
}

}  // namespace nereid::dialect::messages
