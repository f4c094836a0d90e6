#include "gateway/responder.h"

#include <utility>
#include <variant>

#include "dialect/chat/chat.h"

namespace nereid::gateway {
Responder::Responder(Exchange& exchange, Form& form, RunFacts facts, bool stream)
    : x_(exchange), form_(form) {
    if (stream) {
        sse_.emplace(exchange);
        encoder_ = form.encoder(std::move(facts));
    } else {
        collector_ = form.whole(std::move(facts));
    }
}

io::Task<bool> Responder::open() {
    if (!sse_) co_return true;
    co_return co_await sse_->open();
}

io::Task<bool> Responder::on_events(std::vector<model::Event>& events) {
    note_all(events);
    if (sse_) co_return co_await stream(events);
    for (const auto& event : events) collector_->on(event);
    if (ended_) co_await send_whole();
    co_return true;
}

io::Task<bool> Responder::stream(const std::vector<model::Event>& events) {
    if (failed_ && !sse_->opened()) {
        sse_.reset();  // no comment may slip out beside the error
        frames_.clear();
        for (const auto& event : events) encoder_->on(event, frames_);
        if (form_.keeps_state()) co_await form_.before_end();
        co_await x_.fail(*std::move(failed_));
        co_return true;
    }
    frames_.clear();
    for (const auto& event : events) encoder_->on(event, frames_);
    if (ended_ && form_.keeps_state()) co_await form_.before_end();
    if (!ended_ && !frames_.empty()) co_return co_await sse_->write(frames_);
    if (!co_await sse_->open()) co_return false;
    if (!ended_) co_return true;
    co_return co_await sse_->finish(frames_);
}

io::Task<void> Responder::send_whole() {
    if (form_.keeps_state()) co_await form_.before_end();
    auto body = collector_->body();
    if (!body.ok()) {
        co_await x_.fail(std::move(body.error()));
        co_return;
    }
    io::Headers headers = x_.headers("application/json");
    headers.add("server-timing", server_timing(x_.record, x_.loop().now()));
    co_await x_.send(200, std::move(headers), *std::move(body));
}

void Responder::note_all(const std::vector<model::Event>& events) {
    bool output = false;
    for (const auto& event : events) note(event, output);
    if (!output) return;
    const TimePoint now = x_.loop().now();
    RequestRecord& r = x_.record;
    if (r.first_token == TimePoint{})
        r.first_token = now;
    else
        x_.core().probe.inter_token(now - r.last_token);
    r.last_token = now;
}

void Responder::note(const model::Event& event, bool& output) {
    RequestRecord& r = x_.record;
    if (const auto* end = std::get_if<model::ChoiceEnd>(&event)) {
        x_.ended_as(dialect::chat::finish_name(end->reason));
    } else if (const auto* done = std::get_if<model::Done>(&event)) {
        r.prompt_tokens = done->usage.prompt_tokens;
        r.cached_tokens = done->usage.cached_tokens;
        r.completion_tokens = done->usage.completion_tokens;
        ended_ = true;
    } else if (const auto* failed = std::get_if<model::Failed>(&event)) {
        r.end = code_info(failed->error.code).name;
        r.failed = true;
        failed_ = failed->error;
        ended_ = true;
    } else if (!std::holds_alternative<model::Start>(event)) {
        output = true;
    }
}

}  // namespace nereid::gateway
