// Unit: a group of ranks that step together, one DP attention + EP group of a real engine. Prefill,
// decode, or both in one (stage kUnified).
//
// A step is built when the previous one ends (or when work comes to an idle unit) and costs the
// slowest rank's time: the barrier. Between steps nothing happens, so a unit costs one event a step
// however many requests run: a rank's decode batch is a count and a sum of KV that grow with the
// step number, and only the step in which its next request ends looks at requests one by one.
//
// Per rank: a FIFO of prompts (skipping those whose prefix is not restored yet), chunked under a
// token budget and a cost budget; a decode batch; a FIFO of requests that wait for KV room. A rank
// whose KV overflows preempts its longest output (as DeepInfer's scheduler does).
//
// Invariants: a job is in at most one place of one unit; kv(rank) is the sum of its jobs' KV;
// steps never overlap. Deterministic; no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "router/ids.h"
#include "sim/capacity/engine_model.h"
#include "sim/capacity/job.h"

namespace nereid::sim {

struct UnitSpec {
    router::Stage stage = router::Stage::kDecode;
    std::uint32_t ranks = 1;
    // Prefill, per rank and step.
    TokenCount token_budget = 16'384;
    double cost_budget_ms = 200;  // of chunks; 0 = tokens alone
    // Decode, per rank.
    double kv_capacity_tokens = 0;  // 0 = unlimited
    std::uint32_t max_running = 0;  // 0 = unlimited
    // Unified: prompts are tried every `vote_all` decode steps when all ranks have some, every
    // `vote_any` when any has (DeepInfer NORMAL: 70 and 100), and such a step decodes nothing.
    // 0: every step takes prompts and decodes (llama.cpp, vLLM).
    std::uint32_t vote_all = 0;
    std::uint32_t vote_any = 0;
    // Unified, as engine/llama/plan_step.h: a step is a chunk of one prompt a rank, or a decode of
    // all; prompts go first until their steps have taken this since the last decode, longer by the
    // factor while more requests wait for prefill than decode. 0: the votes above.
    double decode_gap_ms = 0;
    double burst_factor = 1;
    // Largest rank over mean of expert work, mean of the layers (1: perfectly balanced), and the
    // relative standard deviation of it from step to step.
    double moe_imbalance = 1;
};

struct UnitTotals {
    std::uint64_t steps = 0;
    std::uint64_t prefill_steps = 0;
    double actual_ms = 0;            // Σ T of busy steps
    double balanced_ms = 0;          // Σ T at the mean of the ranks' work and balanced experts
    double rank_work_ms = 0;         // Σ over ranks of their own work
    double idle_ms = 0;              // Σ over ranks of what they waited at the barrier
    double kv_mean = 0, kv_max = 0;  // Σ per step
    double request_steps = 0;        // Σ per step of requests in decode
    double kv_steps = 0;             // Σ per step of KV tokens
    double prefill_tokens = 0;       // computed
    double decode_tokens = 0;
    std::uint64_t preempted = 0;
};

class Unit {
  public:
    struct Outcome {
        std::vector<JobId> prompts;    // whose last chunk is computed
        std::vector<JobId> ended;      // whose last token is out
        std::vector<JobId> preempted;  // out of KV: no longer here
        double decoded_requests = 0;   // in this step, each got tokens_per_step tokens
        bool decoded = false;
    };

    Unit(const UnitSpec& spec, const EngineModel& model, JobPool& jobs);

    const UnitSpec& spec() const { return spec_; }
    bool stepping() const { return stepping_; }
    // A prompt waits on `rank` from now on (job.done tokens of job.prompt are there).
    void add_prompt(std::uint32_t rank, JobId job);
    // A request whose KV is here decodes from the next step on, when there is room.
    void add_decode(std::uint32_t rank, JobId job);
    // Takes a job out, wherever it is; false when it is not here.
    bool remove(std::uint32_t rank, JobId job);
    // All jobs leave (a crash); appended to `out` in order of rank.
    void drain(std::vector<JobId>& out);

    // Builds and begins a step; its length, or 0 when there is nothing to do. Precondition:
    // !stepping(). `now` decides which prompts are ready; `wake` becomes the earliest time at which
    // an unready one is (or stays as it is).
    Nanos begin(Nanos now, Nanos& wake);
    // Ends the step begun last. The outcome is valid until the next call.
    const Outcome& end();

    double decode_requests(std::uint32_t rank) const { return count_[rank]; }
    double decode_kv(std::uint32_t rank) const { return kv_[rank]; }
    double kv_of(std::uint32_t rank, JobId job) const;
    std::size_t waiting(std::uint32_t rank) const {
        return ranks_[rank].prompts.size() + ranks_[rank].waiting.size();
    }
    double queued_prefill_tokens(std::uint32_t rank) const { return ranks_[rank].queued_tokens; }
    double last_step_ms() const { return last_step_ms_; }
    double last_rank_ms(std::uint32_t rank) const { return work_[rank]; }
    const UnitTotals& totals() const { return totals_; }
    UnitTotals& totals() { return totals_; }
    void begin_measuring() { totals_ = UnitTotals{}; }

  private:
    struct Running {
        JobId job;
        std::int64_t end_step;
        double kv_base;  // its KV in step s is kv_base + tokens_per_step · s
    };
    struct Chunk {
        JobId job;
        TokenCount tokens;
    };
    struct Rank {
        std::deque<JobId> prompts;
        std::deque<JobId> waiting;
        std::vector<Running> running;
        std::vector<Chunk> chunks;  // of the step under way
        std::int64_t next_end = kNever;
        double queued_tokens = 0;
        double promised_kv = 0;  // unified: prompts that hold KV while they prefill
    };
    static constexpr std::int64_t kNever = INT64_MAX;

    bool take_prompts_now() const;
    bool decodes(const Rank& r) const { return !r.running.empty() || !r.waiting.empty(); }
    double gap_left_ms(const Rank& r) const;
    double build_chunks(std::uint32_t r, Nanos now, Nanos& wake);
    bool room_for(std::uint32_t r, double kv) const;
    void admit(std::uint32_t r);
    void overflow(std::uint32_t r);
    void end_requests(std::uint32_t r);
    void erase_running(std::uint32_t r, std::size_t i);
    Nanos finish_build(bool prefill);

    UnitSpec spec_;
    const EngineModel& model_;
    JobPool& jobs_;
    std::vector<Rank> ranks_;
    std::vector<double> count_, kv_;  // per rank, of running requests
    std::vector<double> work_;        // ms of the step under way
    std::vector<double> chunk_ms_;
    std::int64_t step_ = 0;
    std::uint32_t decodes_since_prefill_ = 0;
    double since_decode_ms_ = 0;  // of prefill steps
    bool stepping_ = false, decoding_ = false;
    double last_step_ms_ = 0;
    Outcome outcome_;
    UnitTotals totals_;
};

}  // namespace nereid::sim
