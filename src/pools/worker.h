// Worker: a gateway's view of one engine, wherever it runs. Implementations: pools/local (a
// supervised child process spoken to by engine-wire), later remote workers over gRPC.
//
// A Worker belongs to one loop (its link). Gateways on other loops use a WorkerHandle made for
// their loop; updates arrive there, grouped: one post per step and loop. All functions are called
// on the handle's loop and do not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"
#include "model/engine_port.h"

namespace nereid::pools {

// What one step said about one request. After an update with `finished` or `error` nothing follows.
struct Update {
    std::optional<model::Started> started;
    std::vector<model::TokenOut> tokens;
    std::optional<model::Embedding> embedding;
    std::optional<model::PromptLogprobs> prompt_logprobs;
    std::optional<model::Finished> finished;  // any EndReason, kFailed included
    std::optional<Error>
        error;  // kWorkerLost (the engine died after output), kUnavailable, kOverloaded
};
using UpdateFn = std::move_only_function<void(Update&&)>;

enum class WorkerState : std::uint8_t {
    kStarting,  // the process runs, the model loads
    kReady,
    kDraining,
    kBackoff,  // died; will be started again at a known time
    kFailed,   // given up (a configuration error: it would die again)
    kStopped,
};
std::string_view to_string(WorkerState state);

struct WorkerStatus {
    WorkerState state = WorkerState::kStarting;
    std::optional<model::EngineInfo> info;  // of the last greeting; kept through a restart
    model::Load load;
    std::uint64_t restarts = 0;
    std::uint64_t steps = 0;
    std::uint32_t in_flight = 0;  // submitted and not ended, queued in the pool included
    std::string last_error;       // of the last death, for people
    Duration retry_in{0};         // kBackoff: until the next start
    int pid = 0;
};

// Owns one submitted request; destroying it aborts the request (nothing is called afterwards).
class Session {
  public:
    virtual ~Session() = default;
};

class WorkerHandle {
  public:
    virtual ~WorkerHandle() = default;
    virtual std::string_view name() const = 0;
    // A recent copy (at most one step old on the link's loop, plus one hop).
    virtual const WorkerStatus& status() const = 0;
    // Queues the request; `request.id` is set by the callee. While the worker starts or restarts,
    // requests wait here (bounded). Requests that had produced no output when the worker died are
    // admitted again, in order; the others get kWorkerLost. Refusals come as an Update too
    // (kOverloaded with a full queue, kUnavailable when failed).
    virtual std::unique_ptr<Session> submit(model::AddRequest request, UpdateFn on_update) = 0;
};

}  // namespace nereid::pools
