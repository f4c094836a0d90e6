// Gateway: the HTTP front. One GatewayShard per loop, sharing nothing but immutable tables and
// counters; a connection lives and dies on its shard.
//
// Life of a request (ARCHITECTURE.md): route -> authenticate -> parse JSON -> dialect -> admission
// (per-key concurrency, queue bound) -> render and tokenise -> submit to a Worker (token engine) or
// a text backend -> events -> frames -> exactly one access-log line and one release of the slot,
// whatever ends it (RequestGuard).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/config.h"
#include "io/http.h"
#include "io/loop.h"
#include "io/process.h"
#include "io/stream.h"
#include "ops/log.h"
#include "ops/metrics.h"
#include "pools/text_backend.h"
#include "pools/worker.h"
#include "store/records.h"
#include "text/tokenizer.h"

namespace nereid::gateway {

struct GatewayOptions {
    std::string host = "127.0.0.1";
    std::int64_t port = 8080;         // 0 = the system chooses
    std::string api_keys;             // file of hashed keys; empty = no authentication
    bool allow_open_network = false;  // listen beyond loopback without keys (prints a loud warning)
    std::string tls_cert, tls_key;    // PEM files; both or none
    std::int64_t queue_max = 256;     // requests admitted and not ended, per gateway
    Duration retry_after = 1s;        // told to clients that are turned away
    Duration keepalive = 10s;         // silence in a stream before a comment is sent (A57)
    Duration drain_timeout = 30s;
    Duration upstream_timeout = 600s;  // between two events of a text backend
    io::SizeBytes max_body{64ull << 20};
    io::SizeBytes max_header{64ull << 10};
    bool strict_fields = false;
    std::int64_t max_n = 16;
    std::string state = "memory";                      // "memory", a file, or postgres://...
    Duration state_ttl = std::chrono::hours(24 * 30);  // of stored responses, files, ...; 0 = ever
    Duration job_lease = 60s;                          // see pending.h
    std::string file_urls = "fetch";                   // "fetch" or "refuse"
    bool file_private = false;                         // fetch from private addresses too
    bool pass_priority = false;                        // callers' `priority`, to upstream servers
    std::string pdf_reader = "pdftotext";              // see pdf_reader.h; empty = no PDFs
    std::string access_log = "stderr";                 // "stderr", "off" or a file
    void bind(io::ConfigBinder& b);                    // "gateway.*"
    // What the binder cannot see: host/keys/tls combinations. kConfig with the mend.
    Result<void> validate() const;
};

bool is_loopback(std::string_view host);

struct ShardContext {  // what one loop needs; owned by the caller for the gateway's life
    io::Loop* loop = nullptr;
    io::Network* network = nullptr;
    io::ProcessLauncher* launcher = nullptr;  // reads PDFs; null = they are refused
};

// One model name that clients may use. Exactly one of `worker` and `text_backend` is set. The room
// graph keeps gateway and engine apart: the app makes the text backend and hands it over through
// pools/text_backend.h.
struct ModelEntry {
    std::string id;
    std::vector<std::string> aliases;
    std::int64_t created = 0;
    TokenCount context_tokens = 0;  // 0 = ask the worker's EngineInfo
    text::TextModel text;           // with `worker`
    std::function<std::unique_ptr<pools::WorkerHandle>(io::Loop&)>
        worker;  // called once per shard, before start
    std::function<std::unique_ptr<pools::TextBackend>(const ShardContext&)>
        text_backend;  // likewise
};

class Gateway {
  public:
    // Ends what runs: engine requests are aborted, connections closed. Outlived by the loops, which
    // run (or belong to the calling thread), as for start() and reload().
    virtual ~Gateway() = default;
    // Binds and begins to accept on every shard. kConflict (port in use), kConfig. Once; after an
    // error the gateway can only be destroyed.
    virtual Result<io::Endpoint> start() = 0;
    // API keys, certificates and reloadable knobs; existing streams go on. On an error nothing has
    // changed. Files are read again under the names they have; address, sizes and file names of TLS
    // and access log stay until a restart.
    virtual Result<void> reload(const GatewayOptions& options) = 0;
    // Readiness off, no new connections, streams finish up to the deadline; `done` runs on shard
    // 0's loop.
    virtual void drain(std::function<void()> done) = 0;
};

// What outlives requests and, in a database, the process.
struct State {
    std::shared_ptr<store::Records> records;  // null = in memory, on the first shard's loop
    bool shared = false;                      // other gateways use the same records
    std::string process_id;                   // differs between processes and starts
    Digest256 secret{};                       // seals what clients keep for us; random
    // Long prompts are rendered and tokenised there, that streams do not wait for it. It must be
    // gone before the shards' loops are. Null: on the shard's own loop.
    io::Loop* helper = nullptr;
};

Result<std::unique_ptr<Gateway>> make_gateway(std::vector<ShardContext> shards,
                                              GatewayOptions options,
                                              std::vector<ModelEntry> models, ops::Logger& log,
                                              ops::Registry& metrics, State state = {});

}  // namespace nereid::gateway
