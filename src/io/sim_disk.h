// SimDisk: a disk in memory under virtual time, with the faults of real ones. It outlives the
// simulated process that uses it: make it beside the SimLoops, give each process a SimDiskView.
//
// Model: folder operations are durable when they return (as RealDisk makes them). File content that
// was not synced is lost at crash(): each such write, independently, is kept, lost, or torn (a
// prefix of its 512-byte sectors reaches the platter, or any of them); so is a truncate. Writes are
// thereby reordered: a later one may be kept and an earlier one not. Latency is drawn from the
// seed per operation; an operation takes effect at its end, and one that is under way at a crash is
// one more unsynced write.
//
// | fault | call | what the program sees |
// |---|---|---|
// | power loss, kernel crash | crash() | unsynced writes lost or torn; open files fail with kIo |
// | disk full | options.capacity | kNoSpace; a prefix may have been written |
// | bit rot | flip_bits() | wrong bytes, no error |
// | a bad device | fail_operations() | kIo |
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/disk.h"
#include "io/sim_loop.h"

namespace nereid::io {

struct SimDiskOptions {
    Duration min_latency = 20us;
    Duration max_latency = 400us;
    ByteCount capacity = ByteCount{1} << 40;
};

struct SimDiskCounters {
    std::uint64_t operations = 0, failed = 0, lost_writes = 0, torn_writes = 0, kept_writes = 0;
};

class SimDisk {
  public:
    SimDisk(SimScheduler& scheduler, SimDiskOptions options);
    ~SimDisk();
    SimDisk(const SimDisk&) = delete;
    SimDisk& operator=(const SimDisk&) = delete;

    void crash();
    // Flips `count` random bits of the durable and the visible content. False when there is no such
    // file, or it is empty.
    bool flip_bits(const std::string& path, int count);
    // The next `count` operations on files fail with kIo.
    void fail_operations(int count);
    void set_capacity(ByteCount bytes);
    ByteCount used() const;
    const SimDiskCounters& counters() const;

    struct Core;

  private:
    friend class SimDiskView;
    std::shared_ptr<Core> core_;
};

// The Disk of one process. Paths are compared as written: one spelling per file.
class SimDiskView final : public Disk {
  public:
    SimDiskView(SimDisk& disk, SimLoop& loop);
    Task<Result<std::unique_ptr<File>>> open(std::string path, OpenMode mode) override;
    Task<Result<void>> remove(std::string path) override;
    Task<Result<void>> rename(std::string from, std::string to) override;
    Task<Result<std::vector<std::string>>> list(std::string folder) override;
    Task<Result<void>> make_folders(std::string path) override;

  private:
    std::shared_ptr<SimDisk::Core> core_;
    SimLoop& loop_;
};

}  // namespace nereid::io
