#include "text/output.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace nereid::text {

// ---------------------------------------------------------------- Utf8Assembler

std::string Utf8Assembler::push(std::string_view bytes) {
    if (held_.empty() && is_valid_utf8(bytes)) return std::string(bytes);
    held_.append(bytes);
    const std::size_t whole = complete_utf8_prefix(held_);
    std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
    held_.erase(0, whole);
    return text;
}

std::string Utf8Assembler::finish() { return replace_invalid_utf8(std::exchange(held_, {})); }

// ---------------------------------------------------------------- StopMatcher

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
    std::ranges::sort(stops_, [](const std::string& a, const std::string& b) {
        return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    for (const std::string& stop : stops_) first_bytes_[static_cast<unsigned char>(stop[0])] = true;
}

StopMatcher::Step StopMatcher::push(std::string_view text) {
    if (done_) return {};
    if (stops_.empty()) return {std::string(text), std::nullopt};
    held_.append(text);
    return scan(false);
}

StopMatcher::Step StopMatcher::finish() {
    if (done_) return {};
    Step step = scan(true);
    done_ = true;
    return step;
}

// held_ begins at a place where a stop string may begin, or with text not seen before. The first
// position at which a stop string is complete or (unless `final`) may still become so decides.
StopMatcher::Step StopMatcher::scan(bool final) {
    const std::string_view held = held_;
    std::size_t at = 0;
    for (; at < held.size(); ++at) {
        if (!may_begin(held[at])) continue;
        const std::string_view rest = held.substr(at);
        bool open = false;
        for (const std::string& stop : stops_) {
            if (rest.starts_with(stop)) {
                Step step{std::string(held.substr(0, at)), stop};
                done_ = true;
                held_.clear();
                return step;
            }
            open = open || std::string_view(stop).starts_with(rest);
        }
        if (open && !final) break;
    }
    Step step{std::string(held.substr(0, at)), std::nullopt};
    held_.erase(0, at);
    return step;
}

// ---------------------------------------------------------------- plain parser

namespace {

class PlainParser final : public OutputParser {
  public:
    explicit PlainParser(std::uint32_t choice) : choice_(choice) {}
    void push(std::string_view text, std::vector<model::Event>& out) override {
        if (!text.empty())
            out.emplace_back(model::TextDelta{.choice = choice_, .text = std::string(text)});
    }
    bool finish(std::vector<model::Event>&) override { return false; }

  private:
    std::uint32_t choice_;
};

}  // namespace

std::unique_ptr<OutputParser> make_plain_parser(std::uint32_t choice) {
    return std::make_unique<PlainParser>(choice);
}

// ---------------------------------------------------------------- ChoiceOutput

ChoiceOutput::ChoiceOutput(std::shared_ptr<const Tokenizer> tokenizer, Options options)
    : tokenizer_(std::move(tokenizer)), options_(std::move(options)), stop_(options_.stop) {}

std::string_view ChoiceOutput::piece_of(const model::TokenOut& token) const {
    const auto& stops = options_.stop_token_ids;
    if (!stops.empty() && std::ranges::find(stops, token.token) != stops.end()) return {};
    const auto& shown = options_.shown_tokens;
    const bool marker = !shown.empty() && std::ranges::find(shown, token.token) != shown.end();
    return tokenizer_->piece(token.token, marker ? Special::kParse : Special::kPlain);
}

bool ChoiceOutput::push(const std::vector<model::TokenOut>& tokens,
                        std::vector<model::Event>& out) {
    if (ended_) return false;
    std::string ready;
    for (const model::TokenOut& token : tokens) {
        ++tokens_;
        const std::string_view piece = piece_of(token);
        bytes_ += piece.size();
        if (options_.logprobs) pending_.push_back({token, bytes_, assembled_, kOpen});
        const std::string text = utf8_.push(piece);
        assembled_ += text.size();
        if (options_.logprobs) close_pending();
        StopMatcher::Step step = stop_.push(text);
        emitted_ += step.text.size();
        ready += step.text;
        if (step.stopped_by) {
            emit(std::move(ready), true, out);
            end(model::FinishReason::kStop, std::move(*step.stopped_by), out);
            return true;
        }
    }
    emit(std::move(ready), false, out);
    return false;
}

void ChoiceOutput::finish(model::EndReason reason, std::vector<model::Event>& out) {
    if (ended_) return;
    const std::string rest = utf8_.finish();
    assembled_ += rest.size();
    if (options_.logprobs) close_pending();
    StopMatcher::Step step = stop_.push(rest);
    if (!step.stopped_by) {
        StopMatcher::Step last = stop_.finish();
        step.text += last.text;
        step.stopped_by = std::move(last.stopped_by);
    }
    emitted_ += step.text.size();
    emit(std::move(step.text), true, out);
    if (step.stopped_by) return end(model::FinishReason::kStop, std::move(*step.stopped_by), out);
    switch (reason) {
        case model::EndReason::kStop:
            return end(model::FinishReason::kStop, {}, out);
        case model::EndReason::kLength:
        case model::EndReason::kPrefilled:
            return end(model::FinishReason::kLength, {}, out);
        case model::EndReason::kAborted:
        case model::EndReason::kFailed:
            break;
    }
    if (options_.parser) options_.parser->finish(out);
    ended_ = true;
}

// A token's text ends where the assembled text stood when the last of its bytes had left the
// assembler.
void ChoiceOutput::close_pending() {
    const std::uint64_t through = bytes_ - utf8_.held_bytes();
    for (auto it = pending_.rbegin(); it != pending_.rend() && it->text_end == kOpen; ++it) {
        if (it->bytes_end <= through) it->text_end = assembled_;
    }
}

std::vector<model::TokenLogprob> ChoiceOutput::take_logprobs(bool last) {
    // A token without text (an end token under ignore_eos) goes with the token after it, so that a
    // final one goes nowhere.
    std::size_t count = 0;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
        const Pending& p = pending_[i];
        const bool whole = p.text_end != kOpen && p.text_end <= emitted_;
        const bool across_the_cut = last && p.text_begin < emitted_;
        if (!whole && !across_the_cut) break;
        if (p.text_end != p.text_begin) count = i + 1;
    }
    std::vector<model::TokenLogprob> taken;
    taken.reserve(count);
    for (; count > 0; --count, pending_.pop_front()) {
        const model::TokenOut& token = pending_.front().token;
        model::TokenLogprob entry{token.token,
                                  token.logprob,
                                  std::string(tokenizer_->piece(token.token, Special::kParse)),
                                  {}};
        entry.top.reserve(token.top.size());
        for (const model::TopToken& top : token.top) {
            entry.top.push_back(
                {top.id, top.logprob, std::string(tokenizer_->piece(top.id, Special::kParse))});
        }
        taken.push_back(std::move(entry));
    }
    return taken;
}

