// NodeThread: a CacheServer with a loop and a thread of its own, for a process that does other
// things too (`nereid serve`: copies of megabytes do not belong between the tokens of a gateway's
// loop).
//
// Threads: start and the destructor block their caller; not from a loop that others wait for.
#pragma once

#include <memory>
#include <type_traits>

#include "io/real_loop.h"
#include "kv/server/server.h"

namespace nereid::io {
class RealDisk;
class RealNetwork;
}  // namespace nereid::io

namespace nereid::kv {

class NodeThread {
  public:
    // Blocks until the node serves (records on SSD may still be loading). Errors of
    // CacheServer::start; kConflict only after `patience`: a node before this one may still be
    // sealing its folder. `probe` outlives it.
    static Result<std::unique_ptr<NodeThread>> start(CacheServerOptions options,
                                                     NodeProbe* probe = nullptr,
                                                     Duration patience = {});
    // Closes the clients, writes what waits for SSD, seals segments; blocks for that.
    ~NodeThread();
    NodeThread(const NodeThread&) = delete;
    NodeThread& operator=(const NodeThread&) = delete;

    // What f says of the server, on its thread; blocks for a turn of its loop.
    template <class F>
    auto look(F f) {
        std::invoke_result_t<F&, CacheServer&> out{};
        threads_.run_on(0, [&] { out = f(*server_); });
        return out;
    }

  private:
    NodeThread();
    io::Task<void> begin(CacheServerOptions options, NodeProbe* probe, Duration patience,
                         std::move_only_function<void(Result<void>)> done);
    io::Task<void> end(std::move_only_function<void()> done);

    io::LoopThreads threads_{1};
    std::unique_ptr<io::RealNetwork> network_;  // these on the thread alone
    std::unique_ptr<io::RealDisk> disk_;
    std::unique_ptr<CacheServer> server_;
};

}  // namespace nereid::kv
