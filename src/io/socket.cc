#include "io/socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nereid::io {

namespace {

constexpr std::size_t kMaxPieces =
    64;  // per system call; IOV_MAX is 1024, and 1 KiB of stack is enough

Error cancelled() { return {Code::kCancelled, "the stream was closed on our side"}; }
Error io_error(std::string_view what, int number) {
    return {Code::kIo, std::string(what) + ": " + errno_text(number)};
}

// What is left to send of a list of pieces.
class Remaining {
  public:
    explicit Remaining(std::span<const std::string_view> pieces) : pieces_(pieces) { skip_empty(); }
    bool done() const { return pieces_.empty(); }
    std::size_t fill(std::span<iovec> out) const {
        std::size_t n = 0;
        for (; n < out.size() && n < pieces_.size(); ++n) {
            const auto piece = n == 0 ? pieces_[0].substr(offset_) : pieces_[n];
            out[n] = {const_cast<char*>(piece.data()), piece.size()};
        }
        return n;
    }
    void sent(std::size_t bytes) {
        while (bytes > 0) {
            const std::size_t here = std::min(bytes, pieces_[0].size() - offset_);
            offset_ += here;
            bytes -= here;
            if (offset_ == pieces_[0].size()) {
                pieces_ = pieces_.subspan(1);
                offset_ = 0;
            }
        }
        skip_empty();
    }

  private:
    // An empty piece is never the first one.
    void skip_empty() {
        while (!pieces_.empty() && pieces_[0].empty()) pieces_ = pieces_.subspan(1);
    }
    std::span<const std::string_view> pieces_;
    std::size_t offset_ = 0;  // within pieces_[0]
};

class SocketStream final : public Stream {
  public:
    explicit SocketStream(std::shared_ptr<Socket> s) : s_(std::move(s)) {}
    ~SocketStream() override { Socket::close(s_); }
    Task<Result<std::size_t>> read(std::span<char> into, TimePoint deadline) override {
        return Socket::read(s_, into, deadline);
    }
    Task<Result<void>> write(std::span<const std::string_view> pieces,
                             TimePoint deadline) override {
        return Socket::write(s_, pieces, deadline);
    }
    Task<Result<void>> wait_hangup() override { return Socket::wait_hangup(s_); }
    void shutdown_write() override { s_->shutdown_write(); }
    void close() override { Socket::close(s_); }
    std::string peer() const override { return s_->peer(); }
    const std::shared_ptr<Socket>& socket() const { return s_; }

  private:
    std::shared_ptr<Socket> s_;
};

}  // namespace

std::string errno_text(int number) {
    std::array<char, 128> buffer{};
    return strerror_r(number, buffer.data(), buffer.size());
}

Socket::Socket(RealLoop& loop, int fd, std::string peer)
    : loop_(loop), fd_(fd), peer_(std::move(peer)), reader_(loop), writer_(loop), hangup_(loop) {}

Socket::~Socket() {
    watch_.reset();
    if (fd_ >= 0) ::close(fd_);
}

void Socket::watch() {
    watch_.emplace(loop_, fd_, EPOLLIN | EPOLLOUT | EPOLLRDHUP,
                   [this](std::uint32_t events) { on_events(events); });
}

void Socket::on_events(std::uint32_t events) {
    const auto self = shared_from_this();  // a wake may end in the destruction of the stream
    const bool gone = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (gone) peer_gone_ = true;
    if (gone || (events & EPOLLIN) != 0) {
        readable_ = true;
        reader_.wake(Wake::kEvent);
    }
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) writer_.wake(Wake::kEvent);
    if (peer_gone_) hangup_.wake(Wake::kEvent);
}

std::ptrdiff_t Socket::try_read(std::span<char> into) {
    for (;;) {
        const auto n = descriptors_ ? receive(into) : recv(fd_, into.data(), into.size(), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) peer_gone_ = true;
        // A short read drained the socket. Not so when the peer has gone: its end was reported with
        // the data. Nor where a descriptor may have cut the read.
        if (n < 0 || (n < static_cast<std::ptrdiff_t>(into.size()) && !peer_gone_ && !descriptors_))
            readable_ = false;
        return n;
    }
}

std::ptrdiff_t Socket::receive(std::span<char> into) {
    constexpr std::size_t kMostDescriptors = 8;
    iovec iov{into.data(), into.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto n = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (n < 0) return n;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            Descriptor owned(fd);
            if (received_.size() < kMostDescriptors) received_.push_back(std::move(owned));
        }
    }
    return n;
}

Result<PeerCredentials> Socket::credentials() const {
    ucred who{};
    socklen_t size = sizeof who;
    if (fd_ < 0) return cancelled();
    if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
        return io_error("peer credentials", errno);
    return PeerCredentials{who.pid, who.uid, who.gid};
}

