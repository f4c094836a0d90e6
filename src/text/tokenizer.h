// Tokenizer and ChatTemplate: text to token ids and back, for one model. Implementations: text/gguf
// (the vocabulary of a GGUF file through libllama, and its Jinja template) and text/folder (a
// tokenizer.json through Hugging Face's library).
//
// Objects are immutable after opening and may be used from several threads at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "model/request.h"
#include "text/family.h"

namespace nereid::text {

enum class Special : std::uint8_t {
    kPlain,  // text that looks like a special token stays text: for everything that a user wrote
    kParse,  // special tokens are recognised: for text of the template itself
};

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;
    // Appends the ids of `text`. Invalid UTF-8 is replaced first. No BOS is added. Characters that
    // the vocabulary cannot spell (SmolLM2 has no token for the bytes F1, F2 and some control
    // characters) are dropped, as the model never saw them.
    virtual void encode(std::string_view text, Special special,
                        std::vector<TokenId>& out) const = 0;
    // The bytes of one token (a fragment of UTF-8 is possible). Special tokens give their text
    // ("<|im_end|>") when `special` is kParse, else nothing. An id outside the vocabulary gives
    // nothing.
    virtual std::string_view piece(TokenId id, Special special) const = 0;
    virtual std::uint32_t vocab_size() const = 0;
    virtual bool is_end(TokenId id) const = 0;  // end of generation
    virtual TokenId bos() const = 0;            // -1 = the model has none
    virtual bool adds_bos() const = 0;          // raw prompts (Completions) begin with it
    virtual std::string_view name() const = 0;
};

struct RenderedPrompt {
    std::vector<TokenId> tokens;
    std::string text;  // for /tokenize and debugging; never parsed again
};

class ChatTemplate {
  public:
    virtual ~ChatTemplate() = default;
    // Renders and tokenises a chat-like request. User text can never become a special token:
    // template text and input text are encoded apart. Roles that the template refuses are mapped
    // (developer -> system, A71); null content is empty (A69). kUnsupported / kInvalidArgument with
    // `param` when the template raises.
    virtual Result<RenderedPrompt> render(const model::Request& request) const = 0;
    virtual const std::string& source() const = 0;
    // Whether tools can be shown: by the template itself or, where it has no place for them, in the
    // system message.
    virtual bool supports_tools() const = 0;
    // How the model writes reasoning and calls, as far as this shows it.
    virtual Family family() const { return detect_family(source()); }
};

// What a GGUF file says about its text side. Opening reads the vocabulary only (no weights), about
// 100 ms.
struct TextModel {
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;  // null when the file has none
    TokenCount context_tokens = 0;                      // of training; 0 = the file does not say
    Family family = Family::kGeneric;                   // how it writes reasoning and calls
};
Result<TextModel> open_gguf_text(const std::string& path,
                                 const std::string& template_override = {});
// A GGUF file, or a folder as Hugging Face lays it out (text/folder/folder.h). kConfig with file
// and mend.
Result<TextModel> open_text_model(const std::string& path);

}  // namespace nereid::text
