// The real Disk: blocking system calls in a small pool of threads, answers posted to the loop; for
// data optionally io_uring and O_DIRECT.
//
// One RealDisk per loop. Its queue is bounded only by the number of coroutines that wait in it.
// Destroying an operation that is running in a thread or in the kernel blocks until it has ended
// (its buffer belongs to the caller).
//
// Direct: page cache and its copy are left out; then every buffer, length and offset must be a
// multiple of kDirectAlignment (io/aligned_buffer.h), else kInvalidArgument. A file system that
// has no O_DIRECT (tmpfs) is used through the page cache, with the same rule. io_uring: one ring
// per disk, on the loop's epoll; reads, writes and syncs that become ready in one turn of the loop
// are given to the kernel in one call. Where the kernel refuses a ring (seccomp, sysctl) the
// threads do it all (case K40): backend() says which.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "io/disk.h"
#include "io/real_loop.h"

namespace nereid::io {

class Uring;

struct RealDiskOptions {
    std::size_t threads = 2;
    bool direct = false;
    bool uring = false;
    unsigned depth = 256;  // operations in the ring; more wait in the disk
};

class RealDisk final : public Disk {
  public:
    explicit RealDisk(RealLoop& loop, std::size_t threads = 2);
    RealDisk(RealLoop& loop, const RealDiskOptions& options);
    // "io_uring" or "threads": who reads and writes.
    std::string_view backend() const { return uring_ ? "io_uring" : "threads"; }
    // Joins the threads. Files may outlive it only unused.
    ~RealDisk() override;

    Task<Result<std::unique_ptr<File>>> open(std::string path, OpenMode mode) override;
    Task<Result<void>> remove(std::string path) override;
    Task<Result<void>> rename(std::string from, std::string to) override;
    Task<Result<std::vector<std::string>>> list(std::string folder) override;
    Task<Result<void>> make_folders(std::string path) override;

    class Pool;

  private:
    std::shared_ptr<Pool> pool_;
    std::shared_ptr<Uring> uring_;
    bool direct_ = false;
};

}  // namespace nereid::io
