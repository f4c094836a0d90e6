#include "io/real_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/socket.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

constexpr int kBacklog = 4096;               // the kernel cuts it to net.core.somaxconn
constexpr Duration kAcceptPause = 100ms;     // without descriptors or memory
constexpr Duration kUnixConnectPause = 5ms;  // a full backlog cannot be waited for

struct Address {
    sockaddr_storage storage{};
    socklen_t size = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    int family() const { return storage.ss_family; }
};

Result<Address> unix_address(const std::string& path) {
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    if (path.size() >= sizeof un.sun_path) {
        return Error{
            Code::kInvalidArgument,
            fmt::format(
                "the socket path {} is {} bytes long, the system allows {}: choose a shorter one",
                path, path.size(), sizeof un.sun_path - 1)};
    }
    std::memcpy(un.sun_path, path.data(), path.size());
    Address a;
    std::memcpy(&a.storage, &un, sizeof un);
    a.size = sizeof un;
    return a;
}

std::optional<Address> numeric_address(const std::string& host, std::uint16_t port) {
    Address a;
    sockaddr_in v4{};
    if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        std::memcpy(&a.storage, &v4, sizeof v4);
        a.size = sizeof v4;
        return a;
    }
    sockaddr_in6 v6{};
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        std::memcpy(&a.storage, &v6, sizeof v6);
        a.size = sizeof v6;
        return a;
    }
    return std::nullopt;
}

// Blocking.
Result<std::vector<Address>> look_up(const std::string& host, std::uint16_t port, bool passive) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : AI_ADDRCONFIG);
    addrinfo* list = nullptr;
    const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (rc != 0) {
        return Error{Code::kUnavailable,
                     fmt::format("the name {} has no address: {}", host, gai_strerror(rc))};
    }
    std::vector<Address> out;
    for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
        Address a;
        std::memcpy(&a.storage, i->ai_addr, i->ai_addrlen);
        a.size = i->ai_addrlen;
        out.push_back(a);
    }
    freeaddrinfo(list);
    return out;
}

Endpoint endpoint_of(const sockaddr_storage& storage) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (storage.ss_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, &storage, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
        return {.host = text.data(), .port = ntohs(v4.sin_port), .unix_path = {}};
    }
    sockaddr_in6 v6{};
    std::memcpy(&v6, &storage, sizeof v6);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return {.host = text.data(), .port = ntohs(v6.sin6_port), .unix_path = {}};
}

// A look-up in a thread of its own. getaddrinfo cannot be interrupted, so the thread is not joined:
// it holds this state, and `loop` is taken from it when nobody waits any more.
struct LookUp {
    explicit LookUp(RealLoop& l) : waiter(l), loop(&l) {}
    Waiter waiter;
    Result<std::vector<Address>> result = err(Code::kInternal, "look-up not done");
    std::mutex mutex;
    RealLoop* loop;  // guarded by mutex
};

void start_look_up(std::shared_ptr<LookUp> state, std::string host, std::uint16_t port) {
    std::thread([state = std::move(state), host = std::move(host), port]() mutable {
        auto found = look_up(host, port, false);
        const std::lock_guard lock(state->mutex);
        if (state->loop == nullptr) return;
        state->loop->post([state, found = std::move(found)]() mutable {
            state->result = std::move(found);
            state->waiter.wake(Wake::kEvent);
        });
    }).detach();
}

Task<Result<std::vector<Address>>> resolve(RealLoop& loop, std::string host, std::uint16_t port,
                                           TimePoint deadline) {
    if (const auto numeric = numeric_address(host, port)) co_return std::vector{*numeric};
    struct Guard {
        std::shared_ptr<LookUp> state;
        ~Guard() {
            const std::lock_guard lock(state->mutex);
            state->loop = nullptr;
        }
    };
    const Guard guard{std::make_shared<LookUp>(loop)};
    start_look_up(guard.state, host, port);
    if (co_await guard.state->waiter.wait(deadline) != Wake::kEvent) {
        co_return Error{Code::kDeadlineExceeded,
                        fmt::format("the name {} was not resolved in time", host)};
    }
    co_return std::move(guard.state->result);
}

