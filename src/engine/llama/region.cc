#include "engine/llama/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nereid::engine::llama {

Result<Region> Region::map(const std::string& path, ByteCount size) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return err(Code::kIo, fmt::format("KV region {}: {}", path, std::strerror(errno)));
    struct stat st{};
    const bool fits =
        ::fstat(fd, &st) == 0 && size != 0 && static_cast<ByteCount>(st.st_size) >= size;
    if (!fits) {
        ::close(fd);
        return err(
            Code::kInvalidArgument,
            fmt::format("KV region {}: {} bytes wanted, the file has {}", path, size, st.st_size));
    }
    void* at =
        ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    ::close(fd);
    if (at == MAP_FAILED)
        return err(Code::kIo, fmt::format("KV region {}: mmap: {}", path, std::strerror(error)));
    Region region;
    region.at_ = static_cast<std::uint8_t*>(at);
    region.size_ = size;
    return region;
}

Region::~Region() {
    if (at_ != nullptr) ::munmap(at_, static_cast<std::size_t>(size_));
}

Region& Region::operator=(Region&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(size_, other.size_);
    return *this;
}

Result<std::span<std::uint8_t>> Region::range(ByteCount offset, ByteCount length) const {
    if (at_ == nullptr) return err(Code::kConflict, "no KV region is mapped");
    if (offset > size_ || length > size_ - offset) {
        return err(
            Code::kInvalidArgument,
            fmt::format("KV region: {} bytes at {} are outside its {}", length, offset, size_));
    }
    return std::span<std::uint8_t>(at_ + offset, static_cast<std::size_t>(length));
}

}  // namespace nereid::engine::llama
