// DeepSeek V4 and V4.1 through their makers' own library, deepseek-recipe: prompts and parsed
// output; and Hugging Face's tokenizers. Both are in ffi/recipe, a shared library that is loaded
// when a model is opened that needs either, so that others need not wait for its build
// (docs/adr/0006).
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

    // A span of a text and the token that stands for it.
    struct SpecialSpan {
        std::size_t begin = 0;
        std::size_t end = 0;
        TokenId id = -1;
    };
    struct Rendered {
        std::string prompt;
        std::vector<std::pair<std::size_t, std::size_t>> special;  // byte ranges, ascending
        bool thinking = false;
        bool in_calls = false;  // the prompt opened the block of calls
    };
    // `body`: a Chat Completions body. kInvalidArgument with the library's words.
    Result<Rendered> render(const std::string& body) const;
    // A Hugging Face tokenizer.json of any kind.
    class Encoder {
      public:
        virtual ~Encoder() = default;
        // Ids of valid UTF-8. `marks`: ascending, none empty, on characters; all else is encoded
        // without the added vocabulary, whatever it looks like.
        virtual Result<std::vector<TokenId>> encode(std::string_view text,
                                                    std::span<const SpecialSpan> marks) const = 0;
        // The same with the added vocabulary, as Hugging Face's library does it.
        virtual Result<std::vector<TokenId>> parse(std::string_view text) const = 0;
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

}  // namespace nereid::text
