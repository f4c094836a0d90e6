#include "dialect/segments.h"

#include <utility>

namespace nereid::dialect {

void Segments::Brackets::feed(std::string_view text) {
    for (const char c : text) {
        if (in_string_) {
            if (!escaped_ && c == '"') in_string_ = false;
            escaped_ = !escaped_ && c == '\\';
        } else if (c == '"') {
            in_string_ = true;
        } else if (c == '{' || c == '[') {
            ++depth_;
            begun_ = true;
        } else if ((c == '}' || c == ']') && depth_ > 0) {
            --depth_;
        }
    }
}

bool Segments::half_a_call() const {
    return open_ && open_->kind == SegmentKind::kCall && (custom_ || !brackets_.closed());
}

void Segments::on(const model::TextDelta& e, SegmentSink& sink) {
    if (e.text.empty() && e.logprobs.empty()) return;
    if (half_a_call() || !waiting_.empty()) {
        waiting_.emplace_back(e);
        return;
    }
    open(SegmentKind::kText, sink);
    grow(e.text, e.logprobs, sink);
}

void Segments::on(const model::ReasoningDelta& e, SegmentSink& sink) {
    if (e.text.empty()) return;
    if (half_a_call() || !waiting_.empty()) {
        waiting_.emplace_back(e);
        return;
    }
    open(SegmentKind::kReasoning, sink);
    grow(e.text, {}, sink);
}

void Segments::on(const model::ToolCallDelta& e, SegmentSink& sink) {
    if (open_ && open_->kind == SegmentKind::kCall && open_->call == e.index) {
        grow(e.arguments, {}, sink);
        return go_on(sink);
    }
    if (e.index < next_call_) return;  // a late fragment of a call that was whole
    if (half_a_call() || !waiting_.empty()) {
        waiting_.emplace_back(e);
        return;
    }
    close(sink);
    begin_call(e, sink);
}

// The open call may have come to its end: what has waited for that. Never within itself.
void Segments::go_on(SegmentSink& sink) {
    if (std::exchange(going_on_, true)) return;
    while (!waiting_.empty() && !half_a_call()) {
        const auto later = std::exchange(waiting_, {});
        for (const Delta& delta : later) std::visit([&](const auto& e) { on(e, sink); }, delta);
    }
    going_on_ = false;
}

void Segments::end(SegmentSink& sink) {
    close(sink);
    while (!waiting_.empty()) {
        go_on(sink);
        close(sink);
    }
}

void Segments::begin_call(const model::ToolCallDelta& e, SegmentSink& sink) {
    next_call_ = e.index + 1;
    open_.emplace();
    open_->kind = SegmentKind::kCall;
    open_->call = e.index;
    open_->id = e.id;
    open_->name = e.name;
    custom_ = e.custom;
    brackets_ = {};
    sink.opened(*open_);
    grow(e.arguments, {}, sink);
}

void Segments::open(SegmentKind kind, SegmentSink& sink) {
    if (open_ && open_->kind == kind) return;
    close(sink);
    open_.emplace();
    open_->kind = kind;
    sink.opened(*open_);
}

void Segments::grow(const std::string& piece, const std::vector<model::TokenLogprob>& logprobs,
                    SegmentSink& sink) {
    if (piece.empty() && logprobs.empty()) return;
    open_->text += piece;
    if (open_->kind == SegmentKind::kCall) brackets_.feed(piece);
    open_->logprobs.insert(open_->logprobs.end(), logprobs.begin(), logprobs.end());
    sink.grew(*open_, piece, logprobs);
}

void Segments::close(SegmentSink& sink) {
    if (!open_) return;
    if (open_->kind == SegmentKind::kCall && open_->text.empty()) grow("{}", {}, sink);
    sink.closed(*open_);
    open_.reset();
}

}  // namespace nereid::dialect
