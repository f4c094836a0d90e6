// Region: the shared memory through which KV blocks enter and leave (MapRegion). A file opened by
// path, mapped read-write; every access is bounds-checked against the mapped size.
//
// The file must not shrink while it is mapped (reading past its end is a SIGBUS); its owner seals
// or only grows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/units.h"

namespace nereid::engine::llama {

class Region {
  public:
    Region() = default;
    // kIo when the file cannot be opened or mapped, kInvalidArgument when it is smaller than `size`
    // or size is 0.
    static Result<Region> map(const std::string& path, ByteCount size);
    ~Region();
    Region(Region&& other) noexcept
        : at_(std::exchange(other.at_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Region& operator=(Region&& other) noexcept;

    bool mapped() const { return at_ != nullptr; }
    ByteCount size() const { return size_; }
    // kConflict without a mapping, kInvalidArgument when [offset, offset + length) is not inside
    // it.
    Result<std::span<std::uint8_t>> range(ByteCount offset, ByteCount length) const;

  private:
    std::uint8_t* at_ = nullptr;
    ByteCount size_ = 0;
};

}  // namespace nereid::engine::llama
