// A worker's health as its gateway sees it, and the budget of retries: pure state machines that the
// gateway drives with outcomes and time.
//
// Outcomes have three classes (R35): the client's fault says nothing of the worker; *busy* (429,
// 503 with retry-after, quota refused) is back-pressure, a short lease on the view and never the
// breaker; a *fault* (refused connection, reset, time-out, 5xx otherwise) counts. Every negative
// mark is a lease (R36): an open breaker lets one request through (half-open) when its time is
// over, at most `open_max`; success closes it. Liveness does not depend on load (R38): a probe that
// times out while requests succeed is no evidence.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/units.h"

namespace nereid::router {

enum class Outcome : std::uint8_t {
    kSuccess,  // 2xx, and the stream ended as it should
    kClient,   // any other 4xx, or the client went away
    kBusy,     // 429, 503, quota refused
    kFault,    // the rest
};
// status 0: no answer (refused, reset, timed out) = kFault. 408, 499 = kClient.
Outcome classify_status(int status);
Outcome classify_error(Code code);

struct HealthOptions {
    std::uint32_t faults_to_open = 3;  // consecutive
    double fault_ratio_to_open =
        0.5;                      // of the last `window` outcomes that were success or fault ...
    std::uint32_t window = 20;    // ... when there are as many
    Duration open_first = 250ms;  // doubles with each failed half-open try
    Duration open_max = 1s;       // (R36)
    std::uint32_t probes_to_down = 3;  // consecutive failed probes without a success between
};

class Health {
  public:
    enum class State : std::uint8_t { kClosed, kOpen, kHalfOpen };
    explicit Health(const HealthOptions& options) : options_(options) {}

    void outcome(Outcome outcome, TimePoint now);
    // A liveness probe of ours.
    void probe(bool alive, TimePoint now);
    // May a request go there? Half-open: one at a time; `begin` it when it goes.
    bool admits(TimePoint now) const;
    void begin(TimePoint now);
    State state(TimePoint now) const;
    TimePoint open_until() const { return open_until_; }
    std::uint64_t opened() const { return opened_; }

  private:
    void open(TimePoint now);
    HealthOptions options_;
    std::uint32_t faults_in_row_ = 0;
    std::uint32_t probes_failed_ = 0;
    std::uint64_t history_ = 0;  // last outcomes, 1 = fault; newest in bit 0
    std::uint32_t history_count_ = 0;
    bool open_ = false;
    bool trial_ = false;  // the half-open request is out
    TimePoint trial_until_{};
    TimePoint open_until_{};
    Duration open_for_{0};
    std::uint64_t opened_ = 0;
};

// A token bucket in proportion to requests: each request adds `ratio`, each retry takes 1; at most
// `burst` are saved up. Bounds the load that retries add (Envoy's retry budget, Finagle's).
class RetryBudget {
  public:
    RetryBudget(double ratio, double burst) : ratio_(ratio), burst_(burst), tokens_(burst) {}
    void request() { tokens_ = tokens_ + ratio_ > burst_ ? burst_ : tokens_ + ratio_; }
    bool take() {
        if (tokens_ < 1) {
            ++refused_;
            return false;
        }
        tokens_ -= 1;
        ++taken_;
        return true;
    }
    double tokens() const { return tokens_; }
    std::uint64_t taken() const { return taken_; }
    std::uint64_t refused() const { return refused_; }

  private:
    double ratio_, burst_, tokens_;
    std::uint64_t taken_ = 0, refused_ = 0;
};

}  // namespace nereid::router
