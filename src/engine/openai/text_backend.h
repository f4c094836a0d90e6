// TextBackend: any OpenAI-compatible server as an engine (DESIGN §5, "text engines"). The canonical request is
// written out as Chat Completions / Completions (dialect/chat/mirror.h) and the answer read back into Events.
//
// One per loop. What it cannot do: token ids, KV, per-request seeds beyond what the server honours; see the table
// in src/engine/README.md.
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
    std::vector<std::string> base_urls;    // "http://127.0.0.1:9001"; least outstanding requests among them
    std::string model;                     // name told to the server; empty = the client's
    std::string api_key;                   // sent as Bearer; a secret
    Duration connect_timeout = 5s;
    Duration event_timeout = 600s;         // between two reads of the answer
};

class TextBackend {
  public:
    virtual ~TextBackend() = default;
    // Runs the request to its end, giving each batch of Events (what one read of the body completed) to `on_events`,
    // whose task is awaited (backpressure). Ends with Done or Failed as the last event. Destroying the task closes
    // the upstream connection, which aborts the request there. A server that refuses the connection before any
    // byte was sent is tried once on another base url.
    using OnEvents = std::function<io::Task<void>(std::vector<model::Event>&)>;
    virtual io::Task<void> run(const model::Request& request, OnEvents on_events) = 0;
};
std::unique_ptr<TextBackend> make_text_backend(io::Loop& loop, io::Network& network, TextBackendOptions options);

}  // namespace nereid::engine::openai
