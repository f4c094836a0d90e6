// A GGUF file's vocabulary through libllama (loaded with vocab_only: no weights). Internal to
// text/gguf.
//
// libllama's tokenizer objects are const after loading and keep no state between calls, so one
// Vocabulary serves several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/control_tokens.h"

struct llama_model;
struct llama_vocab;

namespace nereid::text {

class Vocabulary final : public ControlTokenizer {
  public:
    // Takes the model over. Reads every piece once: about 20 ms for 50k tokens.
    Vocabulary(llama_model* model, std::string name);
    ~Vocabulary() override;
    Vocabulary(const Vocabulary&) = delete;
    Vocabulary& operator=(const Vocabulary&) = delete;

    void encode(std::string_view text, Special special, std::vector<TokenId>& out) const override;
    std::string_view piece(TokenId id, Special special) const override;
    std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(ends_.size()); }
    bool is_end(TokenId id) const override;
    TokenId bos() const override { return bos_; }
    bool adds_bos() const override { return adds_bos_; }
    std::string_view name() const override { return name_; }

    const ControlToken* control_at(std::string_view text, std::size_t at) const override {
        return controls_.at(text, at);
    }
    // Each plain part is encoded in one piece; white space that a control token swallows is left
    // out.
    void encode_marked(std::string_view text, std::span<const Mark> marks,
                       std::vector<TokenId>& out) const override;
    TokenId eos() const override { return eos_; }
    bool chats_begin_with_bos() const override { return adds_bos_; }
    const llama_model* model() const { return model_.get(); }

  private:
    struct Free {
        void operator()(llama_model* model) const;
    };

    std::unique_ptr<llama_model, Free> model_;
    const llama_vocab* vocab_;
    std::string name_;
    std::string pieces_;               // of all tokens, one after another, specials included
    std::vector<std::uint32_t> ends_;  // of each token's piece in pieces_
    std::vector<std::uint8_t>
        flags_;  // bit 0: has no text for a reader (control, unknown); bit 1: end of generation
    ControlTokens controls_;
    TokenId bos_ = -1;
    TokenId eos_ = -1;
    bool adds_bos_ = false;
};

}  // namespace nereid::text
