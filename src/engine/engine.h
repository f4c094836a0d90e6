// Engine: the stepped machine that every adapter implements (DESIGN §5, docs/adr/0003).
//
// One thread owns an engine and alternates `submit` and `step`. Nothing here blocks on the world,
// except that `step` computes: one llama_decode, one LLMEngine.step(). An adapter states what it
// cannot do in info(); a command beyond that is answered by Finished{kFailed, kUnsupported}, never
// ignored.
//
// Failure: submit never fails for a reason of the request (that becomes a Finished of the next
// frame). step() returning an error means that the engine is broken (kInternal, kCorrupt): the
// process should exit and be restarted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "model/engine_port.h"

namespace nereid::engine {

class Engine {
  public:
    virtual ~Engine() = default;
    virtual const model::EngineInfo& info() const = 0;
    // Applies at once or at the next step, in order. `now` is for queue times only.
    virtual void submit(model::Command command, TimePoint now) = 0;
    // True when a step would make progress. When false, `step` may still return results of commands
    // (aborts, refusals): see has_output.
    virtual bool has_work() const = 0;
    virtual bool has_output() const = 0;
    // When has_work() is false, the moment at which it may become true by itself (a scripted
    // delay); never() if not.
    virtual TimePoint wake_at() const { return TimePoint::never(); }
    // For engines whose work goes on elsewhere: `wake` is to be called, on the loop's thread, when
    // has_output() has become true by itself. Replaces the one before; empty = none.
    // NOLINTNEXTLINE(performance-unnecessary-value-param): overriders keep it
    virtual void set_waker(std::function<void()> /*wake*/) {}
    // Whether to call step() now. A driver asks this rather than has_work(), which cannot know that
    // wake_at() has passed.
    bool due(TimePoint now) const { return has_work() || has_output() || wake_at() <= now; }
    // Runs one step. `now` is read before the step; `clock` may be read inside for step times.
    virtual Result<model::StepFrame> step(TimePoint now) = 0;
};

}  // namespace nereid::engine
