// Stream, Listener, Network: byte streams (TCP, Unix sockets, TLS on top) for one loop.
//
// Every operation belongs to the loop that made the object. One read and one write may be in flight
// at once, not two of a kind. close() may be called at any time and makes what is in flight return
// kCancelled; destroying a stream closes it. After an error from write() it is unknown how much was
// sent: close the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"
#include "io/task.h"

namespace nereid::io {

class Stream {
  public:
    virtual ~Stream() = default;
    // At least one byte, or 0 at the end of the peer's data. kIo, kCancelled, kDeadlineExceeded
    // (nothing was read).
    virtual Task<Result<std::size_t>> read(std::span<char> into,
                                           TimePoint deadline = TimePoint::never()) = 0;
    // All bytes of all pieces, in one gathering system call when the kernel takes them. The pieces
    // must stay valid.
    virtual Task<Result<void>> write(std::span<const std::string_view> pieces,
                                     TimePoint deadline = TimePoint::never()) = 0;
    // Completes (value) once the peer has closed or reset, or kCancelled by close(). Reads nothing
    // that a later read() would miss. Lets a handler notice a client that went away while it
    // computes. At most one; not during a read().
    virtual Task<Result<void>> wait_hangup() = 0;
    virtual void shutdown_write() = 0;
    virtual void close() = 0;
    virtual std::string peer() const = 0;  // "127.0.0.1:5012", "unix:PATH", for logs
};

struct Endpoint {
    std::string host;        // an address or name; empty with unix_path
    std::uint16_t port = 0;  // 0 with listen: the system chooses
    std::string unix_path;
    std::string to_string() const;
};

class Listener {
  public:
    virtual ~Listener() = default;
    // kCancelled after close(). Transient errors (EMFILE ...) are counted and retried inside with a
    // pause.
    virtual Task<Result<std::unique_ptr<Stream>>> accept() = 0;
    virtual Endpoint local() const = 0;  // with the port that was chosen
    virtual void close() = 0;
};

class Network {
  public:
    virtual ~Network() = default;
    virtual Task<Result<std::unique_ptr<Stream>>> connect(const Endpoint& to,
                                                          TimePoint deadline) = 0;
    // kConflict when the address is in use, with the mend in the message. reuse_port lets several
    // loops listen on one port.
    virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& at,
                                                     bool reuse_port = false) = 0;
};

}  // namespace nereid::io
