// MemoryRegion: pages from the system, private or shared with other processes by descriptor.
//
// Shared regions are memfds: no name in any file system, gone with the last descriptor and mapping,
// so a crash leaves nothing behind. Their size is sealed; `seal_writes` also forbids every future
// writable mapping or write(2), while mappings that exist stay writable: the owner writes, all who
// receive the descriptor can only read.
//
// Owns mapping and descriptor; movable. Any thread. Blocking: system calls only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/units.h"

namespace nereid::io {

class MemoryRegion {
  public:
    MemoryRegion() = default;
    // Zeroed private pages, committed as they are touched. Huge pages are asked for (madvise), not
    // required. kNoSpace.
    static Result<MemoryRegion> anonymous(ByteCount bytes, bool huge_pages);
    // A new shared region, zeroed, mapped read-write. `name` is for /proc only. With `huge_pages`
    // explicit huge pages are tried first, then transparent ones. kNoSpace, kIo.
    static Result<MemoryRegion> shared(const std::string& name, ByteCount bytes, bool huge_pages);
    // Maps a region received from another process. Takes the descriptor, also on failure. It must
    // be a memfd sealed against shrinking with at least `bytes` (otherwise kInvalidArgument: its
    // owner could make our reads fault); kPermissionDenied: asked writable, sealed against it.
    static Result<MemoryRegion> map(int fd, ByteCount bytes, bool writable);

    // From here on nobody can map or write it anew. Only for shared(); kIo.
    Result<void> seal_writes();

    std::span<std::uint8_t> bytes() const { return {at_, static_cast<std::size_t>(size_)}; }
    ByteCount size() const { return size_; }
    int fd() const { return fd_; }  // -1 for anonymous ones
    explicit operator bool() const { return at_ != nullptr; }

    ~MemoryRegion();
    MemoryRegion(MemoryRegion&& o) noexcept
        : at_(std::exchange(o.at_, nullptr)),
          size_(std::exchange(o.size_, 0)),
          fd_(std::exchange(o.fd_, -1)) {}
    MemoryRegion& operator=(MemoryRegion&& o) noexcept;

  private:
    std::uint8_t* at_ = nullptr;
    ByteCount size_ = 0;
    int fd_ = -1;
};

}  // namespace nereid::io
