// Rpc: unary calls and server streams of opaque bytes between Nereid processes (control plane).
// Real: gRPC generic stubs and generic service (no code generation, messages are model's own
// formats; io/rpc_grpc.cc). In memory, with delays and losses: io/rpc_memory.h, for the simulator
// and tests.
//
// A method is a path like "/nereid.Worker/Admit". Messages are at most kMaxRpcMessage. Everything
// here is used on the loop that was given; gRPC's threads are inside. Errors keep their Code,
// message and param on the way (the code's name travels in trailing metadata "nereid-code"; from a
// foreign server the nearest code is taken).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"

namespace nereid::io {

inline constexpr std::size_t kMaxRpcMessage = 64 << 20;

// A server stream as the caller sees it. One message is fetched per next(): a slow caller holds the
// sender back. next(): a message; kNotFound at the regular end; an error of the call.
class RpcStream {
  public:
    virtual ~RpcStream() = default;  // cancels
    virtual Task<Result<std::string>> next() = 0;
};

class RpcClient {
  public:
    virtual ~RpcClient() = default;
    // Errors carry the server's Code and message; kUnavailable when there is no connection;
    // kDeadlineExceeded. Destroying the task or the stream cancels. The client must outlive both.
    virtual Task<Result<std::string>> call(std::string method, std::string request,
                                           TimePoint deadline) = 0;
    virtual std::unique_ptr<RpcStream> open(std::string method, std::string request,
                                            TimePoint deadline) = 0;
};

// A unary handler runs to its end even when its caller has gone.
using RpcHandler = std::function<Task<Result<std::string>>(std::string request)>;
// `send` waits while the caller is slow and returns false when it has gone; the task's result ends
// the stream.
using RpcStreamHandler = std::function<Task<Result<void>>(
    std::string request, std::function<Task<bool>(std::string)> send)>;

class RpcServer {
  public:
    virtual ~RpcServer() = default;
    virtual void handle(std::string method, RpcHandler handler) = 0;  // before start
    virtual void handle_stream(std::string method, RpcStreamHandler handler) = 0;
    // The port that was bound (0 asks for any). kConflict when the address cannot be had. Once.
    virtual Result<std::uint16_t> start(const std::string& host, std::uint16_t port) = 0;
    // New calls get kUnavailable; waits for running handlers until the deadline, then destroys them
    // where they wait (their callers get kUnavailable). The destructor does the latter at once.
    virtual Task<void> stop(TimePoint deadline) = 0;
};

// gRPC over HTTP/2 without TLS. The client connects when it is first used and reconnects by itself.
std::unique_ptr<RpcServer> make_grpc_server(Loop& loop);
std::unique_ptr<RpcClient> make_grpc_client(Loop& loop, const std::string& host,
                                            std::uint16_t port);

}  // namespace nereid::io
