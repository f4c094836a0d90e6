// Grammar: which tokens a request's GBNF grammar allows next. Over llama.cpp's grammar sampler.
//
// The full mask costs milliseconds (README, "Measured"), so the engine samples first and asks
// `allows` for that token only; the mask is computed when it is refused. With a trigger the grammar
// is asleep until the output ends with exactly the trigger's tokens.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

struct llama_vocab;
struct llama_sampler;

namespace nereid::engine::llama {

class Grammar {
  public:
    // kInvalidArgument when the text is no GBNF with a rule `root`, or is larger or nested deeper
    // than the parser bears.
    static Result<std::unique_ptr<Grammar>> create(const llama_vocab* vocab,
                                                   const std::string& gbnf,
                                                   std::vector<TokenId> trigger);
    ~Grammar();
    Grammar(const Grammar&) = delete;
    Grammar& operator=(const Grammar&) = delete;

    bool allows(TokenId token);
    // Sets the logits of refused tokens to -inf.
    void mask(std::span<float> logits);
    // kInternal when the grammar cannot take `token`.
    Result<void> accept(TokenId token);

  private:
    Grammar(llama_sampler* sampler, std::vector<TokenId> trigger);
    llama_sampler* sampler_;
    std::vector<TokenId> trigger_;
    std::vector<TokenId> tail_;  // the last trigger_.size() outputs while asleep
    bool awake_;
};

}  // namespace nereid::engine::llama
