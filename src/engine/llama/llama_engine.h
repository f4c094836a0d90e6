// LlamaEngine: the embedded llama.cpp behind the engine port. README in src/engine: states,
// failures, the rule.
//
// One thread. Iteration-level batching: each step() is one llama_decode, either one row of every
// running stream or one chunk of one prompt (plan_step.h). Each running request has a stream (a
// cache of its own) of full context length, so a request that was admitted never runs out of KV.
// Prompt blocks are kept in host memory (prefix_store.h) and, as long as nobody needs the stream,
// in the stream they were computed in; both are reused by block key only.
//
// Cost of step(): one llama_decode; plus sampling (well under 0.2 ms per row); plus, once per new
// 64-token prompt block, a copy of its rows; plus, at the start of a request with a known prefix,
// its restore (README, "Measured").
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/llama/block_tier.h"
#include "engine/llama/embedder.h"
#include "engine/llama/grammar.h"
#include "engine/llama/options.h"
#include "engine/llama/plan_step.h"
#include "engine/llama/prefix_store.h"
#include "engine/llama/region.h"
#include "engine/llama/runtime.h"
#include "engine/llama/sampler.h"
#include "engine/llama/step_cost.h"
#include "engine/llama/wait_tuner.h"

namespace nereid::engine::llama {

// Cumulative; for metrics and tests.
struct LlamaCounters {
    std::uint64_t decode_steps = 0;
    std::uint64_t decode_rows = 0;
    std::uint64_t padding_rows = 0;
    std::uint64_t prefill_steps = 0;
    std::uint64_t prefill_tokens = 0;
    std::uint64_t resident_hit_tokens = 0;  // reused in place
    std::uint64_t restored_tokens = 0;      // copied in from the store or the region
    std::uint64_t corrupt_blocks = 0;       // checksum failed: counted as a miss
    std::uint64_t failed_restores = 0;      // llama.cpp refused a state: recomputed
    std::uint64_t failed_steps = 0;
    std::uint64_t masked_tokens = 0;  // sampled under a grammar
    std::uint64_t refused_grammars = 0;
    std::uint64_t expired_leases = 0;
    std::uint64_t fetches = 0;         // prefixes asked of the tier below
    std::uint64_t fetched_tokens = 0;  // that came from it
};

class LlamaEngine final : public Engine {
  public:
    // Loads the model. kConfig: file, key and mend are in the message; the process lives on.
    static Result<std::unique_ptr<LlamaEngine>> open(const LlamaOptions& options);
    // Over a runtime of the caller's (fault injection in tests). The options must be complete.
    LlamaEngine(const LlamaOptions& options, std::unique_ptr<Runtime> runtime,
                const Digest256& model_digest);
    ~LlamaEngine() override;

    const model::EngineInfo& info() const override { return info_; }
    void submit(model::Command command, TimePoint now) override;
    bool has_work() const override;
    bool has_output() const override { return !outbox_.empty(); }
    TimePoint wake_at() const override;
    void set_waker(std::function<void()> wake) override;
    Result<model::StepFrame> step(TimePoint now) override;

    // Blocks come from and go to it from now on. Before the first command.
    void use_tier(std::unique_ptr<BlockTier> tier);

    // Requests wait for their grammar: wake_at() is near although has_work() is false.
    bool compiling() const { return !compiling_.empty(); }
    const LlamaCounters& counters() const { return counters_; }
    const PrefixStore& prefix_store() const { return store_; }
    const Runtime& runtime() const { return *runtime_; }

  private:
    enum class Phase : std::uint8_t {
        kCompiling,  // its grammar is being compiled; not queued yet
        kFetching,   // its prefix is on its way from the tier; not queued yet
        kQueued,     // no stream
        kPrefill,    // has a stream; prompt tokens to compute in chunks
        kDecode,     // one row per step
        kHeld,       // finished; the KV stays until Release or the lease's end
        kEmbed,      // its chunks run in the embedder
    };
    static constexpr std::uint32_t kNoStream = ~0u;
    static constexpr Duration kCompilePoll = std::chrono::microseconds(500);

    struct Sequence {
        model::AddRequest request;
        Phase phase = Phase::kQueued;
        std::uint64_t arrival = 0;
        TimePoint submitted{};
        std::vector<model::BlockKey>
            chain;  // whole blocks of the prompt, without what was generated
        std::uint32_t stream = kNoStream;
        TokenCount prefill_end =
            0;                // prompt tokens that are prefilled; the rest is replayed by decode
        TokenCount past = 0;  // tokens with KV
        TokenCount cached = 0;
        TokenCount outputs = 0;  // sampled here
        TokenCount room = 0;     // outputs it may still get
        bool begun = false;
        bool fetching = false;         // the tier owes an answer
        std::vector<TokenId> written;  // outputs, in order
        Sampler sampler;
        std::shared_ptr<Grammar> grammar;
        std::vector<float> prompt_logprobs;
        std::optional<std::pair<ByteCount, ByteCount>>
            transfer;          // AdmitDecode: the state in the region
        TimePoint lease = {};  // of the hold; origin = not pinned
        Duration queue_time{0};
        Duration restore_time{0};
        Duration prefill_time{0};
        Duration decode_time{0};
    };
    struct Stream {
        Sequence* owner = nullptr;
        std::vector<model::BlockKey>
            resident;            // whole blocks at its start that are valid, when it has no owner
        std::uint64_t used = 0;  // step of its last use
    };
    struct Import {
        std::vector<model::BlockKey> keys;
        TimePoint expires{};
    };
    struct Padding {
        std::uint32_t stream;
        TokenCount at;  // its cell, to be forgotten after the call
    };
    using QueueKey = std::tuple<std::uint32_t, std::uint64_t, RequestId>;  // priority, arrival, id

