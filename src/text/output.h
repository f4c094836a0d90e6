// From sampled tokens to Events, for one choice: detokenising, stop strings, reasoning and tool-call parsing.
//
// All classes here are pure and give the same result for every chunking of their input (property-tested by
// splitting at every byte).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/engine_port.h"
#include "model/event.h"
#include "text/tokenizer.h"

namespace nereid::text {

// Bytes in, whole UTF-8 characters out. At most 3 bytes are held back; invalid bytes become U+FFFD.
class Utf8Assembler {
  public:
    std::string push(std::string_view bytes);
    std::string finish();    // what was held back, replaced

  private:
    std::string held_;
};

// Finds the first occurrence of any stop string. Text that could still become one is held back (A33) and released
// once it cannot; output is append-only (A34). Of several stop strings that match, the one that begins first wins;
// at equal beginnings the longest that is complete in the text so far.
class StopMatcher {
  public:
    explicit StopMatcher(std::vector<std::string> stops);    // empty strings are ignored
    struct Step {
        std::string text;                        // safe to emit
        std::optional<std::string> stopped_by;   // set once; the matcher then emits nothing more
    };
    Step push(std::string_view text);
    std::string finish();    // held text, when generation ended otherwise

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool done_ = false;
};

// Splits the model's text into content, reasoning and tool calls. Model families implement it (issue 4); the plain
// one passes everything on as content.
class OutputParser {
  public:
    virtual ~OutputParser() = default;
    // Appends events of `choice`. Called with valid UTF-8.
    virtual void push(std::string_view text, std::vector<model::Event>& out) = 0;
    // The end: held text is flushed as content (A38), open calls are closed. Returns true when the choice made tool calls.
    virtual bool finish(std::vector<model::Event>& out) = 0;
};
std::unique_ptr<OutputParser> make_plain_parser(std::uint32_t choice);

// One choice from tokens to events.
class ChoiceOutput {
  public:
    struct Options {
        std::uint32_t choice = 0;
        std::vector<std::string> stop;
        bool logprobs = false;
        std::unique_ptr<OutputParser> parser;    // null = plain
    };
    ChoiceOutput(std::shared_ptr<const Tokenizer> tokenizer, Options options);

    // Feeds the tokens of one step. Returns true when a stop string ended the choice: the caller aborts the engine's
    // request; ChoiceEnd has been appended and later calls append nothing (A37).
    bool push(const std::vector<model::TokenOut>& tokens, std::vector<model::Event>& out);
    // The engine's end. Appends held text and ChoiceEnd, unless a stop string did.
    void finish(model::EndReason reason, std::vector<model::Event>& out);
    TokenCount tokens() const { return tokens_; }
    bool ended() const { return ended_; }

  private:
    std::shared_ptr<const Tokenizer> tokenizer_;
    Options options_;
    Utf8Assembler utf8_;
    StopMatcher stop_;
    TokenCount tokens_ = 0;
    bool ended_ = false;
};

}  // namespace nereid::text
