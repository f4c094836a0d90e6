#include "dialect/segments.h"

#include <utility>

#include "base/json.h"

namespace nereid::dialect {

void Segments::on(const model::TextDelta& e, SegmentSink& sink) {
    if (e.text.empty() && e.logprobs.empty()) return;
    open(SegmentKind::kText, sink);
    grow(e.text, e.logprobs, sink);
}

void Segments::on(const model::ReasoningDelta& e, SegmentSink& sink) {
    if (e.text.empty()) return;
    open(SegmentKind::kReasoning, sink);
    grow(e.text, {}, sink);
}

void Segments::on(const model::ToolCallDelta& e, SegmentSink& sink) {
    const bool call_open = open_ && open_->kind == SegmentKind::kCall;
    if (call_open && open_->call == e.index) return grow(e.arguments, {}, sink);
    if (e.index < next_call_) return;  // a late fragment of a call that was whole
    if (call_open && !Json::parse(open_->text).ok() && !open_->text.empty()) {
        waiting_.push_back(e);
        return;
    }
    close(sink);
    begin_call(e, sink);
}

void Segments::end(SegmentSink& sink) {
    close(sink);
    while (!waiting_.empty()) {
        const auto later = std::exchange(waiting_, {});
        for (const auto& e : later) on(e, sink);
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
    sink.opened(*open_);
    grow(e.arguments, {}, sink);
}

void Segments::open(SegmentKind kind, SegmentSink& sink) {
    if (open_ && open_->kind == kind) return;
    end(sink);
    open_.emplace();
    open_->kind = kind;
    sink.opened(*open_);
}

void Segments::grow(const std::string& piece, const std::vector<model::TokenLogprob>& logprobs,
                    SegmentSink& sink) {
    if (piece.empty() && logprobs.empty()) return;
    open_->text += piece;
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
