#include "pools/local/supervisor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nereid::pools {

namespace {

constexpr int kConfigExit =
    2;  // what `nereid worker` returns when starting it again would not help

Error unavailable(const std::string& why) {
    return {Code::kUnavailable,
            why.empty() ? "the engine is not available" : "the engine is not available: " + why};
}

}  // namespace

std::string_view to_string(WorkerState state) {
    switch (state) {
        case WorkerState::kStarting:
            return "starting";
        case WorkerState::kReady:
            return "ready";
        case WorkerState::kDraining:
            return "draining";
        case WorkerState::kBackoff:
            return "backoff";
        case WorkerState::kFailed:
            return "failed";
        case WorkerState::kStopped:
            return "stopped";
    }
    return "unknown";
}

std::string_view to_string(DeathCause cause) {
    switch (cause) {
        case DeathCause::kExit:
            return "exit";
        case DeathCause::kSignal:
            return "signal";
        case DeathCause::kStalled:
            return "stalled";
        case DeathCause::kStartTimeout:
            return "start_timeout";
        case DeathCause::kBadMessage:
            return "bad_message";
        case DeathCause::kLinkClosed:
            return "link_closed";
        case DeathCause::kSpawnFailed:
            return "spawn_failed";
    }
    return "unknown";
}

Supervisor::Supervisor(SupervisorConfig config) : config_(config) {}

Actions Supervisor::step(SupervisorEvent event, TimePoint now) {
    now_ = now;
    actions_ = {};
    std::visit([this](auto& e) { on(std::move(e)); }, event);
    pump();
    check_drained();
    refresh_status();
    return std::exchange(actions_, {});
}

TimePoint Supervisor::wake_at() const {
    TimePoint at = std::min({start_deadline_, kill_at_, retry_at_, drain_deadline_});
    if (link_usable() && at_engine_ > 0) {
        const Duration after = pinged_ ? config_.progress_timeout : config_.progress_timeout / 2;
        at = std::min(at, last_progress_ + after);
    }
    return at;
}

// ---------------------------------------------------------------- requests

void Supervisor::on(SubmitEvent&& e) {
    const RequestId id = e.request.id;
    Delivery refusal{e.route, id, {}};
    if (phase_ == Phase::kFailed) {
        refusal.update.error = unavailable(status_.last_error);
        ++counters_.refused_unavailable;
    } else if (draining_ || phase_ == Phase::kStopped) {
        refusal.update.error = Error{Code::kOverloaded, "the server is shutting down"};
        ++counters_.refused_overloaded;
    } else if (without_output_ >= config_.queue_max) {
        refusal.update.error = Error{Code::kOverloaded, "the engine's queue is full"};
        ++counters_.refused_overloaded;
    }
    if (refusal.update.error) {
        actions_.deliver.push_back(std::move(refusal));
        return;
    }
    Entry entry;
    entry.route = e.route;
    entry.request = std::move(e.request);
    const bool fresh = requests_.emplace(id, std::move(entry)).second;
    CHECK_MSG(fresh, "a request id is used once");
    waiting_.insert(id);
    ++without_output_;
    ++live_;
}

void Supervisor::on(AbortEvent&& e) {
    const auto it = requests_.find(e.id);
    if (it == requests_.end() || it->second.aborted) return;
    Entry& entry = it->second;
    ++counters_.aborted;
    --live_;
    if (!entry.output) --without_output_;
    if (!entry.sent) {
        waiting_.erase(e.id);
        requests_.erase(it);
        return;
    }
    entry.aborted = true;
    entry.request = {};
    actions_.send.emplace_back(model::AbortRequest{e.id});
}

void Supervisor::on(UnsendableEvent&& e) {
    const auto it = requests_.find(e.id);
    if (it == requests_.end() || !it->second.sent) return;
    ++counters_.refused_too_large;
    --at_engine_;
    end_with(it, Error{Code::kTooLarge, "the request is too large for the engine's wire"});
}