    // commands (llama_engine.cc)
    void add(model::AddRequest request, TimePoint now, std::optional<model::AdmitDecode> admit);
    std::optional<Error> refuse(const model::AddRequest& r) const;
    void admit_compiled();
    bool compiled() const;
    void abort(RequestId id);
    void pin(const model::Pin& pin, TimePoint now);
    void release(RequestId id);
    void map_region(const model::MapRegion& command);
    // With one thread ggml's kernel for lone rows gives the same bits as the other.
    bool pairs_lone_rows() const { return options_.determinism && options_.threads > 1; }
    QueueKey queue_key(const Sequence& s) const {
        return {s.request.priority, s.arrival, s.request.id};
    }
    void finish(Sequence& s, model::EndReason reason, std::optional<Error> error = {});
    void leave_stream(Sequence& s);
    void erase(RequestId id);

    // scheduling and compute (llama_engine_step.cc)
    void expire_leases(TimePoint now);
    void admit_queued(TimePoint now);
    std::uint32_t choose_stream(const Sequence& s, std::uint32_t running) const;
    std::vector<Sequence*> prefilling();
    void start_embedding();
    void begin(Sequence& s, TimePoint now);
    std::uint32_t restorable(const Sequence& s) const;
    void restore_prefix(Sequence& s);
    void restore_transfer(Sequence& s);
    Result<void> run_prefill(std::span<Sequence* const> members, std::uint32_t rows);
    void end_chunk(Sequence& s, TokenCount count, std::size_t first_row, Duration took);
    PrefillWork prefill_work(const Sequence& s) const;
    std::vector<Sequence*> call_members(const std::vector<Sequence*>& waiting,
                                        const StepPlan& plan);
    Result<void> run_embedding(Sequence& s);
    Result<void> run_decode();
    std::vector<Padding> add_padding(std::vector<Row>& rows,
                                     const std::vector<std::uint32_t>& wanted);
    Result<void> fail_step(const std::vector<Sequence*>& involved, DecodeStatus status);
    void end_prefill(Sequence& s, std::span<const float> logits);
    void score_prompt(Sequence& s, std::uint32_t rows, TokenCount before);
    void emit(Sequence& s, std::span<const float> logits);
    Result<TokenId> choose_token(Sequence& s, std::span<const float> logits);
    void store_new_blocks(Sequence& s, TokenCount before);
    void fill_load();

    // KV in and out (llama_engine_kv.cc)
    void import_prefix(const model::ImportPrefix& command, TimePoint now);
    Result<void> take_blocks(const model::ImportPrefix& command, TimePoint now);
    void export_blocks(const model::ExportBlocks& command);
    Result<ByteCount> write_blocks(const Sequence& s, const model::ExportBlocks& command);
    Result<std::vector<BlockView>> read_transfer(const Sequence& s) const;
    void drop_import(RequestId id);
    std::string sealed_block(const Sequence& s, std::uint32_t index, TokenCount tokens) const;

    // the tier below (llama_engine_tier.cc)
    void save_block(std::span<const model::BlockKey> chain, std::uint32_t index,
                    const BlockBytes& bytes);
    std::uint32_t wanted_blocks(const Sequence& s) const;
    bool has_prefix(const Sequence& s, std::uint32_t wanted) const;
    void start_fetch(Sequence& s);
    void adopt_fetched(Sequence& s, BlockTier::Fetched& fetched);
    void end_fetch(Sequence& s);
    void take_fetched();

    void fill_info(const Digest256& model_digest);

    LlamaOptions options_;
    model::EngineInfo info_;
    std::unique_ptr<Runtime> runtime_;
    std::unique_ptr<Embedder> embedder_;
    PrefixStore store_;
    StepCost cost_;
    WaitTuner wait_;
    Prng prng_;
    Region region_;
    Grammars grammars_;
    std::vector<RequestId> compiling_;  // in order of arrival
    TimePoint look_again_{};
    std::map<RequestId, Sequence> sequences_;
    std::set<QueueKey> queue_;
    std::vector<Stream> streams_;  // the first `parallel` are given to requests
    std::map<RequestId, Import> imports_;
    std::unique_ptr<BlockTier> tier_;                                 // may be null
    std::map<RequestId, std::vector<model::BlockKey>> fetched_pins_;  // in the store, until begun
    RequestId embedding_{};  // the request in the embedder, if embedding_active_
    bool embedding_active_ = false;
    bool draining_ = false;
    TimePoint now_{};  // of the step being run
    Duration since_decode_{0};
    std::uint64_t arrivals_ = 0;
    std::uint64_t steps_ = 0;
    std::uint32_t failures_in_row_ = 0;
    model::StepFrame outbox_;
    model::Load load_;  // cumulative parts
    LlamaCounters counters_;
    std::vector<float> masked_;  // scratch
};

}  // namespace nereid::engine::llama