void set_no_delay(int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

Task<Result<std::unique_ptr<Stream>>> connect_one(RealLoop& loop, Address to, std::string name,
                                                  TimePoint deadline) {
    for (;;) {
        const int fd = socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) co_return Error{Code::kIo, "socket: " + errno_text(errno)};
        if (to.family() != AF_UNIX) set_no_delay(fd);
        auto s = std::make_shared<Socket>(loop, fd, name);
        int error = ::connect(fd, to.get(), to.size) == 0 ? 0 : errno;
        if (error == EAGAIN) {  // a Unix listener's backlog is full
            if (loop.now() + kUnixConnectPause > deadline)
                error = ETIMEDOUT;
            else {
                co_await loop.sleep_for(kUnixConnectPause);
                continue;
            }
        } else {
            s->watch();
            if (error == EINPROGRESS || error == EINTR)
                error = co_await Socket::finish_connect(s, deadline);
        }
        if (error == ETIMEDOUT) {
            co_return Error{Code::kDeadlineExceeded,
                            fmt::format("no connection to {} in time", name)};
        }
        if (error != 0) {
            co_return Error{Code::kUnavailable,
                            fmt::format("cannot connect to {}: {}", name, errno_text(error))};
        }
        co_return make_socket_stream(std::move(s));
    }
}

// Shared by the RealListener and a coroutine that is inside accept().
struct Acceptor {
    Acceptor(RealLoop& l, int f, Endpoint at, std::shared_ptr<NetworkCounters> c)
        : loop(l), fd(f), local(std::move(at)), counters(std::move(c)), waiter(l) {}
    ~Acceptor() {
        watch.reset();
        if (fd >= 0) ::close(fd);
    }
    Acceptor(const Acceptor&) = delete;
    Acceptor& operator=(const Acceptor&) = delete;

    RealLoop& loop;
    int fd;
    Endpoint local;
    std::shared_ptr<NetworkCounters> counters;
    Waiter waiter;
    std::optional<FdWatch> watch;
};

std::unique_ptr<Stream> accepted_stream(const Acceptor& a, int fd, const sockaddr_storage& from) {
    ++a.counters->accepted;
    auto s = std::make_shared<Socket>(
        a.loop, fd,
        a.local.unix_path.empty() ? endpoint_of(from).to_string() : a.local.to_string());
    s->watch();
    return make_socket_stream(std::move(s));
}

Task<Result<std::unique_ptr<Stream>>> accept_one(std::shared_ptr<Acceptor> a) {
    for (;;) {
        if (a->fd < 0) break;
        sockaddr_storage from{};
        socklen_t size = sizeof from;
        const int fd =
            accept4(a->fd, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            auto stream = accepted_stream(*a, fd, from);
            if (!a->loop.take_budget()) co_await a->loop.yield();
            co_return stream;
        }
        TimePoint until = TimePoint::never();
        switch (errno) {
            case EAGAIN:
                break;
            case EMFILE:
            case ENFILE:
            case ENOBUFS:
            case ENOMEM:
                ++a->counters->accept_pauses;
                until = a->loop.now() + kAcceptPause;
                break;
            default:
                continue;  // that one connection failed already (accept(2), "Error handling")
        }
        if (co_await a->waiter.wait(until) == Wake::kCancelled) break;
    }
    co_return Error{Code::kCancelled, "the listener was closed"};
}

class RealListener final : public Listener {
  public:
    explicit RealListener(std::shared_ptr<Acceptor> a) : a_(std::move(a)) {
        if (!a_->local.unix_path.empty()) stat(a_->local.unix_path.c_str(), &file_);
    }
    ~RealListener() override { shut(); }
    Task<Result<std::unique_ptr<Stream>>> accept() override { return accept_one(a_); }
    Endpoint local() const override { return a_->local; }
    void close() override { shut(); }

  private:
    void shut() {
        if (a_->fd < 0) return;
        a_->watch.reset();
        ::close(std::exchange(a_->fd, -1));
        if (const auto& path = a_->local.unix_path; !path.empty()) {
            // Only our own file: a successor may listen there already.
            struct stat now{};
            if (stat(path.c_str(), &now) == 0 && now.st_ino == file_.st_ino &&
                now.st_dev == file_.st_dev) {
                unlink(path.c_str());
            }
        }
        a_->waiter.wake_later(Wake::kCancelled, a_);
    }
    std::shared_ptr<Acceptor> a_;
    struct stat file_{};
};

