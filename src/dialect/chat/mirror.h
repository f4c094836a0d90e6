// The Chat dialect seen from the other side: Request -> a Chat Completions (or Completions) body for a text backend,
// and its answer -> Events. Used by engine/openai. Tolerates what real servers do: `choices: []` (A13), unknown
// finish reasons (A30), `reasoning` and `reasoning_content`, int error codes, leading whitespace, comments, CRLF.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::dialect::chat {

// The path ("/v1/chat/completions") and body to send. Streams always ask for usage (A50); `model` replaces the name.
struct Outgoing { std::string path; std::string body; };
Result<Outgoing> write_request(const model::Request& request, std::string_view model);

// Reads an SSE body in any chunking. After Done or Failed nothing more is appended. finish() at the end of the
// body: appends Failed{kWorkerLost} when neither had been seen.
class StreamReader {
  public:
    void feed(std::string_view bytes, std::vector<model::Event>& out);
    void finish(std::vector<model::Event>& out);
    bool ended() const { return ended_; }

  private:
    void line(std::string_view line, std::vector<model::Event>& out);
    void data(std::string_view json, std::vector<model::Event>& out);
    void done(std::vector<model::Event>& out);
    std::string buffer_;
    model::Usage usage_;
    std::vector<std::uint8_t> open_choices_;    // 0 unseen, 1 open, 2 ended; by index
    bool started_ = false;
    bool ended_ = false;
};

// A whole (not streamed) answer with status 200.
std::vector<model::Event> read_response(std::string_view body);
// An answer with another status: the Error to give to our caller (4xx keep their meaning, 5xx become kUnavailable).
Error read_error(int status, std::string_view body);

}  // namespace nereid::dialect::chat
