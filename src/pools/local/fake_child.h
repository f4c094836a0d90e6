// An engine child for tests: a real EngineHost over an engine that yields one token per request and
// step, token i being i, every few milliseconds..
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "io/loop.h"

namespace nereid::pools {

class CountingEngine final : public engine::Engine {
  public:
    CountingEngine(io::Clock& clock, std::uint32_t running, std::uint32_t queued,
                   Duration step_time)
        : clock_(clock), step_time_(step_time) {
        info_.engine = "counting";
        info_.max_running = running;
        info_.max_queued = queued;
    }
    const model::EngineInfo& info() const override { return info_; }
    void submit(model::Command command, TimePoint) override {
        if (auto* add = std::get_if<model::AddRequest>(&command)) {
            adds.push_back(add->id.value);
            requests_[add->id] = {0, add->max_tokens};
        } else if (auto* abort = std::get_if<model::AbortRequest>(&command)) {
            if (requests_.erase(abort->id) > 0)
                frame_.finished.push_back(ended(abort->id, model::EndReason::kAborted));
        }
    }
    bool has_work() const override { return !requests_.empty() && clock_.now() >= next_; }
    bool has_output() const override { return !frame_.finished.empty(); }
    TimePoint wake_at() const override {
        return requests_.empty() || stuck ? TimePoint::never() : next_;
    }
    Result<model::StepFrame> step(TimePoint now) override {
        model::StepFrame frame = std::exchange(frame_, {});
        frame.step = {++steps_};
        std::uint32_t running = 0;
        for (auto it = requests_.begin(); it != requests_.end() && now >= next_;) {
            if (running++ == info_.max_running) break;
            auto& [done, limit] = it->second;
            model::TokenOut token;
            token.id = it->first;
            token.token = static_cast<TokenId>(done++);
            frame.tokens.push_back(token);
            if (done == limit)
                frame.finished.push_back(ended(it->first, model::EndReason::kLength));
            it = done == limit ? requests_.erase(it) : std::next(it);
        }
        if (now >= next_) next_ = now + step_time_;
        if (stuck) next_ = TimePoint::never();
        frame.load.running = static_cast<std::uint32_t>(requests_.size());
        return frame;
    }
    std::vector<std::uint64_t> adds;  // ids in the order in which they came
    bool stuck = false;

  private:
    static model::Finished ended(RequestId id, model::EndReason reason) {
        model::Finished f;
        f.id = id;
        f.reason = reason;
        return f;
    }
    io::Clock& clock_;
    Duration step_time_;
    TimePoint next_;
    std::uint64_t steps_ = 0;
    model::EngineInfo info_;
    model::StepFrame frame_;
    std::map<RequestId, std::pair<TokenCount, TokenCount>> requests_;  // tokens made, tokens wanted
};

}  // namespace nereid::pools
