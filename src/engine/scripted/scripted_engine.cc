#include "engine/scripted/scripted_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace nereid::engine::scripted {
namespace {

constexpr std::string_view kLastResort =
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit. ";
constexpr float kStubLogprob = -0.25f;

// {images}: sizes and digests of the request's images, so that a test sees what came through.
std::string said(std::string text, const model::AddRequest& request) {
    constexpr std::string_view kMark = "{images}";
    const auto at = text.find(kMark);
    if (at == std::string::npos) return text;
    std::string list;
    for (const std::string& bytes : request.image_bytes) {
        const Digest256 digest = sha256(as_bytes(bytes));
        list += fmt::format("{}{} bytes {}", list.empty() ? "" : ", ", bytes.size(),
                            to_hex(std::span(digest).first(4)));
    }
    return text.replace(at, kMark.size(), list.empty() ? "none" : list);
}

}  // namespace

ScriptedEngine::ScriptedEngine(Script script) : script_(std::move(script)) {
    last_resort_.text = kLastResort;
    last_resort_.repeat = 0;
    last_resort_.ttft = script_.ttft;
    last_resort_.itl = script_.itl;
    info_.engine = "scripted";
    info_.engine_version = "1";
    info_.model_id = script_.model_id;
    info_.model_digest = sha256(as_bytes("scripted"));
    info_.vocab_size = kVocabulary;
    info_.context_tokens = script_.context_tokens;
    info_.eos_ids = {kEndToken};
    info_.logprobs = true;
    info_.max_top_logprobs = 20;
    info_.deterministic = true;
    info_.images = script_.images;
    info_.max_running = script_.parallel;
    info_.max_queued = script_.max_queued;
    info_.kv_capacity_tokens = script_.parallel * script_.context_tokens;
}

void ScriptedEngine::submit(model::Command command, TimePoint now) {
    seen_ = std::max(seen_, now);
    const auto no_kv = [&](RequestId id) {
        outbox_.kv_failed.push_back({id, {Code::kUnsupported, "the scripted engine has no KV"}});
    };
    if (const auto* c = std::get_if<model::AddRequest>(&command)) return add(*c, now);
    if (std::holds_alternative<model::Drain>(command)) {
        draining_ = true;
    } else if (const auto* abort = std::get_if<model::AbortRequest>(&command)) {
        const auto it = runs_.find(abort->id);
        if (it != runs_.end()) finish(it->second, now, model::EndReason::kAborted);
    } else if (const auto* admit = std::get_if<model::AdmitDecode>(&command)) {
        outbox_.finished.push_back(
            {.id = admit->request.id,
             .reason = model::EndReason::kFailed,
             .error = Error{Code::kUnsupported, "the scripted engine has no KV"}});
    } else if (const auto* import = std::get_if<model::ImportPrefix>(&command)) {
        no_kv(import->id);
    } else if (const auto* wanted = std::get_if<model::ExportBlocks>(&command)) {
        no_kv(wanted->id);
    } else if (const auto* pin = std::get_if<model::Pin>(&command)) {
        no_kv(pin->id);
    }
}

const Rule& ScriptedEngine::rule_for(const model::AddRequest& request) const {
    std::string prompt;
    for (const TokenId id : request.prompt) {
        if (id < kEndToken) prompt.push_back(static_cast<char>(id));
    }
    for (const Rule& rule : script_.rules) {
        if (prompt.find(rule.contains) != std::string::npos) return rule;
    }
    return last_resort_;
}

void ScriptedEngine::add(const model::AddRequest& request, TimePoint now) {
    const auto refused = [&](Code code, std::string message) {
        outbox_.finished.push_back({.id = request.id,
                                    .reason = model::EndReason::kFailed,
                                    .prompt_tokens = static_cast<TokenCount>(request.prompt.size()),
                                    .error = Error{code, std::move(message)}});
    };
    if (const auto it = runs_.find(request.id); it != runs_.end()) {
        return finish(it->second, now, model::EndReason::kFailed,
                      Error{Code::kConflict, "this id was added twice"});
    }
    if (draining_) return refused(Code::kOverloaded, "the engine is draining");
    if (request.mode != model::AddMode::kUnified)
        return refused(Code::kUnsupported, "the scripted engine only generates");
    if (request.prompt.empty()) return refused(Code::kInvalidArgument, "the prompt is empty");
    if (request.max_tokens == 0) return refused(Code::kInvalidArgument, "max_tokens is 0");
    for (const TokenId id : request.prompt) {
        if (id < 0 || static_cast<std::uint32_t>(id) >= kVocabulary) {
            return refused(Code::kInvalidArgument,
                           fmt::format("token id {} is outside the vocabulary", id));
        }
    }
    if (request.prompt.size() >= script_.context_tokens)
        return refused(Code::kContextLength, "the prompt fills the context");
    if (request.grammar_kind != model::GrammarKind::kNone)
        return refused(Code::kUnsupported, "the scripted engine knows no grammars");
    const std::uint32_t free = script_.parallel - std::min(running_, script_.parallel);
    if (queue_.size() >= std::size_t{free} + script_.max_queued) {
        return refused(Code::kOverloaded, fmt::format("{} requests are queued", queue_.size()));
    }
    const Rule& rule = rule_for(request);
    if (rule.refuse.has_value()) return refused(*rule.refuse, "refused by the script");
    Run run;
    run.request = request;
    run.rule = &rule;
    run.text = said(rule.text, request);
    run.arrival = arrivals_++;
    run.submitted = now;
    queue_.insert({request.priority, run.arrival, request.id});
    runs_.emplace(request.id, std::move(run));
}

