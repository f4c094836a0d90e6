// RuntimeFolder: a private place for sockets and files of one running service, removed with
// everything in it at its end. A service that was killed cannot remove its own: the next one does,
// and knows it by the lock that nobody holds any more.
#pragma once

#include <string>

#include "base/result.h"

namespace nereid::app {

class RuntimeFolder {
  public:
    // A fresh folder of mode 0700 under $XDG_RUNTIME_DIR or, where that is unset, too long for a
    // socket's path or not writable, under /tmp. Removes the folders that dead services of this
    // user left there. kIo.
    static Result<RuntimeFolder> create();
    RuntimeFolder(RuntimeFolder&& other) noexcept;
    RuntimeFolder& operator=(RuntimeFolder&&) = delete;
    RuntimeFolder(const RuntimeFolder&) = delete;
    ~RuntimeFolder();

    const std::string& path() const { return path_; }
    // Writes a file of mode 0600 and returns its path. kIo.
    Result<std::string> write(const std::string& name, const std::string& content) const;

  private:
    RuntimeFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
    std::string path_;  // empty = moved from
    int lock_ = -1;     // descriptor that holds the lock on "lock" while the service lives
};

}  // namespace nereid::app
