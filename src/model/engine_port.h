// The engine port: what a gateway tells an engine and what it hears back. DESIGN §5, docs/adr/0003.
//
// An engine is a stepped machine with token ids in and token ids out. Commands are applied between
// steps; each step yields at most one StepFrame for all requests. DeepInfer (LLMEngine.step), vLLM
// and SGLang (their token endpoints) and llama.cpp (llama_decode) fit the same shapes: see the
// table in docs/adr/0003.
//
// These are plain values. engine/ has the in-process interface over them, model/engine_wire.h their
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "model/block_key.h"
#include "model/request.h"

namespace nereid::model {

// ---------------------------------------------------------------- capabilities

// One contiguous run of bytes inside a block's history object.
struct KvSlice {
    std::uint32_t layer;
    ByteCount offset;
    ByteCount length;
    std::string role;  // "k", "v", "latent", "index_k", ...
    bool operator==(const KvSlice&) const = default;
};
struct KvLayout {
    std::string family;           // "llama.cpp/seq-state-3", "deepinfer/v4.1-fp4", ...
    TokenCount block_tokens = 0;  // 64 for llama.cpp, 128 for DeepInfer
    ByteCount block_bytes = 0;    // of one history object
    ByteCount state_bytes = 0;    // of one state object at a checkpoint; 0 = the engine needs none
    TokenCount replay_tokens =
        0;  // a hit must leave at least this many tokens to recompute (DeepInfer keep); >= 1
    std::string detail;  // dtype, flash attention, build, thread class: all that changes bytes
    std::vector<KvSlice> slices;
    Digest256 fingerprint() const;  // SHA-256 over every field above
};

enum class RoleFlag : std::uint8_t { kUnified = 1, kPrefill = 2, kDecode = 4, kEncode = 8 };
enum class ReplayClass : std::uint8_t { kExact, kBounded };  // see DESIGN §4.7
enum class GrammarKind : std::uint8_t {
    kNone = 0,
    kGbnf = 1,
    kJsonSchema = 2,
    kRegex = 4,
    kLark = 8,
    kEbnf = 16
};

struct EngineInfo {
    std::string engine;  // "llama.cpp", "scripted", "deepinfer"
    std::string engine_version;
    std::string model_id;  // the name clients use
    Digest256 model_digest{};
    std::uint32_t vocab_size = 0;
    TokenCount context_tokens = 0;  // prompt + output of one request
    std::vector<TokenId> eos_ids;
    KvLayout layout;
    std::uint8_t roles = static_cast<std::uint8_t>(RoleFlag::kUnified);  // bits of RoleFlag
    std::uint8_t grammars = 0;                                           // bits of GrammarKind
    bool logprobs = false;
    std::uint32_t max_top_logprobs = 0;
    bool penalties = false;
    bool logit_bias = false;
    bool seeds = false;
    bool embeddings = false;
    std::uint32_t embedding_width = 0;
    bool images = false;
    bool adapters = false;
    bool speculation = false;
    bool deterministic = false;  // answers do not depend on the batch or on the cache
    ReplayClass replay = ReplayClass::kBounded;
    std::uint32_t max_running = 0;  // sequences stepped at once
    std::uint32_t max_queued = 0;   // commands accepted beyond that
    TokenCount kv_capacity_tokens = 0;
    std::uint32_t data_parallel_rank = 0;
    std::uint32_t data_parallel_size = 1;
};

// ---------------------------------------------------------------- commands

enum class AddMode : std::uint8_t {
    kUnified,      // prefill and decode here
    kPrefillOnly,  // stop after the first token; KV stays until Release or its deadline
    kEmbed,        // pooled embedding of the prompt
    kScore,        // prompt only; no token is sampled (prompt logprobs, cache warming)
};

struct AddRequest {
    RequestId id;
    AddMode mode = AddMode::kUnified;
    std::vector<TokenId> prompt;  // not empty; every id inside the vocabulary
    SamplingParams sampling;
    TokenCount max_tokens = 0;      // >= 1 for kUnified
    std::vector<TokenId> stop_ids;  // besides the engine's eos ids
    bool ignore_eos = false;
    bool logprobs = false;
    std::uint32_t top_logprobs = 0;
    bool prompt_logprobs = false;
    GrammarKind grammar_kind = GrammarKind::kNone;
    std::string grammar;
    std::vector<TokenId>
        grammar_trigger;     // the grammar starts after exactly this sequence; empty = at once
    Namespace kv_namespace;  // prompt blocks are looked up and saved under it
    std::vector<ImageRef> images;
    std::vector<std::string> image_bytes;  // engines that run the vision tower themselves
    std::string adapter;
    std::uint32_t priority = 0;  // lower first; ties in order of arrival
    TokenCount generated =
        0;  // the last `generated` ids of the prompt were output of this stream before: replayed by
            // decode where replay is exact, counted as output by penalties; < prompt.size()
    std::uint64_t sample_position = 0;  // position of the first sampled token in the (seed,
                                        // position) key: >0 when a stream is continued
};
// Ends a request wherever it is (queued, prefilling, decoding), within one step. Idempotent; an
// unknown id is ignored. The engine answers with one Finished{kAborted} if the request was known
// and had not finished.
struct AbortRequest {
    RequestId id;
};
// Bytes of whole blocks [first, first + keys.size()) of `id`'s prompt are at `offset` of the shared
// region, block after block. Only for a request that is held (AddRequest with hold = ImportPrefix
// pending) or not yet begun.
struct ImportPrefix {
    RequestId id;
    std::uint32_t first_block = 0;
    std::vector<BlockKey> keys;
    ByteCount offset = 0;
    ByteCount length = 0;
};
// Copies blocks [first, first + count) of a live or pinned request into the shared region at
// `offset`. Answered by KvReady (or KvFailed).
struct ExportBlocks {
    RequestId id;
    std::uint32_t first_block = 0;
    std::uint32_t count = 0;
    ByteCount offset = 0;
    ByteCount capacity = 0;
};
// Decode-only start: the prompt's KV was imported, `first_token` was sampled elsewhere.
struct AdmitDecode {
    AddRequest request;
    TokenId first_token = 0;
    ByteCount offset = 0;  // whole-sequence state in the shared region
    ByteCount length = 0;
};
// Keeps a prefilled request's KV until Release or the deadline.
struct Pin {
    RequestId id;
    Duration lease{0};
};
struct Release {
    RequestId id;
};
struct Drain {};  // finish what runs, refuse what comes
struct MapRegion {
    std::string path;
    ByteCount size = 0;
};  // shared memory for KV, opened by path

using Command = std::variant<AddRequest, AbortRequest, ImportPrefix, ExportBlocks, AdmitDecode, Pin,
                             Release, Drain, MapRegion>;

// ---------------------------------------------------------------- one frame per step

struct TopToken {
    TokenId id;
    float logprob;
};
struct TokenOut {
    RequestId id;
    TokenId token = 0;
    float logprob = 0;  // natural log, of the unmodified distribution; 0 when not asked for
    std::vector<TopToken> top;
};
enum class EndReason : std::uint8_t {
    kStop,  // eos or stop id; that token is in `tokens` too and is not text
    kLength,
    kAborted,
    kFailed,     // see error
    kPrefilled,  // kPrefillOnly reached its end and its KV is held; or kScore did, which holds none
};
struct Finished {
    RequestId id;
    EndReason reason = EndReason::kStop;
    TokenCount prompt_tokens = 0;
    TokenCount cached_tokens = 0;
    TokenCount output_tokens = 0;
    Duration queue_time{0};  // from Add to its first prefill chunk
    Duration restore_time{0};
    Duration prefill_time{0};
    Duration decode_time{0};
    std::optional<Error> error = {};
};
struct PromptLogprobs {
    RequestId id;
    std::vector<float> logprobs;
};  // [0] is 0 (no logprob for the first)
struct Embedding {
    RequestId id;
    std::vector<float> values;
};
struct Started {
    RequestId id;
    TokenCount cached_tokens = 0;
};  // first prefill chunk has been scheduled
struct KvReady {
    RequestId id;
    std::uint32_t first_block = 0;
    std::uint32_t count = 0;
    ByteCount offset = 0;
    ByteCount length = 0;
};
struct KvFailed {
    RequestId id;
    Error error;
};
struct DraftCount {
    RequestId id;
    std::uint32_t drafted = 0;
    std::uint32_t accepted = 0;
};

struct Load {
    std::uint32_t running = 0;  // sequences with KV in the engine
    std::uint32_t waiting = 0;
    TokenCount waiting_uncached_tokens = 0;  // prefill still to do, running chunks included
    TokenCount kv_used_tokens = 0;
    TokenCount kv_total_tokens = 0;
    ByteCount prefix_store_bytes = 0;
    std::uint64_t prefix_hit_tokens = 0;   // cumulative
    std::uint64_t prefix_miss_tokens = 0;  // cumulative
    std::uint64_t preempted = 0;           // cumulative
    Duration last_step{0};
    Duration predicted_step{0};  // of the next one, from the adapter's own model; 0 = unknown
};

struct StepFrame {
    StepId step;
    std::vector<Started> started;
    std::vector<TokenOut> tokens;  // in step order; several per request under speculation
    std::vector<Embedding> embeddings;
    std::vector<PromptLogprobs> prompt_logprobs;
    std::vector<KvReady> kv_ready;
    std::vector<KvFailed> kv_failed;
    std::vector<DraftCount> drafts;
    std::vector<Finished> finished;  // after the request's last token
    Load load;
    bool empty() const {
        return started.empty() && tokens.empty() && embeddings.empty() && prompt_logprobs.empty() &&
               kv_ready.empty() && kv_failed.empty() && drafts.empty() && finished.empty();
    }
};

}  // namespace nereid::model
