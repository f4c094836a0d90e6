// Embedder: mean-pooled embeddings, in a context of its own that is made on first use.
//
// llama.cpp pools per call, so a prompt longer than a call is fed in chunks and the chunk means are
// combined by their lengths, which is the mean over all tokens. The result is scaled to length 1
// (OpenAI's embeddings are).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "engine/llama/options.h"

struct llama_model;
struct llama_context;

namespace nereid::engine::llama {

class Embedder {
  public:
    static constexpr std::uint32_t kChunk =
        256;  // rows per call; every row has a row of logits in llama.cpp's buffers

    // kUnavailable when the context cannot be made. The model must outlive this.
    static Result<std::unique_ptr<Embedder>> open(llama_model* model, const LlamaOptions& options,
                                                  TokenCount context_tokens);
    ~Embedder();
    Embedder(const Embedder&) = delete;
    Embedder& operator=(const Embedder&) = delete;

    // Starts a prompt; what was there is forgotten.
    void begin();
    // Feeds the next <= kChunk tokens. kInternal when llama.cpp fails.
    Result<void> feed(std::span<const TokenId> tokens);
    // The embedding of what was fed since begin().
    std::vector<float> finish() const;

  private:
    explicit Embedder(llama_context* context, std::size_t width)
        : context_(context), sum_(width, 0.0) {}
    llama_context* context_;
    std::vector<double> sum_;
    TokenCount fed_ = 0;
};

}  // namespace nereid::engine::llama
