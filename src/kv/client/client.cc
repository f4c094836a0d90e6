// libnereid_kv: the C ABI of include/nereid_kv.h over kv-wire and the arena. Plain system calls, no
// event loop, no threads: it lives inside other people's processes.
#include <fcntl.h>
#include <nereid_kv.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kv/client/staging.h"
#include "kv/tier/arena.h"
#include "kv/tier/copy_crc.h"
#include "kv/wire/wire.h"

namespace {

using namespace nereid;      // NOLINT(google-build-using-namespace)
using namespace nereid::kv;  // NOLINT(google-build-using-namespace)

std::string& connect_error() {
    thread_local std::string text;
    return text;
}

// CLOCK_MONOTONIC in ms, for deadlines that the caller sets.
std::int64_t now_ms() {
    // tidy: allow clock because a library without a loop has no other way to keep a deadline
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    ~Fd() { reset(-1); }
    void reset(int fd) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
    }
    int get() const { return fd_; }

  private:
    int fd_ = -1;
};

class Mapping {
  public:
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
        if (at_ != nullptr) munmap(at_, size_);
    }
    bool map(int fd, std::size_t bytes, bool writable) {
        void* at = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return false;
        at_ = static_cast<std::uint8_t*>(at);
        size_ = bytes;
        return true;
    }
    std::span<std::uint8_t> bytes() const { return {at_, size_}; }

  private:
    std::uint8_t* at_ = nullptr;
    std::size_t size_ = 0;
};

// A completion with what its pointers point to.
struct Owned {
    nereid_kv_completion c{};
    std::vector<std::uint8_t> status;
    std::vector<nereid_kv_place> places;
    std::vector<std::uint64_t> ids;
    std::vector<nereid_kv_event> events;
    std::string text;
    std::string error;
    void link() {
        c.count = static_cast<std::uint32_t>(status.size());
        c.object_status = status.data();
        c.places = places.data();
        c.place_count = static_cast<std::uint32_t>(places.size());
        c.reservations = ids.data();
        c.events = events.data();
        c.event_count = static_cast<std::uint32_t>(events.size());
        c.text = text.c_str();
    }
};

SlotRef ref_of(const nereid_kv_place& p) {
    return {.offset = p.offset,
            .length = p.length,
            .crc = p.crc,
            .stamp = p.stamp,
            .key = {p.key_hi, p.key_lo}};
}

int status_of(Code code) {
    switch (code) {
        case Code::kPermissionDenied:
        case Code::kUnauthenticated:
            return NEREID_KV_DENIED;
        case Code::kNotFound:
            return NEREID_KV_GONE;
        case Code::kCorrupt:
            return NEREID_KV_CORRUPT;
        case Code::kNoSpace:
            return NEREID_KV_NO_SPACE;
        case Code::kInvalidArgument:
        case Code::kTooLarge:
            return NEREID_KV_INVALID;
        case Code::kUnavailable:
            return NEREID_KV_UNAVAILABLE;
        default:
            return NEREID_KV_REFUSED;
    }
}

std::vector<std::uint8_t> bytes_of(const std::vector<ObjectStatus>& status) {
    std::vector<std::uint8_t> out;
    out.reserve(status.size());
    for (const ObjectStatus s : status) out.push_back(static_cast<std::uint8_t>(s));
    return out;
}

// Puts an answer into the shape of the C structs.
struct Fill {
    Owned& o;
    void operator()(const NamespaceOpened& a) const {
        o.c.ns = a.ns;
        o.c.epoch = a.epoch;
    }
    void operator()(const Found& a) const {
        o.c.blocks = a.blocks;
        o.c.usable_blocks = a.hit.blocks;
        o.c.compute_from = a.hit.compute_from;
        o.c.dram_blocks = a.dram_blocks;
        o.c.state = a.hit.state ? 1 : 0;
        o.c.epoch = a.epoch;
    }
    void operator()(const Got& a) const {
        o.c.lease = a.lease.value;
        o.c.contiguous = a.contiguous;
        o.status = bytes_of(a.status);
        for (const SlotRef& p : a.places)
            o.places.push_back({p.offset, p.length, p.crc, p.stamp, p.key.hi, p.key.lo});
    }
    void operator()(const Reserved& a) const {
        o.status = bytes_of(a.status);
        for (const auto& id : a.ids) o.ids.push_back(id.value);
    }
    void operator()(const Committed& a) const { o.status = bytes_of(a.status); }
    void operator()(const Done&) const {}
    void operator()(const Flight& a) const {
        o.c.op = NEREID_KV_OP_FLIGHT;
        o.c.object = a.object;
        o.c.reservation = a.reservation.value;
        o.status = {static_cast<std::uint8_t>(a.status)};
    }
    void operator()(const Events& a) const {
        o.c.first = a.first;
        o.c.next = a.next;
        o.c.gap = a.gap ? 1 : 0;
        o.c.epoch = a.epoch;
        for (const KvEvent& e : a.events) {
            nereid_kv_event out{};
            out.type = static_cast<std::uint8_t>(e.type);
            out.tier = static_cast<std::uint8_t>(e.tier);
            out.ns = e.ns;
            out.block = e.block;
            out.key_hi = e.key.hi;
            out.key_lo = e.key.lo;
            o.events.push_back(out);
        }
    }
    void operator()(const Error& a) const {
        o.c.status = status_of(a.code);
        o.error = a.message;
    }
};

}  // namespace

