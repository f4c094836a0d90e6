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

bool Segments::must_wait() const { return half_a_call() || !waiting_.empty(); }

void Segments::on(const model::TextDelta& e, SegmentSink& sink) {
    if (e.text.empty() && e.logprobs.empty()) return;
    if (must_wait())
        waiting_.emplace_back(e);
    else
        say(e, sink);
}

void Segments::on(const model::ReasoningDelta& e, SegmentSink& sink) {
    if (e.text.empty()) return;
    if (must_wait())
        waiting_.emplace_back(e);
    else
        say(e, sink);
}

void Segments::on(const model::ToolCallDelta& e, SegmentSink& sink) {
    if (open_ && open_->kind == SegmentKind::kCall && open_->call == e.index) {
        grow(e.arguments, {}, sink);
        // What has waited for its end.
        while (!waiting_.empty() && !half_a_call()) say_first(sink);
        return;
    }
    if (e.index < next_call_) return;  // a late fragment of a call that was whole
    if (!must_wait()) return say(Call{e, {}}, sink);
    const auto [known, fresh] = waiting_calls_.try_emplace(e.index, said_ + waiting_.size());
    if (fresh)
        waiting_.emplace_back(Call{e, {}});
    else
        std::get<Call>(waiting_[known->second - said_]).rest.push_back(e.arguments);
}

void Segments::say(const model::TextDelta& e, SegmentSink& sink) {
    const SegmentKind kind = e.refusal ? SegmentKind::kRefusal : SegmentKind::kText;
    std::vector<model::TokenLogprob>& textless = textless_[e.refusal ? 1 : 0];
    if (e.text.empty() && !(open_ && open_->kind == kind)) {
        textless.insert(textless.end(), e.logprobs.begin(), e.logprobs.end());
        return;
    }
    refused_ = refused_ || e.refusal;
    open(kind, sink);
    if (textless.empty()) return grow(e.text, e.logprobs, sink);
    std::vector<model::TokenLogprob> logprobs = std::exchange(textless, {});
    logprobs.insert(logprobs.end(), e.logprobs.begin(), e.logprobs.end());
    grow(e.text, logprobs, sink);
}

void Segments::say(const model::ReasoningDelta& e, SegmentSink& sink) {
    open(SegmentKind::kReasoning, sink);
    grow(e.text, {}, sink);
}

void Segments::say(const Call& call, SegmentSink& sink) {
    waiting_calls_.erase(call.first.index);
    close(sink);
    begin_call(call.first, sink);
    for (const std::string& arguments : call.rest) grow(arguments, {}, sink);
}

void Segments::say_first(SegmentSink& sink) {
    const Piece first = std::move(waiting_.front());
    waiting_.pop_front();
    ++said_;
    std::visit([&](const auto& e) { say(e, sink); }, first);
}

void Segments::end(SegmentSink& sink) {
    while (!waiting_.empty()) say_first(sink);
    close(sink);
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
