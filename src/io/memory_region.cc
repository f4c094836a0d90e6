#include "io/memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace nereid::io {
namespace {

constexpr ByteCount kHugePage = 2 << 20;

Error system_error(const std::string& what) {
    const int error = errno;
    const bool memory = error == ENOMEM || error == ENOSPC;
    return {memory ? Code::kNoSpace : Code::kIo, fmt::format("{}: {}", what, std::strerror(error))};
}

std::uint8_t* map_pages(int fd, ByteCount bytes, int protection, int flags) {
    void* at = ::mmap(nullptr, static_cast<std::size_t>(bytes), protection, flags, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(at);
}

// A memfd of this size, mapped. Explicit huge pages exist only if the operator reserved some, and
// are then taken at once: a region that cannot have all of them would fault later.
Result<std::pair<int, std::uint8_t*>> make_shared(const std::string& name, ByteCount bytes,
                                                  unsigned flags, int map_flags) {
    const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) return system_error("memfd_create");
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        Error e = system_error(fmt::format("a shared region of {} bytes", bytes));
        ::close(fd);
        return e;
    }
    std::uint8_t* at = map_pages(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | map_flags);
    if (at == nullptr) {
        Error e = system_error(fmt::format("mapping a shared region of {} bytes", bytes));
        ::close(fd);
        return e;
    }
    return std::pair(fd, at);
}

}  // namespace

Result<MemoryRegion> MemoryRegion::anonymous(ByteCount bytes, bool huge_pages) {
    if (bytes == 0) return err(Code::kInvalidArgument, "a memory region of 0 bytes");
    MemoryRegion region;
    region.at_ =
        map_pages(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (region.at_ == nullptr) return system_error(fmt::format("{} bytes of memory", bytes));
    region.size_ = bytes;
    if (huge_pages) (void)::madvise(region.at_, bytes, MADV_HUGEPAGE);
    return region;
}

Result<MemoryRegion> MemoryRegion::shared(const std::string& name, ByteCount bytes,
                                          bool huge_pages) {
    if (bytes == 0) return err(Code::kInvalidArgument, "a shared region of 0 bytes");
    MemoryRegion region;
    if (huge_pages && bytes % kHugePage == 0) {
        auto made = make_shared(name, bytes, MFD_HUGETLB, MAP_POPULATE);
        if (made.ok()) std::tie(region.fd_, region.at_) = *made;
    }
    if (region.at_ == nullptr) {
        TRY(auto made, make_shared(name, bytes, 0, 0));
        std::tie(region.fd_, region.at_) = made;
        if (huge_pages) (void)::madvise(region.at_, bytes, MADV_HUGEPAGE);
    }
    region.size_ = bytes;
    if (::fcntl(region.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        return system_error("sealing the size of a shared region");
    }
    return region;
}

Result<MemoryRegion> MemoryRegion::map(int fd, ByteCount bytes, bool writable) {
    MemoryRegion region;
    region.fd_ = fd;
    const int seals = ::fcntl(fd, F_GET_SEALS);
    struct stat info{};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &info) != 0) {
        return err(Code::kInvalidArgument,
                   "the shared region is no memfd sealed against shrinking: its owner could make "
                   "this process fault");
    }
    if (bytes == 0 || info.st_size < 0 || static_cast<ByteCount>(info.st_size) < bytes) {
        return err(Code::kInvalidArgument,
                   fmt::format("the shared region has {} bytes, not {}", info.st_size, bytes));
    }
    region.at_ = map_pages(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED);
    if (region.at_ == nullptr) {
        if (errno == EPERM || errno == EACCES) {
            return err(Code::kPermissionDenied, "the shared region is sealed against writing");
        }
        return system_error(fmt::format("mapping a shared region of {} bytes", bytes));
    }
    region.size_ = bytes;
    return region;
}

Result<void> MemoryRegion::seal_writes() {
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
        return system_error("sealing a shared region against writing");
    }
    return {};
}

MemoryRegion::~MemoryRegion() {
    if (at_ != nullptr) ::munmap(at_, static_cast<std::size_t>(size_));
    if (fd_ >= 0) ::close(fd_);
}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& o) noexcept {
    std::swap(at_, o.at_);
    std::swap(size_, o.size_);
    std::swap(fd_, o.fd_);
    return *this;
}

}  // namespace nereid::io