struct nereid_kv {
    pid_t pid = getpid();
    Fd socket;
    Fd epoll;  // of the socket and of `ready_signal`: what nereid_kv_fd gives out
    Fd ready_signal;
    Mapping arena;
    Mapping staging;
    std::optional<ArenaReader> reader;
    client::Staging staged{0};
    wire::Decoder decoder;
    std::vector<int> received;
    std::uint64_t next_tag = 1;
    struct Asked {
        int op = 0;
        bool attach = false;     // a reserve that follows others' flights
        std::uint32_t more = 0;  // flights that are still to be reported
    };
    std::map<std::uint64_t, Asked> asked;  // by tag
    std::deque<Owned> ready;
    std::vector<Owned> given;  // what the caller's pointers point into
    std::string error;
    bool broken = false;

    ~nereid_kv() {
        for (const int fd : received) ::close(fd);
    }

    int fail(int status, std::string text) {
        error = std::move(text);
        return status;
    }
    int lost(std::string text) {
        broken = true;
        return fail(NEREID_KV_UNAVAILABLE, std::move(text));
    }
    bool forked() const { return getpid() != pid; }
    int usable() {
        if (forked()) return NEREID_KV_FORKED;
        if (broken)
            return fail(NEREID_KV_UNAVAILABLE, "the connection to the cache node is closed");
        return NEREID_KV_OK;
    }

    // Waits for `events` on the socket. 1, 0 at the deadline, or a status.
    int wait_socket(short events, std::int64_t deadline) {
        for (;;) {
            const std::int64_t left =
                deadline < 0 ? -1 : std::max<std::int64_t>(0, deadline - now_ms());
            pollfd p{.fd = socket.get(), .events = events, .revents = 0};
            const int n = ::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
            if (n > 0) return 1;
            if (n == 0) return 0;
            if (errno != EINTR) return lost("poll failed");
        }
    }

    // A refusal may lie there from before it closed, and says why.
    int closed_on_us() {
        while (receive() == 1) {
            if (const int r = digest(); r != NEREID_KV_OK) return r;
        }
        return lost("the cache node closed the connection");
    }

    int send(const wire::Message& message, int fd, std::int64_t deadline) {
        std::string bytes;
        if (!wire::encode(message, bytes))
            return fail(NEREID_KV_INVALID, "the command is too large");
        std::string_view left = bytes;
        while (!left.empty()) {
            iovec iov{const_cast<char*>(left.data()), left.size()};
            msghdr m{};
            m.msg_iov = &iov;
            m.msg_iovlen = 1;
            alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
            if (fd >= 0) {
                m.msg_control = control.data();
                m.msg_controllen = control.size();
                cmsghdr* c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
            }
            const auto n = sendmsg(socket.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n >= 0) {
                left.remove_prefix(static_cast<std::size_t>(n));
                fd = -1;
                continue;
            }
            if (errno == EINTR) continue;
            if (errno != EAGAIN) return closed_on_us();
            // Half a message cannot be taken back: a node that does not read is lost.
            const int r = wait_socket(POLLOUT, deadline);
            if (r < 0) return r;
            if (r == 0) return lost("the cache node does not read");
        }
        return NEREID_KV_OK;
    }

