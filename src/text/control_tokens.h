// Control tokens of a vocabulary: what a chat template writes to mean them, and what a user's text
// must never become. For whoever turns a rendered template into ids (text/gguf/chat_template.h).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace nereid::text {

struct ControlToken {
    TokenId id = -1;
    std::string text;
    bool strips_left = false;   // swallows white space before it (some encoder models)
    bool strips_right = false;  // after it (Phi-3)
};

// By their first byte, the longest first.
class ControlTokens {
  public:
    void add(ControlToken token);
    void sort();  // after the last add
    // The longest control token whose text begins at text[at], or nullptr.
    const ControlToken* at(std::string_view text, std::size_t at) const;

  private:
    std::array<std::vector<ControlToken>, 256> by_first_;
};

// A control token that stands at a place of a text.
struct Mark {
    std::size_t begin = 0;
    std::size_t end = 0;
    const ControlToken* token = nullptr;
};

// A tokenizer whose control tokens are known by their text.
class ControlTokenizer : public Tokenizer {
  public:
    // The longest control token whose text begins at text[at], or nullptr.
    virtual const ControlToken* control_at(std::string_view text, std::size_t at) const = 0;
    // Appends the ids of valid UTF-8 in which `marks` (ascending) are control tokens; all else is
    // plain, whatever it looks like. Without an attack the ids are those of encode(text, kParse).
    virtual void encode_marked(std::string_view text, std::span<const Mark> marks,
                               std::vector<TokenId>& out) const = 0;
    // -1 = the model has none.
    virtual TokenId eos() const = 0;  // NOLINT(bugprone-virtual-near-miss): it is beside bos()
    // Whether a chat prompt begins with BOS even where its template does not write it.
    virtual bool chats_begin_with_bos() const = 0;
};

}  // namespace nereid::text