void Supervisor::pump() {
    if (!link_usable()) return;
    const model::EngineInfo& info = *status_.info;
    const std::uint64_t takes = static_cast<std::uint64_t>(info.max_running) + info.max_queued;
    while (!waiting_.empty() && (takes == 0 || at_engine_ < takes)) {
        const RequestId id = *waiting_.begin();
        waiting_.erase(waiting_.begin());
        Entry& entry = requests_.at(id);
        entry.sent = true;
        ++entry.attempts;
        if (at_engine_++ == 0) {
            last_progress_ = now_;
            pinged_ = false;
        }
        actions_.send.emplace_back(entry.request);
    }
}

Update* Supervisor::update_for(RequestId id) {
    const auto it = requests_.find(id);
    if (it == requests_.end() || !it->second.sent) {
        ++counters_.unknown_ids;
        return nullptr;
    }
    Entry& entry = it->second;
    if (entry.aborted) return nullptr;
    if (entry.stamp != stamp_) {
        entry.stamp = stamp_;
        entry.slot = actions_.deliver.size();
        actions_.deliver.push_back({entry.route, id, {}});
    }
    return &actions_.deliver[entry.slot].update;
}

void Supervisor::mark_output(RequestId id) {
    Entry& entry = requests_.at(id);
    if (entry.output) return;
    entry.output = true;
    entry.request = {};
    --without_output_;
}

void Supervisor::on(FrameEvent&& e) {
    if (!link_usable()) return;
    model::StepFrame& frame = e.frame;
    last_progress_ = now_;
    pinged_ = false;
    ++stamp_;
    ++status_.steps;
    status_.load = frame.load;
    for (auto& started : frame.started) {
        Update* u = update_for(started.id);
        if (u == nullptr) continue;
        // A request that was admitted again starts again; its owner hears it once.
        if (!std::exchange(requests_.at(started.id).started, true)) u->started = started;
    }
    for (auto& token : frame.tokens) {
        Update* u = update_for(token.id);
        if (u == nullptr) continue;
        mark_output(token.id);
        u->tokens.push_back(std::move(token));
    }
    for (auto& embedding : frame.embeddings) {
        Update* u = update_for(embedding.id);
        if (u == nullptr) continue;
        mark_output(embedding.id);
        u->embedding = std::move(embedding);
    }
    for (auto& logprobs : frame.prompt_logprobs) {
        Update* u = update_for(logprobs.id);
        if (u == nullptr) continue;
        mark_output(logprobs.id);
        u->prompt_logprobs = std::move(logprobs);
    }
    for (auto& finished : frame.finished) finish(std::move(finished));
    std::erase_if(actions_.deliver, [](const Delivery& d) {
        const Update& u = d.update;
        return !u.started && u.tokens.empty() && !u.embedding && !u.prompt_logprobs && !u.finished;
    });
}

void Supervisor::finish(model::Finished&& finished) {
    const RequestId id = finished.id;
    Update* u = update_for(id);
    const auto it = requests_.find(id);
    if (it == requests_.end() || !it->second.sent) return;
    if (u != nullptr) {
        u->finished = std::move(finished);
        if (!it->second.output) --without_output_;
        --live_;
    }
    --at_engine_;
    requests_.erase(it);
}

void Supervisor::end_with(Requests::iterator it, Error error) {
    Entry& entry = it->second;
    if (!entry.aborted) {
        if (error.code == Code::kWorkerLost) ++counters_.lost;
        if (!entry.output) --without_output_;
        --live_;
        Delivery d{entry.route, it->first, {}};
        d.update.error = std::move(error);
        actions_.deliver.push_back(std::move(d));
    }
    waiting_.erase(it->first);
    requests_.erase(it);
}

void Supervisor::fail_all(const Error& without_output) {
    while (!requests_.empty()) {
        const auto it = requests_.begin();
        const bool output = it->second.output;
        end_with(it, output ? Error{Code::kWorkerLost,
                                    "the engine was stopped before the answer was complete"}
                            : without_output);
    }
    at_engine_ = 0;
}

// ---------------------------------------------------------------- the child's life

void Supervisor::on(StartEvent&&) {
    if (phase_ == Phase::kIdle && !draining_) launch();
}

