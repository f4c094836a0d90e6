// The real Disk: blocking system calls in a small pool of threads, answers posted to the loop.
//
// One RealDisk per loop. Its queue is bounded only by the number of coroutines that wait in it.
// Destroying an operation that is running in a thread blocks until the thread has finished it (its
// buffer belongs to the caller).
#pragma once

#include <cstddef>
#include <memory>

#include "io/disk.h"
#include "io/real_loop.h"

namespace nereid::io {

class RealDisk final : public Disk {
  public:
    explicit RealDisk(RealLoop& loop, std::size_t threads = 2);
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
};

}  // namespace nereid::io
