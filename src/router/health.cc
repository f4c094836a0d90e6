#include "router/health.h"

#include <algorithm>
#include <bit>

namespace nereid::router {

Outcome classify_status(int status) {
    if (status == 429 || status == 503) return Outcome::kBusy;
    if (status >= 400 && status < 500) return Outcome::kClient;
    return status >= 200 && status < 400 ? Outcome::kSuccess : Outcome::kFault;
}

Outcome classify_error(Code code) {
    switch (code) {
        case Code::kOverloaded:
        case Code::kRateLimited:
        case Code::kNoSpace:
            return Outcome::kBusy;
        case Code::kUnavailable:
        case Code::kWorkerLost:
        case Code::kDeadlineExceeded:
        case Code::kCorrupt:
        case Code::kIo:
        case Code::kInternal:
            return Outcome::kFault;
        default:
            return Outcome::kClient;
    }
}

void Health::open(TimePoint now) {
    open_for_ =
        open_for_ == Duration(0) ? options_.open_first : std::min(open_for_ * 2, options_.open_max);
    open_ = true;
    trial_ = false;
    open_until_ = now + open_for_;
    history_ = 0;
    history_count_ = 0;
    faults_in_row_ = 0;
    ++opened_;
}

void Health::outcome(Outcome outcome, TimePoint now) {
    if (outcome == Outcome::kClient || outcome == Outcome::kBusy) {
        trial_ = false;  // it answered at least; the next one may try
        return;
    }
    if (outcome == Outcome::kSuccess) {
        probes_failed_ = 0;
        faults_in_row_ = 0;
        open_ = false;
        trial_ = false;
        open_for_ = Duration(0);
    }
    const bool fault = outcome == Outcome::kFault;
    if (fault && open_) {
        // Late failures of requests sent before it opened do not lengthen it; that of a trial does.
        if (trial_ || now >= open_until_) open(now);
        return;
    }
    history_ = history_ << 1u | (fault ? 1u : 0u);
    history_count_ = std::min(history_count_ + 1, std::min(options_.window, 64u));
    if (!fault) return;
    ++faults_in_row_;
    const std::uint64_t window =
        history_count_ >= 64 ? ~0ull : (std::uint64_t{1} << history_count_) - 1;
    const auto faults = static_cast<double>(std::popcount(history_ & window));
    const bool by_ratio = history_count_ >= options_.window &&
                          faults >= options_.fault_ratio_to_open * history_count_;
    if (faults_in_row_ >= options_.faults_to_open || by_ratio) open(now);
}

void Health::probe(bool alive, TimePoint now) {
    if (alive) {
        probes_failed_ = 0;
        return;
    }
    if (++probes_failed_ < options_.probes_to_down) return;
    probes_failed_ = 0;
    if (!open_ || now >= open_until_) open(now);
}

Health::State Health::state(TimePoint now) const {
    if (!open_) return State::kClosed;
    return now < open_until_ ? State::kOpen : State::kHalfOpen;
}

bool Health::admits(TimePoint now) const {
    switch (state(now)) {
        case State::kClosed:
            return true;
        case State::kOpen:
            return false;
        case State::kHalfOpen:
            return !trial_ || now >= trial_until_;
    }
    return false;
}

void Health::begin(TimePoint now) {
    if (state(now) != State::kHalfOpen) return;
    trial_ = true;
    trial_until_ = now + options_.open_max;  // a trial that never ends is a lease too
}

}  // namespace nereid::router