    // Reads what is there (at most once). 1 something came, 0 nothing is there, or a status.
    int receive() {
        std::array<char, 65536> into;
        iovec iov{into.data(), into.size()};
        alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control;
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control.data();
        m.msg_controllen = control.size();
        const auto n = recvmsg(socket.get(), &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : lost("the connection broke");
        for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
            for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
                int fd;
                std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                received.push_back(fd);
            }
        }
        if (n == 0) return lost("the cache node closed the connection");
        decoder.feed({into.data(), static_cast<std::size_t>(n)});
        return 1;
    }

    void push(Owned o) {
        ready.push_back(std::move(o));
        const std::uint64_t one = 1;
        static_cast<void>(!write(ready_signal.get(), &one, sizeof one));
    }

    // Turns whole messages into completions.
    int digest() {
        for (;;) {
            auto next = decoder.next();
            if (!next.ok()) return lost(next.error().message);
            if (!*next) return NEREID_KV_OK;
            if (auto* a = std::get_if<wire::Answered>(&**next)) {
                const auto it = asked.find(a->tag);
                if (it == asked.end()) continue;  // of a command that nobody waits for any more
                Owned o;
                o.c.tag = a->tag;
                o.c.op = it->second.op;
                std::visit(Fill{o}, a->answer);
                Asked& open = it->second;
                if (std::holds_alternative<Flight>(a->answer)) {
                    if (open.more > 0) --open.more;
                } else if (open.attach && o.c.status == NEREID_KV_OK) {
                    open.more = static_cast<std::uint32_t>(
                        std::ranges::count(o.status, NEREID_KV_OBJECT_IN_FLIGHT));
                }
                if (open.more == 0) asked.erase(it);
                push(std::move(o));
            } else if (auto* s = std::get_if<wire::Stats>(&**next)) {
                Owned o;
                o.c.tag = s->tag;
                o.c.op = NEREID_KV_OP_STATS;
                o.text = std::move(s->json);
                asked.erase(s->tag);
                push(std::move(o));
            } else if (const auto* r = std::get_if<wire::Refuse>(&**next)) {
                broken = true;
                return fail(status_of(code_from_name(r->code)), r->message);
            } else {
                return lost("the cache node says what no cache node says");
            }
        }
    }

    int pump(std::int64_t deadline) {
        const int r = receive();
        if (r < 0) return r;
        if (r == 0) {
            const int w = wait_socket(POLLIN, deadline);
            if (w <= 0) return w == 0 ? NEREID_KV_TIMEOUT : w;
            return NEREID_KV_OK;
        }
        return digest();
    }

    // Hands `o` to the caller.
    nereid_kv_completion give(Owned o) {
        if (!o.error.empty()) error = o.error;
        given.push_back(std::move(o));
        return {};
    }

    int submit(int op, Command command, const wire::Capability& capability, std::uint64_t* tag) {
        const auto* reserve = std::get_if<Reserve>(&command);
        const bool attach = reserve != nullptr && reserve->attach;
        if (const int r = usable(); r != NEREID_KV_OK) return r;
        const std::uint64_t mine = next_tag++;
        constexpr std::int64_t kSendMs = 10'000;
        const int r =
            send(wire::Call{mine, capability, std::move(command)}, -1, now_ms() + kSendMs);
        if (r != NEREID_KV_OK) return r;
        if (tag == nullptr) return NEREID_KV_OK;  // its answer is dropped when it comes
        asked.emplace(mine, Asked{.op = op, .attach = attach});
        *tag = mine;
        return NEREID_KV_OK;
    }

    int hello(const std::string& name, std::uint64_t staging_bytes, std::int64_t deadline);
    int take_arena(const wire::Welcome& welcome);
    int make_staging(std::uint64_t bytes, std::int64_t deadline);
};

int nereid_kv::take_arena(const wire::Welcome& welcome) {
    if (welcome.version != wire::kVersion || received.size() != 1)
        return fail(NEREID_KV_REFUSED, "the cache node speaks another version");
    const int fd = received[0];
    const int seals = fcntl(fd, F_GET_SEALS);
    const off_t size = lseek(fd, 0, SEEK_END);
    // Not sealed against shrinking, its owner could make our reads fault.
    const bool sound = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && size > 0 &&
                       static_cast<std::uint64_t>(size) >= welcome.arena_bytes;
    if (!sound || !arena.map(fd, welcome.arena_bytes, false))
        return fail(NEREID_KV_REFUSED, "the cache node's arena cannot be mapped");
    auto r = ArenaReader::open(arena.bytes());
    if (!r.ok()) return fail(NEREID_KV_REFUSED, r.error().message);
    reader = *r;
    return NEREID_KV_OK;
}

