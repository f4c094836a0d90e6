// Socket: a connected non-blocking stream socket on a RealLoop, shared by the Stream that users
// hold and the coroutines that are in the middle of an operation (so that a stream may be destroyed
// under them). Internal to io.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/descriptors.h"
#include "io/real_loop.h"
#include "io/stream.h"
#include "io/waiter.h"

namespace nereid::io {

class Socket : public std::enable_shared_from_this<Socket> {
  public:
    // Owns `fd` from here on. The caller then calls watch().
    Socket(RealLoop& loop, int fd, std::string peer);
    ~Socket();
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    void watch();

    static Task<Result<std::size_t>> read(std::shared_ptr<Socket> s, std::span<char> into,
                                          TimePoint deadline);
    static Task<Result<void>> write(std::shared_ptr<Socket> s,
                                    std::span<const std::string_view> pieces, TimePoint deadline);
    static Task<Result<void>> wait_hangup(std::shared_ptr<Socket> s);
    // After a connect() that said EINPROGRESS: waits for its end. The errno, 0 when connected,
    // ETIMEDOUT at the deadline.
    static Task<int> finish_connect(std::shared_ptr<Socket> s, TimePoint deadline);

    // Descriptors (io/descriptors.h).
    Result<PeerCredentials> credentials() const;
    void accept_descriptors() { descriptors_ = true; }
    std::vector<Descriptor> take_descriptors() { return std::move(received_); }
    static Task<Result<void>> write_with_descriptor(std::shared_ptr<Socket> s,
                                                    std::string_view bytes, int fd,
                                                    TimePoint deadline);

    void shutdown_write();
    // Idempotent. What is in flight gets kCancelled from the loop's queue.
    static void close(const std::shared_ptr<Socket>& s);
    const std::string& peer() const { return peer_; }

  private:
    void on_events(std::uint32_t events);
    // Bytes read (0 = end), or -1 with errno.
    std::ptrdiff_t try_read(std::span<char> into);
    std::ptrdiff_t receive(std::span<char> into);

    RealLoop& loop_;
    int fd_;
    std::string peer_;
    // False after EAGAIN or a short read, until the next edge: saves the system call that would say
    // EAGAIN (epoll(7), Q9).
    bool readable_ = true;
    bool descriptors_ = false;
    std::vector<Descriptor> received_;
    bool peer_gone_ = false;  // EPOLLRDHUP, EPOLLHUP, EPOLLERR or end of data was seen
    Waiter reader_;
    Waiter writer_;
    Waiter hangup_;
    std::optional<FdWatch> watch_;
};

// The Stream over a Socket.
std::unique_ptr<Stream> make_socket_stream(std::shared_ptr<Socket> socket);

// "Connection refused" for ECONNREFUSED.
std::string errno_text(int number);

}  // namespace nereid::io
