#include "gateway/token_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "text/parser.h"

namespace nereid::gateway {
namespace {

// Updates that a client may be behind, per choice: some ten seconds of decoding. Beyond, it is not
// reading.
constexpr std::size_t kMaxBehind = 4096;
constexpr Duration kVerdictOnGrammar = 2s;  // then the headers leave without it
// Choices of one request in the engine at once: a batch of 2,048 embeddings must not fill
// everybody's queue.
constexpr std::size_t kMaxActive = 32;

Error aborted_by_engine() {
    return {Code::kWorkerLost, "The engine ended the request. Please retry."};
}

}  // namespace

TokenRequest::TokenRequest(Exchange& exchange, ShardModel& model, const model::Request& request,
                           TokenPlan plan, Responder& responder, std::string id)
    : x_(exchange),
      model_(model),
      plan_(std::move(plan)),
      responder_(responder),
      updates_(exchange.loop(), kMaxBehind * std::min(plan_.adds.size(), kMaxActive)),
      self_(std::make_shared<TokenRequest*>(this)) {
    choices_.reserve(plan_.adds.size());
    // A model of no known family whose answer may hold no calls is not looked at.
    const bool plain =
        !plan_.parse || (model.family == text::Family::kGeneric && request.tools.empty());
    for (std::uint32_t i = 0; i < plan_.adds.size(); ++i) {
        text::ChoiceOutput::Options options{.choice = i,
                                            .stop = request.stop,
                                            .logprobs = request.logprobs,
                                            .parser = nullptr,
                                            .stop_token_ids = request.stop_token_ids};
        if (!plain) {
            options.parser = text::make_parser(model.family,
                                               {.choice = i,
                                                .tools = &request.tools,
                                                .call_id_prefix = fmt::format("call_{}_{}_", id, i),
                                                .in_reasoning = plan_.in_reasoning,
                                                .in_calls = plan_.in_calls,
                                                .one_call = !request.parallel_tool_calls});
            options.shown_tokens = model.marker_tokens;
            options.calls_only = plan_.calls_only;
        }
        choices_.emplace_back(model.entry->text.tokenizer, std::move(options));
        choices_.back().reasoning = plan_.in_reasoning && !plain;
    }
}

TokenRequest::~TokenRequest() {
    if (responder_.ended()) return;
    for (const Choice& c : choices_) {
        if (c.session) x_.core().probe.aborted();
    }
    const model::Usage u = usage();
    x_.record.prompt_tokens = u.prompt_tokens;
    x_.record.cached_tokens = u.cached_tokens;
    x_.record.completion_tokens = u.completion_tokens;
}

io::Task<void> TokenRequest::run() {
    x_.record.worker = model_.worker->name();
    events_.emplace_back(model::Start{});
    const bool has_grammar =
        !plan_.adds.empty() && plan_.adds[0].grammar_kind != model::GrammarKind::kNone;
    submit_more();
    // A refusal that is there already can still be a status; that of a grammar comes soon.
    TimePoint open_at = has_grammar ? x_.loop().now() + kVerdictOnGrammar : TimePoint::never();
    if (!has_grammar && updates_.size() == 0 && !co_await responder_.open()) co_return;
    while (!responder_.ended()) {
        auto first = co_await updates_.pop(std::exchange(open_at, TimePoint::never()));
        if (!first.ok() && first.code() == Code::kDeadlineExceeded) {
            if (!co_await responder_.open()) co_return;
            continue;
        }
        if (!first.ok()) {
            CHECK(overflowed_);
            x_.record.end = kEndSlowClient;
            co_return x_.reply().abort();
        }
        take(*first);
        while (updates_.size() != 0) {
            auto next = co_await updates_.pop();
            take(*next);
        }
        submit_more();
        finish_if_all_ended();
        if (events_.empty()) continue;
        if (!co_await responder_.on_events(events_)) co_return;
        events_.clear();
    }
}

void TokenRequest::submit_more() {
    while (submitted_ < plan_.adds.size() && active_ < kMaxActive) {
        const auto i = static_cast<std::uint32_t>(submitted_++);
        ++active_;
        choices_[i].session = model_.worker->submit(
            std::move(plan_.adds[i]), [this, i](pools::Update&& u) { on_update(i, std::move(u)); });
    }
}

// On the worker's stack: nothing is ended here, only queued.
void TokenRequest::on_update(std::uint32_t choice, pools::Update&& update) {
    if (updates_.push(Item{choice, std::move(update)}) || overflowed_) return;
    overflowed_ = true;
    updates_.close();
    x_.core().probe.slow_client();
    x_.loop().post([self = std::weak_ptr<TokenRequest*>(self_)] {
        const auto alive = self.lock();
        if (!alive) return;
        for (Choice& c : (*alive)->choices_) c.session.reset();
    });
}

void TokenRequest::take(Item& item) {
    Choice& choice = choices_[item.choice];
    if (choice.ended || overflowed_) return;
    pools::Update& u = item.update;
    if (u.started) choice.cached = u.started->cached_tokens;
    if (u.finished) {
        // An image is a place in our prompt; how many tokens it takes, the engine knows.
        TokenCount& prompt = plan_.prompt_tokens[item.choice / plan_.n];
        prompt = std::max(prompt, u.finished->prompt_tokens);
    }
    if (u.embedding)
        events_.emplace_back(model::EmbeddingOut{item.choice, std::move(u.embedding->values)});
    if (u.error) return fail(*std::move(u.error));
    if (!u.tokens.empty()) {
        const std::size_t before = events_.size();
        const bool stopped = choice.output.push(u.tokens, events_);
        count_reasoning(choice, u.tokens.size(), before);
        if (stopped) {
            if (!u.finished) x_.core().probe.aborted();
            return end_choice(choice);
        }
    }
    if (u.finished) take_finished(item.choice, *u.finished);
}

// Tokens belong to what was being said when they came: a marker counts with what it ends.
void TokenRequest::count_reasoning(Choice& choice, std::size_t tokens, std::size_t first_event) {
    bool reasoned = choice.reasoning;
    for (std::size_t i = first_event; i < events_.size(); ++i) {
        choice.reasoning = std::holds_alternative<model::ReasoningDelta>(events_[i]);
        reasoned = reasoned || choice.reasoning;
    }
    if (reasoned) choice.reasoning_tokens += static_cast<TokenCount>(tokens);
}

void TokenRequest::take_finished(std::uint32_t index, const model::Finished& f) {
    Choice& choice = choices_[index];
    choice.cached = f.cached_tokens;
    RequestRecord& r = x_.record;
    r.queue = std::max(r.queue, f.queue_time);
    r.restore = std::max(r.restore, f.restore_time);
    r.prefill = std::max(r.prefill, f.prefill_time);
    r.decode = std::max(r.decode, f.decode_time);
    if (f.reason == model::EndReason::kFailed) {
        return fail(f.error ? *f.error
                            : Error{Code::kInternal, "The engine failed without saying why."});
    }
    if (f.reason == model::EndReason::kAborted) return fail(aborted_by_engine());
    const std::size_t before = events_.size();
    if (!plan_.embed) choice.output.finish(f.reason, events_);
    for (std::size_t i = before; i < events_.size(); ++i) {
        auto* end = std::get_if<model::ChoiceEnd>(&events_[i]);
        if (end == nullptr) continue;
        if (plan_.named_call && end->reason == model::FinishReason::kToolCalls)
            end->reason = model::FinishReason::kStop;
        end->context_full = plan_.to_context_end && end->reason == model::FinishReason::kLength;
    }
    end_choice(choice);
}

void TokenRequest::end_choice(Choice& choice) {
    choice.ended = true;
    choice.session.reset();
    --active_;
    ++ended_;
}

// The first failure of a choice is the failure of the request; the other choices are aborted. Text
// that was held back goes out before the error.
void TokenRequest::fail(Error error) {
    const bool callers = error.code == Code::kInvalidArgument || error.code == Code::kUnsupported;
    if (callers && error.param.empty()) error.param = plan_.grammar_param;
    for (Choice& c : choices_) {
        if (!c.ended && !plan_.embed) c.output.finish(model::EndReason::kFailed, events_);
        c.ended = true;
        c.session.reset();
    }
    active_ = 0;
    submitted_ = plan_.adds.size();
    events_.emplace_back(model::Failed{std::move(error)});
}

void TokenRequest::finish_if_all_ended() {
    if (ended_ == choices_.size()) events_.emplace_back(model::Done{usage()});
}

// A prompt counts once, however many choices it has; it was cached as far as its first choice found
// it cached.
model::Usage TokenRequest::usage() const {
    model::Usage u;
    for (std::size_t p = 0; p < plan_.prompt_tokens.size(); ++p) {
        u.prompt_tokens += plan_.prompt_tokens[p];
        u.cached_tokens += std::min(choices_[p * plan_.n].cached, plan_.prompt_tokens[p]);
    }
    for (const Choice& c : choices_) {
        u.completion_tokens += c.output.tokens();
        u.reasoning_tokens += std::min(c.reasoning_tokens, c.output.tokens());
    }
    return u;
}

}  // namespace nereid::gateway
