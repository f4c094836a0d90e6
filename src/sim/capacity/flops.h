// FlopsV41: work of one DeepSeek-V4.1 forward pass, counted as DeepInfer 0.1.0 counts it
// (csrc/engine/flops_estimator.hpp): FP8-equivalent FLOPs of the major contractions, weight 1 for
// FP4, 2 for FP8, 4 for BF16, 8 for TF32 and FP32 (multiply-add included). Norms, activations,
// drafts, padding and expert replicas are not counted.
//
// Pure; a call costs about 60 ns. Positions and lengths are tokens.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace nereid::sim {

// The numbers of a V4.1 text model that the count depends on. Defaults: V4.1-Flash
// (its config.json; DeepInfer's `hugging_face/config.py` maps the fields).
struct ArchitectureV41 {
    int layers = 40;
    int producer_layers = 20;  // the rest are YoCo consumers
    std::int64_t hidden = 5120;
    std::int64_t heads = 64;
    std::int64_t head_dim = 512;
    std::int64_t q_rank = 1280;
    std::int64_t o_rank = 1024;
    std::int64_t o_groups = 8;
    std::int64_t expert_width = 2304;
    std::int64_t experts = 384;
    std::int64_t experts_per_token = 6;
    std::int64_t shared_experts = 1;
    std::int64_t vocabulary = 129'280;
    std::int64_t window = 128;
    std::int64_t index_heads = 32;
    std::int64_t index_dim = 128;
    std::int64_t top_k = 512;
    std::int64_t candidate_blocks = 2048;
    std::int64_t candidate_block_size = 8;
    int candidate_source = 20;
    std::int64_t hc_mult = 4;
    std::int64_t engram_embed = std::int64_t{3} * 8 * 256;
    std::vector<int> kv_sources = {2, 8, 14, 20};
    std::vector<int> index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
    std::vector<int> engram_layers = {1, 14};
    // Compression ratio of a layer's KV: 0 is a sliding window alone.
    int ratio(int layer) const { return layer < 2 ? 0 : layer < producer_layers ? 2 : 1; }
};

class FlopsV41 {
  public:
    struct Count {
        std::int64_t attention = 0;
        std::int64_t total = 0;  // attention included
    };

    // keep_tokens: rows at a prompt's end that the consumer layers compute too (YoCo mode
    // "compact"); 0: all rows (mode "off").
    FlopsV41(const ArchitectureV41& architecture, std::int64_t keep_tokens);

    // A prefill chunk of positions [start, start + tokens) of a prompt of `prompt` tokens.
    // Preconditions: tokens >= 1, start + tokens <= prompt.
    Count prefill(std::int64_t start, std::int64_t tokens, std::int64_t prompt) const;
    // One decode step of `tokens` rows (1 + drafts) whose last one sees `context` tokens.
    Count decode(std::int64_t context, std::int64_t tokens) const;

  private:
    struct Range {
        std::int64_t begin, end, window_pairs;
        std::int64_t rows() const { return end - begin; }
    };
    struct PairTerm {
        std::int64_t ratio, cap, shift, producer, consumer;
    };
    void add_attention(const ArchitectureV41& a);
    void add_pairs(std::int64_t ratio, std::int64_t cap, std::int64_t shift, std::int64_t weight,
                   bool consumer);
    void add_rows(const ArchitectureV41& a);
    Count count(const Range& all, const Range& consumer, bool prompt, std::int64_t rows) const;

    std::int64_t keep_;
    std::int64_t window_;
    std::int64_t producer_row_ = 0, consumer_row_ = 0;
    std::int64_t producer_attention_row_ = 0, consumer_attention_row_ = 0;
    std::int64_t producer_window_ = 0, consumer_window_ = 0;
    std::int64_t logits_row_ = 0;
    std::int64_t index_key_row_ = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> index_keys_;  // ratio -> weight
    std::vector<PairTerm> pairs_;
};

}  // namespace nereid::sim