int nereid_kv::make_staging(std::uint64_t bytes, std::int64_t deadline) {
    if (bytes == 0) return NEREID_KV_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    const Fd fd(memfd_create("nereid-kv-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
        !staging.map(fd.get(), bytes, true))
        return fail(NEREID_KV_NO_SPACE, "no memory for the staging region");
    staged = client::Staging(bytes);
    return send(wire::Region{.region = 0, .bytes = bytes}, fd.get(), deadline);
}

int nereid_kv::hello(const std::string& name, std::uint64_t staging_bytes, std::int64_t deadline) {
    if (const int r = send(wire::Hello{.version = wire::kVersion, .client = name}, -1, deadline);
        r != NEREID_KV_OK)
        return r;
    for (;;) {
        auto next = decoder.next();
        if (!next.ok()) return lost(next.error().message);
        if (*next) {
            if (const auto* refuse = std::get_if<wire::Refuse>(&**next))
                return fail(status_of(code_from_name(refuse->code)), refuse->message);
            const auto* welcome = std::get_if<wire::Welcome>(&**next);
            if (welcome == nullptr) return lost("the cache node did not greet");
            if (const int r = take_arena(*welcome); r != NEREID_KV_OK) return r;
            return make_staging(staging_bytes, deadline);
        }
        const int r = receive();
        if (r < 0) return r;
        if (r > 0) continue;
        const int w = wait_socket(POLLIN, deadline);
        if (w < 0) return w;
        if (w == 0) return fail(NEREID_KV_TIMEOUT, "the cache node does not answer");
    }
}

namespace {
constexpr wire::Capability kNoCapability{};
Duration ms(std::uint64_t n) { return std::chrono::milliseconds(n); }
// Longer lives than a century mean for ever, and must not overflow.
Duration seconds(std::uint64_t n) {
    return std::chrono::seconds(std::min<std::uint64_t>(n, std::uint64_t{100} * 366 * 86400));
}
std::vector<ObjectName> names_of(const nereid_kv_object* objects, std::size_t count) {
    std::vector<ObjectName> out(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(out[i].key.bytes.data(), objects[i].key.bytes, 16);
        out[i].kind = objects[i].kind == 0 ? ObjectKind::kHistory : ObjectKind::kState;
        out[i].block = objects[i].block;
    }
    return out;
}
}  // namespace

extern "C" {

int nereid_kv_abi(void) { return NEREID_KV_ABI; }

int nereid_kv_connect(const char* socket_path, const char* name, uint64_t staging_bytes,
                      uint32_t timeout_ms, nereid_kv** out) {
    const auto failed = [](int status, std::string text) {
        connect_error() = std::move(text);
        return status;
    };
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path == nullptr || out == nullptr ||
        std::strlen(socket_path) >= sizeof address.sun_path)
        return failed(NEREID_KV_INVALID, "a socket path of fewer than 108 bytes is needed");
    std::memcpy(address.sun_path, socket_path, std::strlen(socket_path));
    auto kv = std::make_unique<nereid_kv>();
    kv->socket.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    kv->epoll.reset(epoll_create1(EPOLL_CLOEXEC));
    kv->ready_signal.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (kv->socket.get() < 0 || kv->epoll.get() < 0 || kv->ready_signal.get() < 0)
        return failed(NEREID_KV_NO_SPACE, "no descriptors left");
    // To a Unix socket it succeeds or fails at once, unless the backlog is full.
    if (::connect(kv->socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
        0)
        return failed(NEREID_KV_UNAVAILABLE, std::string("no cache node at ") + socket_path);
    for (const int fd : {kv->socket.get(), kv->ready_signal.get()}) {
        epoll_event e{.events = EPOLLIN, .data = {.fd = fd}};
        if (epoll_ctl(kv->epoll.get(), EPOLL_CTL_ADD, fd, &e) != 0)
            return failed(NEREID_KV_NO_SPACE, "epoll refused");
    }
    const int r = kv->hello(name == nullptr ? "" : name, staging_bytes, now_ms() + timeout_ms);
    if (r != NEREID_KV_OK) return failed(r, kv->error);
    *out = kv.release();
    return NEREID_KV_OK;
}

void nereid_kv_close(nereid_kv* kv) { delete kv; }

const char* nereid_kv_error(const nereid_kv* kv) {
    return kv == nullptr ? connect_error().c_str() : kv->error.c_str();
}

uint64_t nereid_kv_arena_bytes(const nereid_kv* kv) { return kv->arena.bytes().size(); }

int nereid_kv_fd(const nereid_kv* kv) { return kv->epoll.get(); }

int nereid_kv_poll(nereid_kv* kv, nereid_kv_completion* out, size_t max, int timeout_ms) {
    if (kv->forked()) return NEREID_KV_FORKED;
    if (max == 0) return 0;
    kv->given.clear();
    const std::int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    // What has arrived, without waiting; then, if there is nothing, with.
    int r = NEREID_KV_OK;
    while (!kv->broken && (r = kv->receive()) > 0) {
        if ((r = kv->digest()) != NEREID_KV_OK) break;
    }
    while (kv->ready.empty()) {
        if (kv->broken) return r < 0 ? r : kv->usable();
        r = kv->pump(deadline);
        if (r == NEREID_KV_TIMEOUT) return 0;
    }
    const std::size_t n = std::min(max, kv->ready.size());
    kv->given.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
        kv->give(std::move(kv->ready.front()));
        kv->ready.pop_front();
        kv->given.back().link();
        out[i] = kv->given.back().c;
    }
    std::uint64_t drained;
    if (kv->ready.empty())
        static_cast<void>(!read(kv->ready_signal.get(), &drained, sizeof drained));
    return static_cast<int>(n);
}

int nereid_kv_wait(nereid_kv* kv, uint64_t tag, int timeout_ms, nereid_kv_completion* out) {
    if (kv->forked()) return NEREID_KV_FORKED;
    const std::int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    for (;;) {
        for (auto it = kv->ready.begin(); it != kv->ready.end(); ++it) {
            if (it->c.tag != tag) continue;
            kv->given.clear();
            kv->give(std::move(*it));
            kv->ready.erase(it);
            kv->given.back().link();
            *out = kv->given.back().c;
            std::uint64_t drained;
            if (kv->ready.empty())
                static_cast<void>(!read(kv->ready_signal.get(), &drained, sizeof drained));
            return NEREID_KV_OK;
        }
        if (!kv->asked.contains(tag)) return kv->fail(NEREID_KV_INVALID, "no such tag");
        if (const int r = kv->usable(); r != NEREID_KV_OK) return r;
        if (const int r = kv->pump(deadline); r != NEREID_KV_OK) return r;
    }
}

int nereid_kv_submit_open(nereid_kv* kv, const nereid_kv_namespace* ns, uint64_t* tag) {
    if (ns->replay > 3) return kv->fail(NEREID_KV_INVALID, "replay is 0 to 3");
    OpenNamespace c;
    std::memcpy(c.ns.digest.data(), ns->digest, 32);
    c.geometry = {.block_tokens = ns->block_tokens,
                  .history_bytes = ns->history_bytes,
                  .state_bytes = ns->state_bytes,
                  .keep_tokens = ns->keep_tokens,
                  .replay = static_cast<ReplayPolicy>(ns->replay),
                  .window_tokens = ns->window_tokens,
                  .replay_tokens = ns->replay_tokens,
                  .checkpoint_blocks = ns->checkpoint_blocks};
    c.tenant = ns->tenant;
    c.ttl = seconds(ns->ttl_s);
    wire::Capability capability;
    std::memcpy(capability.data(), ns->capability, 32);
    return kv->submit(NEREID_KV_OP_OPEN, std::move(c), capability, tag);
}

int nereid_kv_submit_lookup(nereid_kv* kv, uint32_t ns, uint32_t first_block,
                            const nereid_kv_key* keys, size_t count, uint32_t prompt_tokens,
                            uint64_t* tag) {
    Lookup c;
    c.ns = ns;
    c.first_block = first_block;
    c.keys.resize(count);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(c.keys[i].bytes.data(), keys[i].bytes, 16);
    c.prompt_tokens = prompt_tokens;
    return kv->submit(NEREID_KV_OP_LOOKUP, std::move(c), kNoCapability, tag);
}

int nereid_kv_submit_get(nereid_kv* kv, uint32_t ns, const nereid_kv_object* objects, size_t count,
                         uint32_t lease_ms, uint32_t wait_ms, uint32_t flags, uint64_t* tag) {
    Get c;
    c.ns = ns;
    c.objects = names_of(objects, count);
    c.lease = ms(lease_ms);
    c.wait = ms(wait_ms);
    c.join_writes = (flags & NEREID_KV_JOIN_WRITES) != 0;
    c.stop_at_miss = (flags & NEREID_KV_DO_NOT_STOP) == 0;
    return kv->submit(NEREID_KV_OP_GET, std::move(c), kNoCapability, tag);
}

int nereid_kv_submit_renew(nereid_kv* kv, uint64_t lease, uint32_t hold_ms, uint64_t* tag) {
    return kv->submit(NEREID_KV_OP_RENEW, Renew{{lease}, ms(hold_ms)}, kNoCapability, tag);
}

int nereid_kv_submit_release(nereid_kv* kv, uint64_t lease, uint64_t* tag) {
    return kv->submit(NEREID_KV_OP_RELEASE, nereid::kv::Release{{lease}}, kNoCapability, tag);
}

int nereid_kv_submit_reserve(nereid_kv* kv, uint32_t ns, const nereid_kv_object* objects,
                             size_t count, uint32_t hold_ms, uint64_t ttl_s, uint32_t flags,
                             uint64_t* tag) {
    Reserve c;
    c.ns = ns;
    c.objects = names_of(objects, count);
    c.hold = ms(hold_ms);
    c.ttl = seconds(ttl_s);
    c.attach = (flags & NEREID_KV_ATTACH) != 0;
    return kv->submit(NEREID_KV_OP_RESERVE, std::move(c), kNoCapability, tag);
}

int nereid_kv_submit_commit(nereid_kv* kv, const nereid_kv_commit_item* items, size_t count,
                            uint64_t* tag) {
    Commit c;
    for (std::size_t i = 0; i < count; ++i) {
        c.items.push_back({.reservation = {items[i].reservation},
                           .region = 0,
                           .offset = items[i].offset,
                           .length = items[i].length,
                           .crc = items[i].crc});
    }
    return kv->submit(NEREID_KV_OP_COMMIT, std::move(c), kNoCapability, tag);
}

int nereid_kv_submit_abort(nereid_kv* kv, const uint64_t* reservations, size_t count,
                           uint64_t* tag) {
    Abort c;
    for (std::size_t i = 0; i < count; ++i) c.reservations.push_back({reservations[i]});
    return kv->submit(NEREID_KV_OP_ABORT, std::move(c), kNoCapability, tag);
}

int nereid_kv_submit_subscribe(nereid_kv* kv, uint64_t from, uint32_t limit, uint32_t wait_ms,
                               uint64_t* tag) {
    return kv->submit(NEREID_KV_OP_SUBSCRIBE, Subscribe{from, limit, ms(wait_ms)}, kNoCapability,
                      tag);
}

int nereid_kv_submit_clear(nereid_kv* kv, uint32_t ns, uint64_t* tag) {
    return kv->submit(NEREID_KV_OP_CLEAR, Clear{ns}, kNoCapability, tag);
}

int nereid_kv_submit_stats(nereid_kv* kv, uint8_t what, uint64_t* tag) {
    if (const int r = kv->usable(); r != NEREID_KV_OK) return r;
    const std::uint64_t mine = kv->next_tag++;
    if (const int r = kv->send(wire::StatsCall{mine, what}, -1, now_ms() + 10'000);
        r != NEREID_KV_OK)
        return r;
    kv->asked.emplace(mine, nereid_kv::Asked{.op = NEREID_KV_OP_STATS});
    if (tag != nullptr) *tag = mine;
    return NEREID_KV_OK;
}

int nereid_kv_report(nereid_kv* kv, const nereid_kv_client_counts* n) {
    if (const int r = kv->usable(); r != NEREID_KV_OK) return r;
    return kv->send(wire::Report{{n->saved, n->save_dropped, n->save_failed, n->fetched,
                                  n->fetch_timeouts, n->fetch_failed, n->skipped, n->troubles}},
                    -1, now_ms() + 10'000);
}

void* nereid_kv_stage(nereid_kv* kv, uint32_t bytes, uint64_t* offset) {
    if (kv->forked()) return nullptr;
    const auto at = kv->staged.take(bytes);
    if (!at) return nullptr;
    *offset = *at;
    return kv->staging.bytes().data() + *at;
}

void nereid_kv_unstage(nereid_kv* kv, uint64_t offset) {
    if (!kv->forked()) kv->staged.give(offset);
}

uint32_t nereid_kv_crc32c(const void* data, size_t bytes) {
    return crc32c({static_cast<const std::uint8_t*>(data), bytes});
}

const void* nereid_kv_view(nereid_kv* kv, const nereid_kv_place* place) {
    if (kv->forked()) return nullptr;
    const auto v = kv->reader->view(ref_of(*place));
    if (!v.ok()) {
        kv->fail(status_of(v.code()), v.error().message);
        return nullptr;
    }
    return v->data();
}

int nereid_kv_valid(nereid_kv* kv, const nereid_kv_place* place) {
    if (kv->forked()) return NEREID_KV_FORKED;
    return kv->reader->still_valid(ref_of(*place)) ? NEREID_KV_OK : NEREID_KV_GONE;
}

int nereid_kv_copy(nereid_kv* kv, const nereid_kv_place* place, const nereid_kv_piece* pieces,
                   size_t count, void (*layer_done)(void*, uint32_t), void* context) {
    if (kv->forked()) return NEREID_KV_FORKED;
    const SlotRef ref = ref_of(*place);
    const auto from = kv->reader->view(ref);
    if (!from.ok()) return kv->fail(status_of(from.code()), from.error().message);
    std::uint64_t expected = 0;  // where the next piece begins if they cover the object in order
    std::uint32_t crc = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const nereid_kv_piece& p = pieces[i];
        if (p.at > from->size() || p.length > from->size() - p.at)
            return kv->fail(NEREID_KV_INVALID, "a piece outside the object");
        const std::uint32_t sum = copy_crc32c({static_cast<std::uint8_t*>(p.to), p.length},
                                              from->subspan(p.at, p.length), crc);
        if (p.at == expected) {
            expected += p.length;
            crc = sum;
        } else {
            expected = from->size() + 1;  // not a cover in order: the stamp has to do
        }
        if (layer_done != nullptr && (i + 1 == count || pieces[i + 1].layer != p.layer))
            layer_done(context, p.layer);
    }
    if (!kv->reader->still_valid(ref))
        return kv->fail(NEREID_KV_GONE, "the lease ended during the copy");
    if (expected == from->size() && crc != ref.crc)
        return kv->fail(NEREID_KV_CORRUPT, "the object fails its CRC");
    return NEREID_KV_OK;
}

int nereid_kv_put(nereid_kv* kv, uint32_t ns, const nereid_kv_object* object, const void* data,
                  uint32_t length, uint64_t ttl_s, int timeout_ms, uint8_t* object_status) {
    const std::int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    const auto left = [&] {
        return deadline < 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, deadline - now_ms()));
    };
    const auto hold = static_cast<std::uint32_t>(timeout_ms < 0 ? 60'000 : timeout_ms + 1000);
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    int r = nereid_kv_submit_reserve(kv, ns, object, 1, hold, ttl_s, 0, &tag);
    if (r == NEREID_KV_OK) r = nereid_kv_wait(kv, tag, left(), &c);
    if (r == NEREID_KV_OK) r = c.status;
    if (r != NEREID_KV_OK) return r;
    if (c.count != 1) return kv->fail(NEREID_KV_REFUSED, "an answer for another number of objects");
    *object_status = c.object_status[0];
    if (*object_status != NEREID_KV_OBJECT_OK) return NEREID_KV_OK;
    nereid_kv_commit_item item{
        .reservation = c.reservations[0], .offset = 0, .length = length, .crc = 0};
    void* to = nereid_kv_stage(kv, length, &item.offset);
    if (to == nullptr) {
        static_cast<void>(nereid_kv_submit_abort(kv, &item.reservation, 1, &tag));
        static_cast<void>(nereid_kv_wait(kv, tag, left(), &c));
        return kv->fail(NEREID_KV_NO_SPACE, "the staging region has no room");
    }
    item.crc = copy_crc32c({static_cast<std::uint8_t*>(to), length},
                           {static_cast<const std::uint8_t*>(data), length});
    r = nereid_kv_submit_commit(kv, &item, 1, &tag);
    if (r == NEREID_KV_OK) r = nereid_kv_wait(kv, tag, left(), &c);
    // Without an answer the node may still read there: the room is lost until the handle closes.
    if (r == NEREID_KV_OK) nereid_kv_unstage(kv, item.offset);
    if (r == NEREID_KV_OK) r = c.status;
    if (r == NEREID_KV_OK && c.count == 1) *object_status = c.object_status[0];
    return r;
}

}  // extern "C"
