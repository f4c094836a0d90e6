// The KV cache of `nereid serve` (docs/adr/0011): a node of its own, in this process on a thread of
// its own, that the engines reach by a socket in the runtime folder. It outlives them: an engine
// that restarts finds its prompts in memory, a service that restarts finds them on disk.
#pragma once

#include <memory>
#include <string>

#include "app/engine_setup.h"
#include "base/result.h"
#include "io/config.h"
#include "kv/node/probe.h"
#include "kv/server/node_thread.h"
#include "ops/log.h"
#include "ops/metrics.h"

namespace nereid::app {

struct CacheNodeOptions {
    bool enabled = true;
    std::string node;    // socket of a node that runs already
    std::string folder;  // empty: default_cache_folder()
    io::SizeBytes memory{ByteCount{256} << 20};
    io::SizeBytes capacity{ByteCount{8} << 30};
    Duration ttl = std::chrono::hours(7 * 24);
    void bind(io::ConfigBinder& b);  // "cache.*"
};

// ($XDG_CACHE_HOME or ~/.cache)/nereid/kv; empty when there is neither.
std::string default_cache_folder();

class CacheNode {
  public:
    // Sets engine.cache to the socket that the engines are to use: of a node started here, which
    // is then returned, of cache.node, or none. Only llama.cpp engines use one. What the disk has
    // no room for, or another service holds, is done without and logged; kConfig: a folder that was
    // named and cannot be used. Blocks for some milliseconds.
    static Result<std::unique_ptr<CacheNode>> start(const CacheNodeOptions& options,
                                                    EngineOptions& engine,
                                                    const std::string& runtime_folder,
                                                    ops::Registry& metrics, ops::Logger& log);

  private:
    explicit CacheNode(ops::Registry& metrics) : probe_(metrics) {}
    kv::NodeProbe probe_;
    std::unique_ptr<kv::NodeThread> node_;
};

}  // namespace nereid::app
