// DeepSeek V4 and V4.1 through their makers' own library, deepseek-recipe (ffi/recipe): prompts and
// parsed output. The library is shared and loaded when such a model is opened, so that others need
// not wait for its build (docs/adr/0006).
//
// Thread-safe; loaded once, never unloaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/request.h"
#include "text/output.h"
#include "text/parser.h"
#include "text/tokenizer.h"

namespace nereid::text {

enum class DeepSeekVersion : std::uint8_t { kV4, kV41 };

// V4.1's template knows a system role of its own, V4's does not.
DeepSeekVersion deepseek_version(std::string_view chat_template);

class Recipe {
  public:
    // kConfig with the mend when the library is not there or is not ours. Looked for beside the
    // program first, then where ./dev builds it.
    static Result<std::shared_ptr<const Recipe>> load();

    struct Rendered {
        std::string prompt;
        std::vector<std::pair<std::size_t, std::size_t>> special;  // byte ranges, ascending
        bool thinking = false;
        bool in_calls = false;  // the prompt opened the block of calls
    };
    // `body`: a Chat Completions body. kInvalidArgument with the library's words.
    Result<Rendered> render(const std::string& body) const;
    // A Hugging Face tokenizer.json with byte-level BPE.
    class Encoder {
      public:
        virtual ~Encoder() = default;
        // Ids of valid UTF-8. `special`: ascending byte ranges, each one added token; all else is
        // encoded without the added vocabulary, whatever it looks like.
        virtual Result<std::vector<TokenId>> encode(
            std::string_view text,
            std::span<const std::pair<std::size_t, std::size_t>> special) const = 0;
    };
    Result<std::shared_ptr<const Encoder>> encoder(const std::string& tokenizer_json) const;
    std::unique_ptr<OutputParser> parser(const ParserOptions& options) const;

    struct Calls;  // the library's functions

  private:
    explicit Recipe(std::unique_ptr<const Calls> calls);
    std::shared_ptr<const Calls> calls_;
};

// The request as deepseek-recipe reads it. Differences of the dialects are settled here: a forced
// call turns thinking off unless the caller asked for it, efforts between the known ones are
// rounded up, `json_object` is said only where the prompt speaks of JSON (the library refuses it
// elsewhere; the grammar holds either way).
std::string recipe_body(const model::Request& request, DeepSeekVersion version);

// A ChatTemplate over the library; special tokens are those of `tokenizer`. kUnsupported at render
// time when it lacks one.
std::shared_ptr<const ChatTemplate> make_recipe_template(std::shared_ptr<const Recipe> recipe,
                                                         std::shared_ptr<const Tokenizer> tokenizer,
                                                         const std::string& source);

// The text side of a V4 or V4.1 model from its folder as Hugging Face lays it out: `tokenizer.json`
// is read, weights are not. For engines that are no llama.cpp (DeepInfer); about 300 ms. V4.1 is
// known by its system token. kConfig with file and mend.
Result<TextModel> open_deepseek_folder(const std::string& folder);

}  // namespace nereid::text
