// From sampled tokens to Events, for one choice: detokenising, stop strings, reasoning and
// tool-call parsing.
//
// All classes here are pure and give the same result for every chunking of their input
// (property-tested by splitting at every byte).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
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
    std::string finish();  // what was held back, replaced
    std::size_t held_bytes() const { return held_.size(); }

  private:
    std::string held_;
};

// Finds the first occurrence of any stop string. Text that could still become one is held back
// (A33) and released once it cannot; output is append-only (A34). Of several stop strings that
// occur, the one that begins first wins, and of those that begin together the shortest (it is
// complete first): this does not depend on the chunking. A match waits while a longer stop string
// that begins before it can still come true.
class StopMatcher {
  public:
    explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored
    struct Step {
        std::string text;                       // safe to emit
        std::optional<std::string> stopped_by;  // set once; the matcher then emits nothing more
    };
    Step push(std::string_view text);
    // The generation ended otherwise: held text, up to a stop string that waited for a longer one.
    Step finish();

  private:
    Step scan(bool final);
    bool may_begin(char c) const { return first_bytes_[static_cast<unsigned char>(c)]; }

    std::vector<std::string> stops_;  // shortest first
    std::array<bool, 256> first_bytes_{};
    std::string held_;
    bool done_ = false;
};

// Splits the model's text into content, reasoning and tool calls. Model families implement it
// (issue 4); the plain one passes everything on as content.
class OutputParser {
  public:
    virtual ~OutputParser() = default;
    // Appends events of `choice`. Called with valid UTF-8.
    virtual void push(std::string_view text, std::vector<model::Event>& out) = 0;
    // The end: held text is flushed as content (A38), open calls are closed. Returns true when the
    // choice made tool calls.
    virtual bool finish(std::vector<model::Event>& out) = 0;
};
std::unique_ptr<OutputParser> make_plain_parser(std::uint32_t choice);

// One choice from tokens to events.
//
// Log probabilities travel with the text: a token's entry is in the delta that carries the token's
// last byte, so that at any moment the entries emitted are those of the text emitted. Tokens of a
// stop string that was cut away have none, nor has the end token; a token that lies across the cut
// has one. A character split over tokens comes with the entries of all of them. `tokens` of a delta
// counts those that became visible with it.
class ChoiceOutput {
  public:
    struct Options {
        std::uint32_t choice = 0;
        std::vector<std::string> stop;
        bool logprobs = false;
        std::unique_ptr<OutputParser> parser;  // null = plain
        std::vector<TokenId> stop_token_ids =
            {};  // the request's own: such a token ends the choice and is not text
        // Control tokens whose text the parser must see (text/parser.h, marker_tokens).
        std::vector<TokenId> shown_tokens = {};
        bool calls_only = false;  // by a grammar: what the limit cuts off is no text
    };
    ChoiceOutput(std::shared_ptr<const Tokenizer> tokenizer, Options options);

    // Feeds the tokens of one step; those of other requests must have been left out. Returns true
    // when a stop string ended the choice: the caller aborts the engine's request; ChoiceEnd has
    // been appended and later calls append nothing and return false (A37).
    bool push(const std::vector<model::TokenOut>& tokens, std::vector<model::Event>& out);
    // The engine's end. Appends held text and ChoiceEnd, unless a stop string did. kAborted and
    // kFailed append the held text only: the caller ends the request with Failed, and no finish
    // reason makes a broken answer look whole (A26).
    void finish(model::EndReason reason, std::vector<model::Event>& out);
    TokenCount tokens() const {
        return tokens_;
    }  // fed before the end, end tokens included: completion_tokens
    bool ended() const { return ended_; }

  private:
    struct Pending {
        model::TokenOut token;
        std::uint64_t bytes_end = 0;   // of the choice's bytes, as the tokens spell them
        std::uint64_t text_begin = 0;  // of the assembled text
        std::uint64_t text_end = 0;    // kOpen while a character is incomplete
    };
    static constexpr std::uint64_t kOpen = ~std::uint64_t{0};

    std::string_view piece_of(const model::TokenOut& token) const;
    void close_pending();
    void emit(std::string text, bool last, std::vector<model::Event>& out);
    std::vector<model::TokenLogprob> take_logprobs(bool last);
    void end(model::FinishReason reason, std::string stop_sequence, std::vector<model::Event>& out);

    std::shared_ptr<const Tokenizer> tokenizer_;
    Options options_;
    Utf8Assembler utf8_;
    StopMatcher stop_;
    TokenCount tokens_ = 0;
    TokenCount visible_tokens_ = 0;  // counted in deltas so far
    std::uint64_t bytes_ = 0;        // pushed into utf8_
    std::uint64_t assembled_ = 0;    // text that came out of utf8_
    std::uint64_t emitted_ = 0;      // text that came out of stop_
    std::deque<Pending> pending_;    // only with logprobs
    bool ended_ = false;
};

}  // namespace nereid::text