void Supervisor::launch() {
    set_phase(Phase::kLaunching);
    greeted_ = killed_ = false;
    child_alive_ = true;  // until Exited or SpawnFailed says otherwise
    retry_at_ = TimePoint::never();
    start_deadline_ = now_ + config_.start_timeout;
    actions_.start_child = true;
}

void Supervisor::on(SpawnedEvent&& e) {
    status_.pid = e.pid;
    actions_.state_changed = true;
}

void Supervisor::on(SpawnFailedEvent&& e) {
    if (phase_ != Phase::kLaunching && phase_ != Phase::kTerminating) return;
    cause_ = DeathCause::kSpawnFailed;
    status_.last_error = e.error.message;
    dead();
}

void Supervisor::on(GreetedEvent&& e) {
    if (phase_ != Phase::kLaunching) return;
    set_phase(Phase::kReady);
    greeted_ = true;
    ready_since_ = last_progress_ = now_;
    pinged_ = false;
    start_deadline_ = TimePoint::never();
    status_.info = std::move(e.info);
    status_.load = {};
}

void Supervisor::on(RefusedEvent&& e) {
    if (phase_ != Phase::kLaunching) return;
    give_up("the engine process refused the connection: " + e.error.message);
}

void Supervisor::on(PongEvent&&) {
    if (!link_usable()) return;
    last_progress_ = now_;
    pinged_ = false;
}

void Supervisor::on(BadMessageEvent&& e) {
    if (phase_ != Phase::kLaunching && phase_ != Phase::kReady) return;
    ++counters_.bad_messages;
    abandon_child(DeathCause::kBadMessage,
                  "the engine process sent a bad message: " + e.error.message);
    kill_now();
}

void Supervisor::on(LinkClosedEvent&& e) {
    if (phase_ != Phase::kLaunching && phase_ != Phase::kReady) return;
    abandon_child(DeathCause::kLinkClosed,
                  "the connection to the engine process ended: " + e.reason);
}

void Supervisor::on(ExitedEvent&& e) {
    if (!child_alive_) return;
    child_alive_ = false;
    // What we did to it ourselves is the cause; else its own end is, also when the link was seen to
    // close first.
    const bool ours = killed_ && phase_ != Phase::kTerminating;
    std::string why = e.text;
    if (!e.last_line.empty()) why += ": " + e.last_line;
    if (!ours) {
        cause_ = e.signal != 0 ? DeathCause::kSignal : DeathCause::kExit;
        status_.last_error = "the engine process ended (" + why + ")";
    }
    if (phase_ == Phase::kFailed) return;
    if (!ours && !greeted_ && !draining_ && e.signal == 0 && e.code == kConfigExit) {
        give_up(e.last_line.empty() ? "the engine process refused its configuration (exit 2)"
                                    : e.last_line);
        return;
    }
    dead();
}

void Supervisor::give_up(std::string why) {
    set_phase(Phase::kFailed);
    ++counters_.config_failures;
    status_.last_error = std::move(why);
    start_deadline_ = kill_at_ = retry_at_ = TimePoint::never();
    actions_.close_link = true;
    if (child_alive_) kill_now();
    fail_all(unavailable(status_.last_error));
}

void Supervisor::abandon_child(DeathCause cause, std::string why) {
    cause_ = cause;
    status_.last_error = std::move(why);
    start_deadline_ = TimePoint::never();
    kill_at_ = now_ + config_.exit_grace;
    actions_.close_link = true;
    set_phase(Phase::kDying);
    settle_requests();
}

void Supervisor::kill_now() {
    actions_.kill_child = killed_ = true;
    kill_at_ = TimePoint::never();
}

void Supervisor::settle_requests() {
    for (auto it = requests_.begin(); it != requests_.end();) {
        const auto here = it++;
        Entry& entry = here->second;
        if (!entry.sent) continue;
        if (entry.aborted) {
            requests_.erase(here);
        } else if (entry.output) {
            end_with(here, {Code::kWorkerLost, "the engine died before the answer was complete"});
        } else if (entry.attempts >= config_.max_attempts) {
            end_with(here,
                     {Code::kWorkerLost, "the engine died each time it was given this request"});
        } else {
            entry.sent = false;
            waiting_.insert(here->first);
            ++counters_.readmitted;
        }
    }
    at_engine_ = 0;
    status_.load = {};  // of an engine that is gone
}

