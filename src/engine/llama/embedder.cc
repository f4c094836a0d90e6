#include "engine/llama/embedder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <llama.h>
#include "base/check.h"
#include "engine/llama/runtime.h"

namespace nereid::engine::llama {

Result<std::unique_ptr<Embedder>> Embedder::open(llama_model* model, const LlamaOptions& options,
                                                 TokenCount context_tokens) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = context_tokens;
    p.n_batch = p.n_ubatch = kChunk;
    p.n_seq_max = 1;
    p.n_threads = p.n_threads_batch = static_cast<std::int32_t>(options.threads);
    p.flash_attn_type =
        options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.embeddings = true;
    p.pooling_type = LLAMA_POOLING_TYPE_MEAN;
    p.no_perf = true;
    llama_context* context = llama_init_from_model(model, p);
    if (context == nullptr) {
        return err(Code::kUnavailable,
                   "no context for embeddings (llama.cpp: " + recent_llama_log() + ")");
    }
    return std::unique_ptr<Embedder>(
        new Embedder(context, static_cast<std::size_t>(llama_model_n_embd_out(model))));
}

Embedder::~Embedder() { llama_free(context_); }

void Embedder::begin() {
    llama_memory_clear(llama_get_memory(context_), false);
    std::fill(sum_.begin(), sum_.end(), 0.0);
    fed_ = 0;
}

Result<void> Embedder::feed(std::span<const TokenId> tokens) {
    CHECK(!tokens.empty() && tokens.size() <= kChunk);
    std::vector<TokenId> ids(tokens.begin(), tokens.end());  // llama_batch wants a mutable pointer
    std::vector<llama_pos> positions(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<llama_pos>(fed_ + i);
    std::vector<std::int8_t> outputs(ids.size(), 1);
    llama_batch batch{};
    batch.n_tokens = static_cast<std::int32_t>(ids.size());
    batch.token = ids.data();
    batch.pos = positions.data();
    batch.logits = outputs.data();
    const std::int32_t rc = llama_decode(context_, batch);
    const float* mean = rc == 0 ? llama_get_embeddings_seq(context_, 0) : nullptr;
    if (mean == nullptr) {
        return err(Code::kInternal, fmt::format("embedding failed: llama_decode {} (llama.cpp: {})",
                                                rc, recent_llama_log()));
    }
    for (std::size_t i = 0; i < sum_.size(); ++i)
        sum_[i] += static_cast<double>(mean[i]) * static_cast<double>(ids.size());
    fed_ += static_cast<TokenCount>(ids.size());
    return {};
}

std::vector<float> Embedder::finish() const {
    double square = 0;
    for (const double v : sum_) square += v * v;
    const double scale = square > 0 ? 1.0 / std::sqrt(square) : 0.0;
    std::vector<float> out(sum_.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(sum_[i] * scale);
    return out;
}

}  // namespace nereid::engine::llama
