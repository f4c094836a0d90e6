// Sampler: logits -> token. Pure: no llama.cpp types, no state of its own but the counts that
// penalties need.
//
// The result depends on (logits, parameters, tokens accepted so far, seed, position) alone: not on
// who shares the batch, nor on the library's distributions, nor (exp is our own polynomial) on
// libm. Semantics, in order:
//   1. repetition_penalty r (HF, vLLM): logit > 0 ? logit / r : logit * r for tokens of prompt and
//   output
//   2. frequency and presence penalty (OpenAI): logit -= n * frequency + (n > 0) * presence, n =
//   count in the output
//   3. logit_bias: logit += bias
//   4. temperature 0: the greatest logit, ties to the lower id. Otherwise logits / temperature,
//   then
//      min_p (keep p >= min_p * p_max), top_k, top_p (smallest set of the most probable with mass
//      >= top_p of what top_k left), and the token at keyed_uniform(seed, position) of the
//      remaining mass.
// Absent parameters: temperature 1, everything else off. NaN logits never win; a row without any
// finite logit yields id 0.
//
// Cost at 49,152 tokens, release build: greedy one pass; see README, "Measured".
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/engine_port.h"
#include "model/request.h"

namespace nereid::engine::llama {

// Lowest id among the greatest values; 0 for an empty or all-NaN row.
TokenId argmax(std::span<const float> logits);

// log(sum(exp(x))) over the finite x, in natural log; -inf when there is none.
double log_sum_exp(std::span<const float> logits);

// The `n` most probable tokens with natural-log probabilities, most probable first, ties to the
// lower id.
std::vector<model::TopToken> top_logprobs(std::span<const float> logits, double lse,
                                          std::uint32_t n);

class Sampler {
  public:
    Sampler() = default;
    // `seed` is used when the parameters carry none.
    Sampler(const model::SamplingParams& params, std::uint64_t seed,
            std::span<const TokenId> prompt, std::uint32_t vocab_size);

    TokenId sample(std::span<const float> logits, std::uint64_t position);
    // Tells the sampler that `token` is part of the output now.
    void accept(TokenId token);
    std::uint64_t seed() const { return seed_; }
    bool greedy() const { return temperature_ <= 0.0; }

  private:
    struct Seen {
        std::uint32_t output = 0;
        bool any = false;
    };
    struct Candidate {
        float logit;
        TokenId id;
    };
    std::span<const float> adjust(std::span<const float> logits);
    TokenId sample_all(std::span<const float> logits, double u);
    TokenId sample_filtered(std::span<const float> logits, double u);
    void gather_top_k(std::span<const float> logits, float floor);
    void gather_above(std::span<const float> logits, float floor);

    double temperature_ = 1.0;
    double top_p_ = 1.0;
    double min_p_ = 0.0;
    std::uint32_t top_k_ = 0;  // 0 = off
    double frequency_ = 0.0;
    double presence_ = 0.0;
    double repetition_ = 1.0;
    std::uint64_t seed_ = 0;
    std::vector<std::pair<TokenId, float>> bias_;
    std::vector<Seen> seen_;         // by token id; empty when no penalty is on
    std::vector<TokenId> seen_ids_;  // ids with any == true, in order of first appearance
    std::vector<float> work_;        // adjusted logits
    std::vector<float> weight_;      // exp((logit - max) / T)
    std::vector<Candidate> candidates_;
};

}  // namespace nereid::engine::llama
