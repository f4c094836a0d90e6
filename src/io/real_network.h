// The real Network: TCP and Unix-domain sockets on a RealLoop.
//
// Each operation tries its system call first and waits for epoll only when the kernel says EAGAIN,
// so that a read of data that has arrived, or a write into a free socket buffer, costs one system
// call and no turn of the loop. TCP sockets have TCP_NODELAY. SIGPIPE is never raised. A name in
// connect() is resolved in a thread of its own; a name in listen() blocks (start-up only).
// wait_hangup() rests on EPOLLRDHUP: it sees a peer that only shut down its sending side as gone
// too, costs nothing while it waits, and works while unread data is pending. A Unix socket file
// left by a dead process is removed by listen(); close() of the listener removes its own.
#pragma once

#include <cstdint>
#include <memory>

#include "io/real_loop.h"
#include "io/stream.h"

namespace nereid::io {

struct NetworkCounters {  // plain, the shell exports them
    std::uint64_t accepted = 0;
    std::uint64_t connected = 0;
    std::uint64_t accept_pauses =
        0;  // accept refused for want of descriptors or memory; retried after 100 ms
};

class RealNetwork final : public Network {
  public:
    explicit RealNetwork(RealLoop& loop);
    ~RealNetwork() override;  // streams and listeners may outlive it, not the loop

    // kInvalidArgument (endpoint), kUnavailable (refused, no route, unknown name),
    // kDeadlineExceeded.
    Task<Result<std::unique_ptr<Stream>>> connect(const Endpoint& to, TimePoint deadline) override;
    // kConflict, kInvalidArgument, kPermissionDenied, kIo.
    Result<std::unique_ptr<Listener>> listen(const Endpoint& at, bool reuse_port = false) override;

    const NetworkCounters& counters() const { return *counters_; }

  private:
    RealLoop& loop_;
    std::shared_ptr<NetworkCounters> counters_;
};

// Two connected streams (socketpair) on one loop.
Result<std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>> make_socket_pair(
    RealLoop& loop);
// Takes ownership of a connected socket (an inherited one, for example); makes it non-blocking.
std::unique_ptr<Stream> adopt_socket(RealLoop& loop, int fd, std::string peer);

}  // namespace nereid::io
