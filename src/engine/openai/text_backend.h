// TextBackend: any OpenAI-compatible server as an engine (DESIGN §5, "text engines"). The canonical
// request is written out as Chat Completions / Completions (dialect/chat/mirror.h) and the answer
// read back into Events.
//
// One per loop. What it cannot do: token ids, KV, per-request seeds beyond what the server honours;
// see the table in src/engine/README.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/http.h"
#include "io/loop.h"
#include "io/stream.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::engine::openai {

struct TextBackendOptions {
    std::vector<std::string>
        base_urls;        // "http://127.0.0.1:9001"; least outstanding requests among them
    std::string model;    // name told to the server; empty = the client's
    std::string api_key;  // sent as Bearer; a secret
    Duration connect_timeout = 5s;
    Duration event_timeout = 600s;  // between two reads of the answer
};

class TextBackend {
  public:
    virtual ~TextBackend() = default;
    // Takes what one read of the answer completed, and is awaited (backpressure). false: nobody
    // wants the rest; run() closes the upstream connection and returns.
    using OnEvents = std::function<io::Task<bool>(std::vector<model::Event>&)>;
    // Runs the request to its end; the last event is Done or Failed, unless `on_events` said false.
    // Start comes with the upstream's status, so what fails before it can still be answered with a
    // status of its own. Destroying the task closes the upstream connection, which aborts the
    // request there. A server that cannot be connected to is left alone for a second and the
    // request tried once on another base url; nothing is sent twice after that. `served_by`, when
    // given, is set to the base url that was asked (for logs). `request` must outlive the task.
    // Failed: the upstream's own 4xx; kUnavailable (not reachable, its 5xx), kDeadlineExceeded
    // (silent for event_timeout), kWorkerLost (cut after output), kCorrupt is reported as
    // kUnavailable.
    virtual io::Task<void> run(const model::Request& request, OnEvents on_events,
                               std::string* served_by = nullptr) = 0;
    // Tokens of a chat-like request's prompt as the server renders it: by /tokenize for chats
    // (vLLM, Nereid), else by /apply-template and /tokenize (llama-server). kUnsupported when the
    // server offers neither; kUnavailable, kDeadlineExceeded.
    virtual io::Task<Result<TokenCount>> count(const model::Request& request);
};
// kConfig for a base url that cannot be read: "http(s)://host[:port][/prefix]"; a prefix "/v1" is
// the same as none.
Result<std::unique_ptr<TextBackend>> make_text_backend(io::Loop& loop, io::Network& network,
                                                       TextBackendOptions options);

}  // namespace nereid::engine::openai
