// Disk: files with positional reads and writes, real (io/real_disk.h: a small thread pool, or
// io_uring and O_DIRECT) and in memory (io/sim_disk.h; faults: torn and reordered writes, bit rot,
// disk full, failing device, lost unsynced data).
//
// Content is durable after sync(); what happens to folders (open that creates, remove, rename,
// make_folders) is durable when the call returns. Operations of one file may run at once and in any
// order: await one before starting another that has to follow it. A suspended operation may be
// destroyed; whether it happened is then unknown, and its buffer is free. Errors: kNotFound,
// kConflict (exists), kPermissionDenied, kNoSpace, kIo; the message names the path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/loop.h"

namespace nereid::io {

enum class OpenMode : std::uint8_t {
    kRead,
    kReadWrite,
    kCreate,
    kCreateExclusive,
    kCreateLocked,  // kCreate, and nobody else (no other process either) has it open in this mode
                    // while the File lives: kConflict
};

class File {
  public:
    static constexpr std::size_t kMaxPieces = 1024;
    virtual ~File() = default;
    // Fewer bytes than asked only at the end of the file. Never kCorrupt: what the bytes mean is
    // the caller's business.
    virtual Task<Result<std::size_t>> read_at(std::span<char> into, std::uint64_t offset) = 0;
    // All bytes or an error; after an error the range's content is undefined. kNoSpace, kIo.
    virtual Task<Result<void>> write_at(std::span<const char> bytes, std::uint64_t offset) = 0;
    // The same into or from several pieces that lie one after another in the file; at most
    // kMaxPieces.
    virtual Task<Result<std::size_t>> read_pieces(std::vector<std::span<char>> into,
                                                  std::uint64_t offset) = 0;
    virtual Task<Result<void>> write_pieces(std::vector<std::span<const char>> pieces,
                                            std::uint64_t offset) = 0;
    // Reserves room up to `bytes`, so that later writes there do not fail with kNoSpace; a shorter
    // file grows and reads zeros. kNoSpace, kIo.
    virtual Task<Result<void>> allocate(std::uint64_t bytes) = 0;
    // What was written before is on stable storage when it returns.
    virtual Task<Result<void>> sync() = 0;
    virtual Task<Result<std::uint64_t>> size() = 0;
    virtual Task<Result<void>> truncate(std::uint64_t bytes) = 0;
};

class Disk {
  public:
    virtual ~Disk() = default;
    virtual Task<Result<std::unique_ptr<File>>> open(std::string path, OpenMode mode) = 0;
    virtual Task<Result<void>> remove(std::string path) = 0;
    virtual Task<Result<void>> rename(std::string from,
                                      std::string to) = 0;  // atomic, then the folder is synced
    virtual Task<Result<std::vector<std::string>>> list(std::string folder) = 0;  // sorted names
    virtual Task<Result<void>> make_folders(std::string path) = 0;
};

// Small whole files at start-up (configuration, keys, certificates). Blocking. kNotFound, kIo,
// kTooLarge.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

}  // namespace nereid::io
