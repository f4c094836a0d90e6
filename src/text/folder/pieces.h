// How a tokenizer.json spells the text of a single token: its vocabulary's entry, undone by its
// decoder (Hugging Face tokenizers' decoders: ByteLevel, ByteFallback, Replace, Metaspace,
// BPEDecoder, WordPiece, Fuse, Strip, Sequence). Pure.
//
// Pieces concatenate to the text, so one token's bytes need no neighbour; hence two differences
// from decoding a whole answer at once: what a decoder strips from the beginning of a text (the
// blank that Llama 2's and Mistral's vocabularies put before each word) stays, as in vLLM and
// llama.cpp, since an answer begins in the middle of a text; and bytes that make no character are
// given as they are (text/output replaces them).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nereid::text {

class PieceSpeller {
  public:
    // `decoder`: the file's; null joins words by blanks. kUnsupported naming a decoder that is no
    // language model's (CTC) or unknown.
    static Result<PieceSpeller> make(const Json* decoder);
    std::string bytes(std::string_view entry) const;

  private:
    Result<void> read(const Json& decoder);

    bool byte_level_ = false;
    bool byte_fallback_ = false;
    bool words_ = false;     // each entry is a word of its own
    std::string continues_;  // WordPiece's mark of an entry that is no word's beginning
    std::vector<std::pair<std::string, std::string>> replaced_;
    std::vector<std::string> word_ends_;  // BPEDecoder's suffix
};

}  // namespace nereid::text