void ScriptedEngine::finish(const Run& run, TimePoint now, model::EndReason reason,
                            std::optional<Error> error) {
    const RequestId id = run.request.id;
    outbox_.finished.push_back(
        {.id = id,
         .reason = reason,
         .prompt_tokens = static_cast<TokenCount>(run.request.prompt.size()),
         .output_tokens = run.outputs,
         .queue_time = run.running ? run.started - run.submitted : now - run.submitted,
         .decode_time = run.running ? now - run.started : Duration{0},
         .error = std::move(error)});
    if (run.running) --running_;
    queue_.erase({run.request.priority, run.arrival, id});
    runs_.erase(id);
}

bool ScriptedEngine::stalled(const Run& run) const {
    return run.rule->stall_at.has_value() && run.outputs >= *run.rule->stall_at;
}

TimePoint ScriptedEngine::wake_at() const {
    TimePoint at = TimePoint::never();
    for (const auto& [id, run] : runs_) {
        if (run.running && !stalled(run)) at = std::min(at, run.due);
    }
    return at;
}

bool ScriptedEngine::has_work() const {
    return !dead_ && (wake_at() <= seen_ || (!queue_.empty() && running_ < script_.parallel));
}

void ScriptedEngine::start_queued(TimePoint now) {
    while (!queue_.empty() && running_ < script_.parallel) {
        const RequestId id = std::get<2>(*queue_.begin());
        queue_.erase(queue_.begin());
        Run& run = runs_.at(id);
        run.running = true;
        run.started = now;
        run.due = now + run.rule->ttft;
        ++running_;
        outbox_.started.push_back({id, 0});
    }
}

TokenId ScriptedEngine::next_token(const Run& run) const {
    const std::string& text = run.text;
    const bool endless = run.rule->repeat == 0;
    if (!endless && run.outputs >= std::uint64_t{run.rule->repeat} * text.size()) return kEndToken;
    return static_cast<TokenId>(static_cast<unsigned char>(text[run.outputs % text.size()]));
}

Result<void> ScriptedEngine::advance(Run& run, TimePoint now) {
    using model::EndReason;
    const auto& r = run.request;
    if (run.rule->die_at.has_value() && run.outputs >= *run.rule->die_at) {
        dead_ = true;
        return err(Code::kInternal, "the script lets the engine die here");
    }
    if (run.rule->fail_at.has_value() && run.outputs >= *run.rule->fail_at) {
        finish(run, now, EndReason::kFailed,
               Error{Code::kInternal, "the script lets the request fail here"});
        return {};
    }
    TokenId token = next_token(run);
    if (token == kEndToken && r.ignore_eos) token = ' ';
    model::TokenOut out{.id = r.id, .token = token, .top = {}};
    if (r.logprobs || r.top_logprobs > 0) {
        out.logprob = kStubLogprob;
        for (std::uint32_t i = 0; i < std::min(r.top_logprobs, info_.max_top_logprobs); ++i) {
            out.top.push_back(
                {static_cast<TokenId>((static_cast<std::uint32_t>(token) + i) % kVocabulary),
                 i == 0 ? kStubLogprob : -static_cast<float>(i + 1)});
        }
    }
    outbox_.tokens.push_back(std::move(out));
    ++run.outputs;
    run.due = run.due + run.rule->itl;
    const bool stop = token == kEndToken ||
                      std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end();
    const bool full =
        run.outputs >= r.max_tokens || r.prompt.size() + run.outputs >= script_.context_tokens;
    if (stop || full) finish(run, now, stop ? EndReason::kStop : EndReason::kLength);
    return {};
}

Result<model::StepFrame> ScriptedEngine::step(TimePoint now) {
    seen_ = std::max(seen_, now);
    if (dead_) return err(Code::kInternal, "the engine is dead");
    start_queued(now);
    for (auto it = runs_.begin(); it != runs_.end();) {
        Run& run = it->second;
        ++it;  // before the run may be erased
        if (run.running && !stalled(run) && run.due <= now) TRY_VOID(advance(run, now));
    }
    ++steps_;
    fill_load();
    model::StepFrame frame = std::exchange(outbox_, {});
    frame.step = StepId{steps_};
    frame.load = load_;
    return frame;
}

void ScriptedEngine::fill_load() {
    load_ = {};
    load_.running = running_;
    load_.waiting = static_cast<std::uint32_t>(queue_.size());
    load_.kv_total_tokens = info_.kv_capacity_tokens;
    for (const auto& [id, run] : runs_) {
        const auto tokens = static_cast<TokenCount>(run.request.prompt.size());
        if (run.running) {
            load_.kv_used_tokens += tokens + run.outputs;
        } else {
            load_.waiting_uncached_tokens += tokens;
        }
    }
}

}  // namespace nereid::engine::scripted
