// Runtime: llama.cpp's model and context behind an interface that cannot kill the process.
//
// It guards what llama.cpp asserts on (rows per call, token ids, stream numbers, positions),
// silences its log into a ring that errors quote, and gives access to the rows of the KV cache,
// which the C API only exports a whole sequence at a time. One thread. Each stream (sequence) has a
// cache of its own (kv_unified = false): token i of a stream is always in cell i, which the
// determinism rule needs (README).
//
// Rows of the cache are reached through the context's evaluation callback, which shows the graph's
// tensors once; open() then compares what it reads there with llama.cpp's own export of the same
// sequence and gives the access up (blocks() == false) unless they are the same bytes: recurrent
// models, sliding windows, V transposed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "engine/llama/kv_block.h"
#include "engine/llama/options.h"

struct llama_vocab;
struct llama_model;

namespace nereid::engine::llama {

struct Row {
    TokenId token = 0;
    TokenCount position = 0;
    std::uint32_t stream = 0;
    bool logits = false;
};

enum class DecodeStatus : std::uint8_t {
    kOk,
    kNoSlot,   // nothing was applied
    kAborted,  // some rows may have been applied: truncate the streams
    kFailed,   // llama.cpp refused or failed; the context is suspect
};

struct ModelFacts {
    std::string description;  // "llama 135M Q4_1"
    std::string build;        // llama.cpp's version and the CPU features it runs with
    std::uint32_t vocab_size = 0;
    std::uint32_t embedding_width = 0;
    TokenCount trained_context = 0;
    std::vector<TokenId> end_ids;  // every id that ends a generation, ascending
};

class Runtime {
  public:
    // kConfig: the model does not load or the context does not fit; the message quotes llama.cpp.
    static Result<std::unique_ptr<Runtime>> open(const LlamaOptions& options, std::uint32_t streams,
                                                 TokenCount context_tokens);
    virtual ~Runtime() = default;
    Runtime() = default;
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    virtual const ModelFacts& facts() const = 0;
    virtual const llama_vocab* vocab() const = 0;
    virtual llama_model* model() const = 0;
    virtual TokenCount stream_capacity() const = 0;
    virtual std::uint32_t streams() const = 0;

    // Computes the rows in one call. Positions of a stream must follow on what it holds.
    virtual DecodeStatus decode(std::span<const Row> rows) = 0;
    // Logits of row `index` of the last decode, which asked for them. Valid until the next decode.
    virtual std::span<const float> logits(std::size_t index) = 0;
    // Forgets the stream's tokens from `from` on.
    virtual void truncate(std::uint32_t stream, TokenCount from) = 0;
    virtual TokenCount length(std::uint32_t stream) const = 0;

    // Whether ggml's threads spin (on free cores) or sleep (on shared ones) while they wait for one
    // another.
    virtual void wait_by_spinning(bool spin) = 0;

    virtual bool blocks() const = 0;
    virtual const KvGeometry& geometry() const = 0;
    // Copies the rows of tokens [first, first + count) of the stream in block order. Precondition:
    // blocks(), they are there.
    virtual void read_rows(std::uint32_t stream, TokenCount first, TokenCount count,
                           std::span<std::uint8_t> out) const = 0;
    // Replaces the stream's content by these blocks. False: llama.cpp refused; the stream is empty
    // then.
    virtual bool restore(std::uint32_t stream, std::span<const BlockView> blocks) = 0;
};

// llama.cpp's own monotonic clock, for the time a step took.
Duration engine_clock();

// The last warnings and errors of llama.cpp, newest last, for messages. Process-wide.
std::string recent_llama_log();
// Routes llama.cpp's log into that ring. Idempotent.
void silence_llama_log();

}  // namespace nereid::engine::llama
