// The Chat dialect seen from the other side: Request -> a Chat Completions (or Completions,
// Embeddings) body for a text backend, and its answer -> Events. Used by engine/openai. Tolerates
// what real servers do: `choices: []` (A13), unknown finish reasons (A30: they become Failed),
// `reasoning` and `reasoning_content`, int error codes, leading white space, comments, CRLF, one id
// for several parallel calls (A21), id and name repeated on each fragment (A22).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::dialect::chat {

// The path ("/v1/chat/completions") and body to send. Streams always ask for usage (A50); `model`
// replaces the name. kUnsupported for what the wire cannot say: a Lark grammar, namespace tools,
// documents (the gateway puts their text in their place).
// ignored_fields are not passed on.
struct Outgoing {
    std::string path;
    std::string body;
};
Result<Outgoing> write_request(const model::Request& request, std::string_view model);

// Reads an SSE body in any chunking. After Done or Failed nothing more is appended. finish() at the
// end of the body: appends Failed{kWorkerLost} when neither had been seen (Done when every choice
// had its finish reason: some servers leave [DONE] out). [DONE] with a choice still open closes it
// with kStop, as old servers mean it. What the wire does not carry: token ids (-1 in TokenLogprob),
// stop_sequence. Calls are renumbered by arrival, so that indexes are sequential; ids repeated
// within one answer get a suffix. Cost: about 0.2 us for a chunk that differs from the one before
// in its text only, else one JSON parse (about 2 us). Memory: one line, at most kMaxLineBytes; a
// longer one is Failed{kCorrupt}.
class StreamReader {
  public:
    static constexpr std::size_t kMaxLineBytes = 16u << 20;

    void feed(std::string_view bytes, std::vector<model::Event>& out);
    void finish(std::vector<model::Event>& out);
    bool ended() const { return ended_; }

  private:
    struct Call {
        std::int64_t wire_index = 0;
        std::string id;
        bool named = false;
        std::uint32_t index = 0;       // among the named
        std::string before_name = {};  // arguments
    };
    struct Choice {
        bool seen = false;
        // Has its reason. No text comes any more; arguments of its calls may (A10), so that the end
        // is told with the stream's.
        bool ended = false;
        model::ChoiceEnd end = {};
        std::vector<Call> calls;
        std::uint32_t named = 0;  // of these
    };

    void line(std::string_view line, std::vector<model::Event>& out);
    void data(std::string_view json, std::vector<model::Event>& out);
    bool like_the_last(std::string_view json, std::vector<model::Event>& out);
    void learn(std::string_view json, const std::vector<model::Event>& out, std::size_t before);
    void choice(const Json& choice, std::vector<model::Event>& out);
    void tool_calls(const Json& calls, std::uint32_t index, std::vector<model::Event>& out);
    void end_choice(std::uint32_t index, std::string_view reason, std::string_view stop,
                    std::vector<model::Event>& out);
    void start(std::vector<model::Event>& out);
    void done(std::vector<model::Event>& out);
    void fail(Error error, std::vector<model::Event>& out);
    Choice* choice_at(std::uint32_t index, std::vector<model::Event>& out);

    std::string buffer_;  // an incomplete line
    model::Usage usage_;
    std::vector<Choice> choices_;
    bool started_ = false;
    bool ended_ = false;
    // The last chunk that was nothing but one text delta, around its text: a chunk with the same
    // ends is one, too.
    std::string like_prefix_;
    std::string like_suffix_;
    std::uint32_t like_choice_ = 0;
};

// A whole (not streamed) answer with status 200: Start, deltas, ChoiceEnds (or EmbeddingOuts),
// Done; or Failed alone.
std::vector<model::Event> read_response(std::string_view body);
// An answer with another status: the Error to give to our caller (4xx keep their meaning, 5xx
// become kUnavailable, but 503 and 408 "busy": kOverloaded; 401 and 403 kConfig: it is our
// credential that the backend refused, not the caller's).
Error read_error(int status, std::string_view body);

}  // namespace nereid::dialect::chat