// A socket file that nobody listens on any more is removed; true when bind may be tried again.
bool remove_stale(const std::string& path, const Address& address) {
    struct stat st{};
    if (lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool dead = ::connect(fd, address.get(), address.size) != 0 && errno == ECONNREFUSED;
    ::close(fd);
    return dead && unlink(path.c_str()) == 0;
}

Error bind_error(const Endpoint& at, int number) {
    const std::string where = at.to_string();
    switch (number) {
        case EADDRINUSE:
            if (!at.unix_path.empty()) {
                return {Code::kConflict,
                        fmt::format("{} is in use: another process listens there, or it is no "
                                    "socket; choose another path",
                                    where)};
            }
            return {Code::kConflict,
                    fmt::format("port {} is in use ({}): stop the process that has it, or choose "
                                "--port 0 (any free one) or another port",
                                at.port, where)};
        case EADDRNOTAVAIL:
            return {Code::kInvalidArgument, fmt::format("{} is no address of this machine", where)};
        case EACCES:
        case EPERM:
            return {Code::kPermissionDenied,
                    fmt::format("not allowed to listen on {}: {}", where, errno_text(number))};
        default:
            return {Code::kIo, fmt::format("cannot listen on {}: {}", where, errno_text(number))};
    }
}

Result<Address> listen_address(const Endpoint& at) {
    if (!at.unix_path.empty()) return unix_address(at.unix_path);
    if (at.host.empty())
        return Error{Code::kInvalidArgument, "listen: neither a host nor a socket path"};
    if (const auto numeric = numeric_address(at.host, at.port)) return *numeric;
    TRY(const auto found, look_up(at.host, at.port, true));
    return found.front();
}

}  // namespace

RealNetwork::RealNetwork(RealLoop& loop)
    : loop_(loop), counters_(std::make_shared<NetworkCounters>()) {}
RealNetwork::~RealNetwork() = default;

Task<Result<std::unique_ptr<Stream>>> RealNetwork::connect(const Endpoint& to, TimePoint deadline) {
    const auto counters = counters_;
    RealLoop& loop = loop_;
    const Endpoint target = to;
    std::vector<Address> addresses;
    if (!target.unix_path.empty()) {
        CO_TRY(auto one, unix_address(target.unix_path));
        addresses.push_back(one);
    } else if (target.host.empty()) {
        co_return Error{Code::kInvalidArgument, "connect: neither a host nor a socket path"};
    } else {
        CO_TRY(addresses, co_await resolve(loop, target.host, target.port, deadline));
    }
    Result<std::unique_ptr<Stream>> last =
        err(Code::kUnavailable, "no address for " + target.to_string());
    for (const Address& address : addresses) {
        last = co_await connect_one(loop, address, target.to_string(), deadline);
        if (last.ok()) ++counters->connected;
        if (last.ok() || last.code() == Code::kDeadlineExceeded) break;
    }
    co_return last;
}

Result<std::unique_ptr<Listener>> RealNetwork::listen(const Endpoint& at, bool reuse_port) {
    TRY(const Address address, listen_address(at));
    const int fd = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return Error{Code::kIo, "socket: " + errno_text(errno)};
    auto acceptor = std::make_shared<Acceptor>(loop_, fd, at, counters_);  // owns fd now
    if (address.family() != AF_UNIX) {
        const int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (reuse_port) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        set_no_delay(fd);  // accepted sockets inherit it
    }
    if (bind(fd, address.get(), address.size) != 0) {
        const int number = errno;
        const bool again =
            number == EADDRINUSE && !at.unix_path.empty() && remove_stale(at.unix_path, address);
        if (!again) return bind_error(at, number);
        if (bind(fd, address.get(), address.size) != 0) return bind_error(at, errno);
    }
    if (::listen(fd, kBacklog) != 0) return bind_error(at, errno);
    if (at.unix_path.empty()) {
        sockaddr_storage bound{};
        socklen_t size = sizeof bound;
        getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
        acceptor->local.port = endpoint_of(bound).port;
    }
    auto* raw = acceptor.get();
    acceptor->watch.emplace(loop_, fd, EPOLLIN,
                            [raw](std::uint32_t) { raw->waiter.wake(Wake::kEvent); });
    return std::make_unique<RealListener>(std::move(acceptor));
}

Result<std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>> make_socket_pair(
    RealLoop& loop) {
    std::array<int, 2> fds{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) != 0) {
        return Error{Code::kIo, "socketpair: " + errno_text(errno)};
    }
    return std::pair{adopt_socket(loop, fds[0], "unix:pair"),
                     adopt_socket(loop, fds[1], "unix:pair")};
}

std::unique_ptr<Stream> adopt_socket(RealLoop& loop, int fd, std::string peer) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    auto s = std::make_shared<Socket>(loop, fd, std::move(peer));
    s->watch();
    return make_socket_stream(std::move(s));
}

}  // namespace nereid::io
