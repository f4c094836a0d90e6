// Descriptors and identity over a Unix stream: SCM_RIGHTS and SO_PEERCRED (unix(7)). Only for
// streams of RealNetwork over a Unix socket (and make_socket_pair); others say kUnsupported.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/stream.h"

namespace nereid::io {

// An open file that is closed with its owner.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    ~Descriptor();
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_ = -1;
};

struct PeerCredentials {  // when it connected
    pid_t pid = 0;
    uid_t uid = 0;
    gid_t gid = 0;
};
Result<PeerCredentials> peer_credentials(const Stream& stream);

// From here on read() also takes descriptors that come with the bytes (at most 8 a read, the rest
// is dropped and closed): they are there, in order, when the bytes are. Without this call the
// kernel closes them.
Result<void> accept_descriptors(Stream& stream);
std::vector<Descriptor> take_descriptors(Stream& stream);

// Like write(), with `fd` attached to the first byte; the receiver gets a copy. `bytes` is not
// empty.
Task<Result<void>> write_with_descriptor(Stream& stream, std::string_view bytes, int fd,
                                         TimePoint deadline = TimePoint::never());

}  // namespace nereid::io
