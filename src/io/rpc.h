// Rpc: unary calls and server streams of opaque bytes between Nereid processes (control plane). Real: gRPC generic
// stubs and generic service (no code generation, messages are model's own formats). In memory: for the simulator.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"

namespace nereid::io {

// A server stream as the caller sees it. next(): a message; kNotFound at the regular end; an error of the call.
class RpcStream {
  public:
    virtual ~RpcStream() = default;    // cancels
    virtual Task<Result<std::string>> next() = 0;
};

class RpcClient {
  public:
    virtual ~RpcClient() = default;
    // Errors carry the server's Code and message; kUnavailable when there is no connection; kDeadlineExceeded.
    virtual Task<Result<std::string>> call(std::string method, std::string request, TimePoint deadline) = 0;
    virtual std::unique_ptr<RpcStream> open(std::string method, std::string request, TimePoint deadline) = 0;
};

using RpcHandler = std::function<Task<Result<std::string>>(std::string request)>;
// `send` returns false when the caller has gone; the task's result ends the stream.
using RpcStreamHandler =
    std::function<Task<Result<void>>(std::string request, std::function<Task<bool>(std::string)> send)>;

class RpcServer {
  public:
    virtual ~RpcServer() = default;
    virtual void handle(std::string method, RpcHandler handler) = 0;             // before start
    virtual void handle_stream(std::string method, RpcStreamHandler handler) = 0;
    virtual Result<std::uint16_t> start(const std::string& host, std::uint16_t port) = 0;    // the port that was bound
    virtual void stop(TimePoint deadline) = 0;
};

}  // namespace nereid::io
