#include "gateway/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace nereid::gateway {
namespace {

Result<int> open_file(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd >= 0) return fd;
    return err(Code::kConfig, fmt::format("gateway.access_log: cannot open {}: {}. Mend: name a "
                                          "file in a folder that exists and may be written, "
                                          "\"stderr\", or \"off\".",
                                          path, std::strerror(errno)));
}

}  // namespace

AccessLog::~AccessLog() {
    if (!path_.empty()) ::close(fd_);
}

Result<void> AccessLog::open(const std::string& target) {
    if (target == "off") return {};
    if (target == "stderr") {
        fd_ = STDERR_FILENO;
    } else {
        TRY(fd_, open_file(target));
        path_ = target;
    }
    sink_ = std::make_unique<ops::FdSink>(fd_);
    return {};
}

// The descriptor keeps its number, so that writers need not know.
Result<void> AccessLog::reopen() {
    if (path_.empty()) return {};
    TRY(const int fresh, open_file(path_));
    ::dup3(fresh, fd_, O_CLOEXEC);
    ::close(fresh);
    return {};
}

}  // namespace nereid::gateway
