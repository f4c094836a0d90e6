// Uring: an io_uring on a RealLoop; what RealDisk's files do reads, writes and syncs with. Internal
// to io.
//
// Operations of one turn of the loop go to the kernel in one io_uring_enter; completions come
// through the ring's own descriptor in epoll. Loop thread only.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "io/real_loop.h"
#include "io/task.h"

namespace nereid::io {

class Uring : public std::enable_shared_from_this<Uring> {
  public:
    // Null when the kernel refuses. Probes by use: read, write and fsync exist since Linux 5.6.
    static std::shared_ptr<Uring> create(RealLoop& loop, unsigned depth);
    ~Uring();
    Uring(const Uring&) = delete;
    Uring& operator=(const Uring&) = delete;

    enum class What : std::uint8_t { kRead, kWrite, kSync };
    // The system call's result: bytes, or -errno. `pieces` and what they point to must stay until
    // it returns. Destroyed while the kernel works on it: cancels and waits (blocks).
    static Task<int> run(std::shared_ptr<Uring> ring, What what, int fd,
                         const std::vector<iovec>& pieces, std::uint64_t offset);

    struct Op;

  private:
    struct State;
    explicit Uring(std::unique_ptr<State> state);
    void start(const std::shared_ptr<Op>& op);
    void submit_later();
    void abandon(Op& op);
    std::unique_ptr<State> state_;
};

}  // namespace nereid::io
