// ScriptedEngine: an engine that computes nothing. For tests of what stands in front of an engine,
// and for benchmarks of the gateway alone.
//
// Its vocabulary is the 256 bytes and an end token (256): token id = byte. It answers by the
// script's rules with their delays, which are counted in the `now` that it is given; nothing here
// reads a clock. Logprobs are STUBS: -0.25 for the sampled token and -(rank + 1) for the others, so
// that shapes can be tested and nobody mistakes them for a model's. Sampling parameters, grammars
// and seeds are accepted and have no effect; info() says so (no grammars, no seeds).
//
// It can refuse, fail, stall and die where the script says so; abort, drain, priorities, the
// bounded queue and the load report work as in a real engine. KV commands are answered with
// KvFailed{kUnsupported}.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted/script.h"

namespace nereid::engine::scripted {

inline constexpr TokenId kEndToken = 256;
inline constexpr std::uint32_t kVocabulary = 257;

class ScriptedEngine final : public Engine {
  public:
    explicit ScriptedEngine(Script script);
    ScriptedEngine(const ScriptedEngine&) = delete;
    ScriptedEngine& operator=(const ScriptedEngine&) = delete;

    const model::EngineInfo& info() const override { return info_; }
    void submit(model::Command command, TimePoint now) override;
    bool has_work() const override;
    bool has_output() const override { return !outbox_.empty(); }
    TimePoint wake_at() const override;
    // One token at most per request. kInternal, for ever, once a rule's die_at is reached.
    Result<model::StepFrame> step(TimePoint now) override;

  private:
    struct Run {
        model::AddRequest request;
        const Rule* rule = nullptr;
        std::string text;  // the rule's
        std::uint64_t arrival = 0;
        TimePoint submitted{};
        TimePoint started{};
        TimePoint due{};  // of the next token
        std::uint32_t outputs = 0;
        bool running = false;
    };
    using QueueKey = std::tuple<std::uint32_t, std::uint64_t, RequestId>;

    void add(const model::AddRequest& request, TimePoint now);
    const Rule& rule_for(const model::AddRequest& request) const;
    void finish(const Run& run, TimePoint now, model::EndReason reason,
                std::optional<Error> error = {});
    void start_queued(TimePoint now);
    bool stalled(const Run& run) const;
    // The next token of a run that is due. The run may be over, and gone, afterwards.
    Result<void> advance(Run& run, TimePoint now);
    TokenId next_token(const Run& run) const;
    void fill_load();

    Script script_;
    Rule last_resort_;
    model::EngineInfo info_;
    std::map<RequestId, Run> runs_;
    std::set<QueueKey> queue_;
    std::uint32_t running_ = 0;
    std::uint64_t arrivals_ = 0;
    std::uint64_t steps_ = 0;
    TimePoint seen_{};  // the latest `now`
    bool draining_ = false;
    bool dead_ = false;
    model::StepFrame outbox_;
    model::Load load_;
};

}  // namespace nereid::engine::scripted