void ChoiceOutput::emit(std::string text, bool last, std::vector<model::Event>& out) {
    std::vector<model::TokenLogprob> logprobs;
    if (options_.logprobs) logprobs = take_logprobs(last);
    if (text.empty() && logprobs.empty()) return;
    const TokenCount fresh = tokens_ - visible_tokens_;
    if (!options_.parser) {
        visible_tokens_ = tokens_;
        out.emplace_back(
            model::TextDelta{options_.choice, std::move(text), std::move(logprobs), fresh});
        return;
    }
    const std::size_t before = out.size();
    options_.parser->push(text, out);
    for (std::size_t i = before; i < out.size(); ++i) {
        if (auto* delta = std::get_if<model::TextDelta>(&out[i])) {
            delta->logprobs = std::move(logprobs);
            delta->tokens = fresh;
            visible_tokens_ = tokens_;
            return;
        }
        if (auto* delta = std::get_if<model::ReasoningDelta>(&out[i])) {
            delta->tokens = fresh;
            visible_tokens_ = tokens_;
            break;  // entries of reasoning have no place in the dialects; they follow as an empty
                    // text delta
        }
    }
    if (!logprobs.empty())
        out.emplace_back(model::TextDelta{options_.choice, {}, std::move(logprobs), 0});
}

void ChoiceOutput::end(model::FinishReason reason, std::string stop_sequence,
                       std::vector<model::Event>& out) {
    const std::size_t before = out.size();
    const bool called = options_.parser && options_.parser->finish(out);
    // The beginning of a call that was cut before its name.
    if (options_.calls_only && reason == model::FinishReason::kLength) {
        const auto first = out.begin() + static_cast<std::ptrdiff_t>(before);
        out.erase(std::remove_if(first, out.end(),
                                 [](const model::Event& e) {
                                     return std::holds_alternative<model::TextDelta>(e);
                                 }),
                  out.end());
    }
    if (called && reason == model::FinishReason::kStop) reason = model::FinishReason::kToolCalls;
    out.emplace_back(model::ChoiceEnd{options_.choice, reason, std::move(stop_sequence)});
    pending_.clear();
    ended_ = true;
}

}  // namespace nereid::text