void Supervisor::dead() {
    child_alive_ = false;
    settle_requests();
    status_.pid = 0;
    start_deadline_ = kill_at_ = TimePoint::never();
    actions_.close_link = true;
    if (draining_) {
        if (phase_ != Phase::kTerminating) ++counters_.deaths[static_cast<std::size_t>(cause_)];
        fail_all(unavailable("the server is shutting down"));
        set_phase(Phase::kStopped);
        drain_deadline_ = TimePoint::never();
        actions_.stopped = true;
        return;
    }
    ++counters_.deaths[static_cast<std::size_t>(cause_)];
    ++status_.restarts;
    if (greeted_ && now_ - ready_since_ >= config_.healthy_after) consecutive_deaths_ = 0;
    Duration pause = config_.backoff_first;
    for (std::uint32_t i = 0; i < consecutive_deaths_ && pause < config_.backoff_max; ++i)
        pause *= 2;
    pause = std::min(pause, config_.backoff_max);
    ++consecutive_deaths_;
    greeted_ = false;
    retry_at_ = now_ + pause;
    status_.retry_in = pause;
    set_phase(Phase::kBackoff);
}

// ---------------------------------------------------------------- time and the end

void Supervisor::on(TickEvent&&) {
    if (start_deadline_ <= now_) {
        abandon_child(DeathCause::kStartTimeout, "the engine process did not greet in time");
        kill_now();
    }
    if (kill_at_ <= now_) kill_now();
    if (link_usable() && at_engine_ > 0) {
        const Duration silent = now_ - last_progress_;
        if (silent >= config_.progress_timeout) {
            abandon_child(DeathCause::kStalled, "the engine process made no progress");
            kill_now();
        } else if (!pinged_ && silent >= config_.progress_timeout / 2) {
            pinged_ = true;
            ++counters_.pings;
            actions_.ping = next_nonce_++;
        }
    }
    if (drain_deadline_ <= now_) {
        drain_deadline_ = TimePoint::never();
        fail_all(unavailable("the server is shutting down"));
    }
    if (retry_at_ <= now_ && phase_ == Phase::kBackoff) launch();
}

void Supervisor::on(DrainEvent&& e) {
    if (draining_) {
        drain_deadline_ =
            phase_ == Phase::kStopped ? TimePoint::never() : std::min(drain_deadline_, e.deadline);
        return;
    }
    draining_ = true;
    drain_deadline_ = e.deadline;
    actions_.state_changed = true;
}

void Supervisor::check_drained() {
    if (!draining_ || live_ > 0 || phase_ == Phase::kTerminating || phase_ == Phase::kStopped)
        return;
    terminate();
}

void Supervisor::terminate() {
    drain_deadline_ = start_deadline_ = retry_at_ = TimePoint::never();
    if (!child_alive_) {
        set_phase(Phase::kStopped);
        actions_.close_link = true;
        actions_.stopped = true;
        return;
    }
    set_phase(Phase::kTerminating);
    if (!killed_) {
        actions_.terminate_child = true;
        kill_at_ = now_ + config_.terminate_grace;
    }
}

void Supervisor::set_phase(Phase phase) {
    phase_ = phase;
    actions_.state_changed = true;
}

void Supervisor::refresh_status() {
    const auto state = [this] {
        switch (phase_) {
            case Phase::kStopped:
                return WorkerState::kStopped;
            case Phase::kFailed:
                return WorkerState::kFailed;
            default:
                break;
        }
        if (draining_) return WorkerState::kDraining;
        switch (phase_) {
            case Phase::kReady:
                return WorkerState::kReady;
            case Phase::kDying:
            case Phase::kBackoff:
                return WorkerState::kBackoff;
            default:
                return WorkerState::kStarting;
        }
    };
    status_.state = state();
    if (phase_ != Phase::kBackoff) status_.retry_in = Duration{0};
    status_.in_flight = static_cast<std::uint32_t>(live_);
}

}  // namespace nereid::pools