Task<Result<void>> Socket::write_with_descriptor(std::shared_ptr<Socket> s, std::string_view bytes,
                                                 int fd, TimePoint deadline) {
    CHECK(!bytes.empty());
    CHECK_MSG(!s->writer_.waiting(), "two writes on one stream");
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
    for (;;) {
        if (s->fd_ < 0) co_return cancelled();
        const auto n = sendmsg(s->fd_, &message, MSG_NOSIGNAL);
        if (n >= 0) {
            const std::array rest{bytes.substr(static_cast<std::size_t>(n))};
            co_return co_await write(s, rest, deadline);
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) co_return io_error("write", errno);
        const Wake why = co_await s->writer_.wait(deadline);
        if (why == Wake::kCancelled) co_return cancelled();
        if (why == Wake::kDeadline) {
            co_return Error{Code::kDeadlineExceeded,
                            "the peer did not take the data before the deadline"};
        }
    }
}

Task<Result<std::size_t>> Socket::read(std::shared_ptr<Socket> s, std::span<char> into,
                                       TimePoint deadline) {
    CHECK(!into.empty());
    CHECK_MSG(!s->reader_.waiting(), "two reads on one stream");
    for (;;) {
        if (s->fd_ < 0) co_return cancelled();
        if (s->readable_) {
            const auto n = s->try_read(into);
            if (n >= 0) {
                if (!s->loop_.take_budget()) co_await s->loop_.yield();
                co_return static_cast<std::size_t>(n);
            }
            if (errno != EAGAIN) {
                s->peer_gone_ = s->readable_ = true;  // later reads fail at once as well
                co_return io_error("read", errno);
            }
        }
        switch (co_await s->reader_.wait(deadline)) {
            case Wake::kEvent:
                break;
            case Wake::kCancelled:
                co_return cancelled();
            case Wake::kDeadline:
                co_return Error{Code::kDeadlineExceeded,
                                "the peer sent nothing before the deadline"};
        }
    }
}

Task<Result<void>> Socket::write(std::shared_ptr<Socket> s,
                                 std::span<const std::string_view> pieces, TimePoint deadline) {
    CHECK_MSG(!s->writer_.waiting(), "two writes on one stream");
    Remaining left(pieces);
    while (!left.done()) {
        if (s->fd_ < 0) co_return cancelled();
        std::array<iovec, kMaxPieces> iov;
        msghdr message{};
        message.msg_iov = iov.data();
        message.msg_iovlen = left.fill(iov);
        const auto n = sendmsg(s->fd_, &message, MSG_NOSIGNAL);
        if (n >= 0) {
            left.sent(static_cast<std::size_t>(n));
            if (!s->loop_.take_budget()) co_await s->loop_.yield();
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) co_return io_error("write", errno);
        switch (co_await s->writer_.wait(deadline)) {
            case Wake::kEvent:
                break;
            case Wake::kCancelled:
                co_return cancelled();
            case Wake::kDeadline:
                co_return Error{Code::kDeadlineExceeded,
                                "the peer did not take the data before the deadline"};
        }
    }
    if (s->fd_ < 0) co_return cancelled();
    co_return Result<void>{};
}

Task<Result<void>> Socket::wait_hangup(std::shared_ptr<Socket> s) {
    while (!s->peer_gone_) {
        if (s->fd_ < 0) co_return cancelled();
        if (co_await s->hangup_.wait() == Wake::kCancelled) co_return cancelled();
    }
    co_return Result<void>{};
}

Task<int> Socket::finish_connect(std::shared_ptr<Socket> s, TimePoint deadline) {
    // The first EPOLLOUT edge, or EPOLLERR, is the answer.
    if (co_await s->writer_.wait(deadline) == Wake::kDeadline) co_return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(s->fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    s->peer_gone_ = false;  // an EPOLLHUP of the unconnected socket means nothing
    co_return error;
}

void Socket::shutdown_write() {
    if (fd_ >= 0) shutdown(fd_, SHUT_WR);
}

void Socket::close(const std::shared_ptr<Socket>& s) {
    if (s->fd_ < 0) return;
    s->watch_.reset();
    ::close(std::exchange(s->fd_, -1));
    s->reader_.wake_later(Wake::kCancelled, s);
    s->writer_.wake_later(Wake::kCancelled, s);
    s->hangup_.wake_later(Wake::kCancelled, s);
}

namespace {

Result<std::shared_ptr<Socket>> socket_of(const Stream& stream) {
    const auto* s = dynamic_cast<const SocketStream*>(&stream);
    if (s == nullptr) return Error{Code::kUnsupported, "not a socket of this machine"};
    return s->socket();
}

}  // namespace

Descriptor::~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

Result<PeerCredentials> peer_credentials(const Stream& stream) {
    TRY(const auto s, socket_of(stream));
    return s->credentials();
}

Result<void> accept_descriptors(Stream& stream) {
    TRY(const auto s, socket_of(stream));
    s->accept_descriptors();
    return {};
}

std::vector<Descriptor> take_descriptors(Stream& stream) {
    const auto s = socket_of(stream);
    return s.ok() ? (*s)->take_descriptors() : std::vector<Descriptor>();
}

Task<Result<void>> write_with_descriptor(Stream& stream, std::string_view bytes, int fd,
                                         TimePoint deadline) {
    CO_TRY(const auto s, socket_of(stream));
    co_return co_await Socket::write_with_descriptor(s, bytes, fd, deadline);
}

std::unique_ptr<Stream> make_socket_stream(std::shared_ptr<Socket> socket) {
    return std::make_unique<SocketStream>(std::move(socket));
}

}  // namespace nereid::io
