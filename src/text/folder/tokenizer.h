// A model's tokenizer.json, as Hugging Face lays it out: byte-level BPE, SentencePiece's kinds with
// byte fallback, unigram, WordPiece. Ids come from Hugging Face's own library
// (text/recipe/recipe.h), pieces from the file (pieces.h). Internal to text/folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/control_tokens.h"
#include "text/folder/pieces.h"
#include "text/recipe/recipe.h"

namespace nereid::text {

// What other files of the folder say about the vocabulary.
struct FolderSpecials {
    std::string bos;  // its text; empty: none
    std::string eos;
    std::vector<TokenId> ends;  // end of generation, beside eos
    bool adds_bos = false;      // raw prompts begin with it
};

class FolderTokenizer final : public ControlTokenizer {
  public:
    FolderTokenizer(std::shared_ptr<const Recipe::Encoder> encoder, std::string name)
        : encoder_(std::move(encoder)), name_(std::move(name)) {}

    // The parsed tokenizer.json. kConfig saying what is wrong with it.
    Result<void> read(const Json& file);
    void set_specials(const FolderSpecials& specials);

    void encode(std::string_view text, Special special, std::vector<TokenId>& out) const override;
    std::string_view piece(TokenId id, Special special) const override;
    std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(pieces_.size()); }
    bool is_end(TokenId id) const override;
    TokenId bos() const override { return bos_; }
    bool adds_bos() const override { return adds_bos_; }
    std::string_view name() const override { return name_; }
    const ControlToken* control_at(std::string_view text, std::size_t at) const override {
        return controls_.at(text, at);
    }
    void encode_marked(std::string_view text, std::span<const Mark> marks,
                       std::vector<TokenId>& out) const override;
    TokenId eos() const override { return eos_; }
    bool chats_begin_with_bos() const override { return false; }  // its templates write it

    TokenId added(std::string_view text) const;  // -1: not among the added tokens

  private:
    void encode_plain(std::string_view text, std::vector<TokenId>& out) const;
    Result<void> read_vocabulary(const Json& vocabulary, const PieceSpeller& speller);
    Result<void> read_added(const Json& token);
    bool put(const Json& id, std::string bytes, bool silent);

    std::shared_ptr<const Recipe::Encoder> encoder_;
    std::string name_;
    std::vector<std::string> pieces_;
    std::vector<bool> silent_;  // no text for a reader
    ControlTokens controls_;
    std::vector<TokenId> ends_;
    TokenId bos_ = -1;
    TokenId eos_ = -1;
    bool adds_bos_ = false;
};

}  // namespace nereid::text
