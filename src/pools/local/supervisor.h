// Supervisor: every decision about one supervised engine child, as a pure state machine (DESIGN §3,
// principle 1).
//
// step(event, now) -> Actions. It reads no clock, opens no socket and starts no process:
// local_worker.cc does what the actions say and feeds back what happened. States, events and
// time-outs: the table in pools/README.md.
//
// What it promises, for any order of events:
//   - each request ends exactly once (an Update with `finished` or `error`), unless it was aborted
//   first: then never;
//   - requests that had produced nothing when the child died are given to the next child in order
//   of their ids; one
//     that has met `max_attempts` deaths is given up, so that a request that kills engines does not
//     kill for ever;
//   - no more than `queue_max` requests without output are held, and no more than the engine said
//   it takes
//     (max_running + max_queued) are sent to it.
// Cost: O(log n) per event and O(1) per token, n = requests in flight. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "model/engine_port.h"
#include "pools/worker.h"

namespace nereid::pools {

struct SupervisorConfig {
    std::uint64_t queue_max = 256;
    Duration start_timeout = 120s;
    Duration progress_timeout = 60s;
    Duration backoff_first = 100ms;
    Duration backoff_max = 10s;
    Duration healthy_after = 60s;  // a child that served this long clears the back-off
    Duration exit_grace =
        1s;  // from a closed link to SIGKILL: the exit status says more than the link
    Duration terminate_grace = 5s;  // from SIGTERM to SIGKILL
    std::uint32_t max_attempts = 3;
};

enum class DeathCause : std::uint8_t {
    kExit,          // ended by itself
    kSignal,        // crashed or was killed from outside
    kStalled,       // neither frame nor pong within progress_timeout
    kStartTimeout,  // no greeting within start_timeout
    kBadMessage,    // bytes on the link that are no message, or the wrong one
    kLinkClosed,    // the link ended and the process did not
    kSpawnFailed,   // the operating system refused to start it
};
inline constexpr std::size_t kDeathCauses = 7;
std::string_view to_string(
    DeathCause cause);  // snake_case: the label of nereid_worker_restarts_total

// ---------------------------------------------------------------- what happened

struct StartEvent {};
struct SubmitEvent {
    std::uint32_t route = 0;    // given back with each delivery; means nothing here
    model::AddRequest request;  // id set, never used before
};
struct AbortEvent {
    RequestId id;
};  // idempotent; unknown and ended ids are ignored
struct UnsendableEvent {
    RequestId id;
};  // a request that was to be sent is larger than the wire allows
struct SpawnedEvent {
    int pid = 0;
};
struct SpawnFailedEvent {
    Error error;
};
struct GreetedEvent {
    model::EngineInfo info;
};
struct RefusedEvent {
    Error error;
};  // the child will not speak with us
struct FrameEvent {
    model::StepFrame frame;
};
struct PongEvent {};
struct BadMessageEvent {
    Error error;
};
struct LinkClosedEvent {
    std::string reason;
};
struct ExitedEvent {
    int code = 0;
    int signal = 0;
    std::string text;       // "exit 2", "killed by SIGKILL"
    std::string last_line;  // of its standard error, for people
};
struct DrainEvent {
    TimePoint deadline;
};
struct TickEvent {};  // wake_at() has come
using SupervisorEvent =
    std::variant<StartEvent, SubmitEvent, AbortEvent, UnsendableEvent, SpawnedEvent,
                 SpawnFailedEvent, GreetedEvent, RefusedEvent, FrameEvent, PongEvent,
                 BadMessageEvent, LinkClosedEvent, ExitedEvent, DrainEvent, TickEvent>;

// ---------------------------------------------------------------- what to do

struct Delivery {
    std::uint32_t route = 0;
    RequestId id;
    Update update;
};
// To be done in the order of the members.
struct Actions {
    std::vector<Delivery> deliver;  // at most one per request
    bool close_link = false;
    bool kill_child = false;       // SIGKILL
    bool terminate_child = false;  // SIGTERM
    bool start_child = false;      // answered by Spawned or SpawnFailed
    std::vector<model::Command> send;
    std::optional<std::uint64_t> ping;  // nonce
    bool state_changed = false;         // status() has more news than load and counts
    bool stopped = false;               // the drain is over
};

struct SupervisorCounters {
    std::array<std::uint64_t, kDeathCauses>
        deaths{};  // by DeathCause; the supervisor answers each with a restart, unless draining
    std::uint64_t config_failures = 0;
    std::uint64_t readmitted = 0;
    std::uint64_t lost = 0;  // ended with kWorkerLost
    std::uint64_t refused_overloaded = 0;
    std::uint64_t refused_unavailable = 0;
    std::uint64_t refused_too_large = 0;
    std::uint64_t aborted = 0;
    std::uint64_t bad_messages = 0;
    std::uint64_t unknown_ids = 0;  // results for requests that the engine did not have from us
    std::uint64_t pings = 0;
};

class Supervisor {
  public:
    explicit Supervisor(SupervisorConfig config);
    Actions step(SupervisorEvent event, TimePoint now);
    // When a TickEvent is due; never() when nothing waits for time.
    TimePoint wake_at() const;
    const WorkerStatus& status() const { return status_; }
    const SupervisorCounters& counters() const { return counters_; }
    std::size_t waiting() const { return waiting_.size(); }  // held here, not sent
    std::size_t at_engine() const {
        return at_engine_;
    }  // sent and not ended, aborted ones included

