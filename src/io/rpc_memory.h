// MemoryRpc: the Rpc interfaces between processes that live on one loop, with delays and losses per
// message. For the simulator and tests; deterministic as far as its hook is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "io/rpc.h"

namespace nereid::io {

class MemoryRpc {
  public:
    // What happens to one message (a request, a response, a stream's message or its end) to or from
    // `server` ("host:port").
    struct Fate {
        Duration delay{0};
        bool lost = false;  // the receiver never sees it: its deadline ends the wait
    };
    using FateFn = std::function<Fate(std::string_view server, std::string_view method)>;

    // The loop must outlive all; clients and servers may outlive this object.
    explicit MemoryRpc(Loop& loop, FateFn fate = nullptr);
    // start(): port 0 takes the next free one from 40000 on.
    std::unique_ptr<RpcServer> make_server();
    std::unique_ptr<RpcClient> make_client(const std::string& host, std::uint16_t port);

    class Server;
    struct World;

  private:
    std::shared_ptr<World> world_;
};

}  // namespace nereid::io