  private:
    enum class Phase : std::uint8_t {
        kIdle,
        kLaunching,
        kReady,
        kDying,
        kBackoff,
        kTerminating,
        kFailed,
        kStopped
    };
    struct Entry {
        std::uint32_t route = 0;
        std::uint32_t attempts = 0;  // children that it was sent to
        bool sent = false;
        bool output = false;
        bool started = false;       // the Started update was delivered
        bool aborted = false;       // kept only until the engine says that it has ended
        std::uint64_t stamp = 0;    // of the frame for which `slot` is valid
        std::size_t slot = 0;       // in Actions::deliver
        model::AddRequest request;  // emptied at the first output: it can no longer be sent again
    };
    using Requests = std::map<RequestId, Entry>;

    void on(StartEvent&&);
    void on(SubmitEvent&&);
    void on(AbortEvent&&);
    void on(UnsendableEvent&&);
    void on(SpawnedEvent&&);
    void on(SpawnFailedEvent&&);
    void on(GreetedEvent&&);
    void on(RefusedEvent&&);
    void on(FrameEvent&&);
    void on(PongEvent&&);
    void on(BadMessageEvent&&);
    void on(LinkClosedEvent&&);
    void on(ExitedEvent&&);
    void on(DrainEvent&&);
    void on(TickEvent&&);

    void launch();
    void pump();                       // sends what waits, as far as the engine takes it
    Update* update_for(RequestId id);  // of this frame; null = aborted or unknown
    void mark_output(RequestId id);
    void finish(model::Finished&& finished);
    void end_with(Requests::iterator it, Error error);
    void fail_all(const Error& without_output);
    void give_up(std::string why);  // kFailed
    void abandon_child(
        DeathCause cause,
        std::string why);  // the link is useless: settle its requests, await the exit
    void kill_now();
    void settle_requests();  // after a death: lose, re-admit
    void dead();             // the child is gone: back-off, or stopped
    void check_drained();
    void terminate();
    void refresh_status();
    void set_phase(Phase phase);
    bool link_usable() const { return phase_ == Phase::kReady; }

    SupervisorConfig config_;
    Phase phase_ = Phase::kIdle;
    Requests requests_;
    std::set<RequestId> waiting_;
    std::size_t at_engine_ = 0;
    std::size_t without_output_ = 0;  // live requests that queue_max bounds
    std::size_t live_ = 0;            // not aborted
    std::uint64_t stamp_ = 0;

    bool greeted_ = false;  // this child
    bool child_alive_ = false;
    bool killed_ = false;  // we sent SIGKILL
    DeathCause cause_ = DeathCause::kExit;
    std::uint32_t consecutive_deaths_ = 0;
    TimePoint ready_since_;
    TimePoint start_deadline_ = TimePoint::never();
    TimePoint kill_at_ = TimePoint::never();
    TimePoint retry_at_ = TimePoint::never();
    TimePoint last_progress_;
    bool pinged_ = false;
    std::uint64_t next_nonce_ = 1;

    bool draining_ = false;
    TimePoint drain_deadline_ = TimePoint::never();

    TimePoint now_;    // of the event that is being handled
    Actions actions_;  // of the event that is being handled
    WorkerStatus status_;
    SupervisorCounters counters_;
};

}  // namespace nereid::pools
