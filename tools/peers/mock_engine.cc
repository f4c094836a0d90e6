// A backend that costs next to nothing, for benchmarks of gateways: one thread, epoll, fixed answers. It stands behind our
// gateway and the competitors alike, so it knows the paths that each of them probes. Streams are one write per frame, as
// engines send them. Not part of Nereid; `./dev peers` compiles this file alone.
//
// usage: mock-engine [-port 9001] [-n 16] [-ttft-us 0] [-itl-us 0]
//   -n        content frames per streamed answer
//   -ttft-us  wait before the first byte    -itl-us  wait between two frames
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

struct Options {
    int port = 9001, frames = 16;
    microseconds ttft{0}, itl{0};
} options;

struct Connection {
    int fd = -1;
    std::uint64_t id = 0;
    std::string in, out;    // `out`: what the socket did not take yet
    int frames_left = -1;   // >= 0 while a stream runs; 0 = only the end is missing
    bool want_write = false;
};

int poller = -1, in_flight = 0;
std::uint64_t total = 0;
std::unordered_map<int, Connection> connections;
std::multimap<Clock::time_point, std::pair<int, std::uint64_t>> timers;    // (fd, connection id)

constexpr std::string_view kFrame =
    "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,"
    "\"delta\":{\"content\":\"tok \"},\"finish_reason\":null}]}\n\n";
constexpr std::string_view kLastFrame =
    "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,"
    "\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
constexpr std::string_view kAnswer =
    "{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
    "\"assistant\",\"content\":\"tok tok\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2,"
    "\"total_tokens\":12}}";
constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chunk(std::string_view data) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    return std::string(size).append(data).append("\r\n");
}
const std::string frame_chunk = chunk(kFrame), end_chunks = chunk(kLastFrame) + chunk("data: [DONE]\n\n") + "0\r\n\r\n";

void watch(Connection& c) {
    epoll_event event{};
    event.events = EPOLLIN | (c.want_write ? EPOLLOUT : 0u);
    event.data.fd = c.fd;
    epoll_ctl(poller, EPOLL_CTL_MOD, c.fd, &event);
}

void send_now(Connection& c, std::string_view data) {
    if (c.out.empty()) {
        ssize_t sent = send(c.fd, data.data(), data.size(), MSG_NOSIGNAL);
        if (sent > 0) data.remove_prefix(static_cast<std::size_t>(sent));
    }
    c.out += data;
    if (c.out.empty() == c.want_write) {
        c.want_write = !c.out.empty();
        watch(c);
    }
}

void send_json(Connection& c, std::string_view body) {
    std::string head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    send_now(c, head.append(body));
}

void arm(Connection& c, microseconds delay) { timers.emplace(Clock::now() + delay, std::pair{c.fd, c.id}); }

// Sends what is due of the running stream; arms a timer for the rest.
void advance(Connection& c) {
    if (c.frames_left == options.frames) send_now(c, kStreamHead);
    while (c.frames_left > 0) {
        send_now(c, frame_chunk);
        --c.frames_left;
        if (options.itl.count() > 0) return arm(c, options.itl);
    }
    send_now(c, end_chunks);
    c.frames_left = -1;
    --in_flight;
}

void answer(Connection& c, std::string_view path, std::string_view body) {
    path = path.substr(0, path.find('?'));
    if (path == "/v1/chat/completions" || path == "/v1/completions" || path == "/generate") {
        ++total;
        if (body.find("\"stream\":true") == body.npos && body.find("\"stream\": true") == body.npos) return send_json(c, kAnswer);
        ++in_flight;
        c.frames_left = options.frames;
        return options.ttft.count() > 0 ? arm(c, options.ttft) : advance(c);
    }
    if (path == "/v1/models") return send_json(c, R"({"object":"list","data":[{"id":"mock","object":"model","owned_by":"x"}]})");
    if (path == "/get_model_info" || path == "/model_info")
        return send_json(c, R"({"model_path":"mock","tokenizer_path":"mock","is_generation":true})");
    if (path == "/get_server_info" || path == "/server_info")
        return send_json(c, R"({"model_path":"mock","served_model_name":"mock","dp_size":1,"tp_size":1})");
    std::string count = std::to_string(in_flight);
    if (path == "/get_load") return send_json(c, R"([{"dp_rank":0,"num_reqs":)" + count + R"(,"num_waiting_reqs":0,"num_tokens":0}])");
    if (path == "/stats") return send_json(c, R"({"inflight":)" + count + R"(,"total":)" + std::to_string(total) + "}");
    send_json(c, "{}");    // health checks of every flavour
}

// The value of a header, empty if absent; `head` is lower case.
std::string_view header(std::string_view head, std::string_view name) {
    std::size_t at = head.find(name);
    if (at == head.npos) return {};
    std::string_view value = head.substr(at + name.size());
    value = value.substr(0, value.find('\r'));
    while (value.starts_with(' ')) value.remove_prefix(1);
    return value;
}

// Takes whole requests off `in`, one at a time: the next one waits until a running stream has ended.
void take_requests(Connection& c) {
    while (c.frames_left < 0) {
        std::size_t head_end = c.in.find("\r\n\r\n");
        if (head_end == c.in.npos) return;
        std::string head = c.in.substr(0, head_end + 2);
        std::ranges::transform(head, head.begin(), [](unsigned char x) { return static_cast<char>(std::tolower(x)); });
        std::size_t at = head_end + 4;
        std::string body;
        if (header(head, "\r\ntransfer-encoding:") == "chunked") {
            for (;;) {
                std::size_t line = c.in.find("\r\n", at);
                if (line == c.in.npos) return;
                std::size_t size = std::strtoul(c.in.c_str() + at, nullptr, 16);
                if (c.in.size() < line + 2 + size + 2) return;
                body.append(c.in, line + 2, size);
                at = line + 2 + size + 2;
                if (size == 0) break;
            }
        } else {
            std::size_t size = std::strtoul(std::string(header(head, "\r\ncontent-length:")).c_str(), nullptr, 10);
            if (c.in.size() < at + size) {
                if (header(head, "\r\nexpect:") == "100-continue" && c.in.size() == at) send_now(c, "HTTP/1.1 100 Continue\r\n\r\n");
                return;
            }
            body.assign(c.in, at, size);
            at += size;
        }
        std::size_t path_at = head.find(' ') + 1;
        std::string path = c.in.substr(path_at, c.in.find(' ', path_at) - path_at);
        c.in.erase(0, at);
        answer(c, path, body);
    }
}

void drop(int fd) {
    if (auto it = connections.find(fd); it != connections.end()) {
        if (it->second.frames_left >= 0) --in_flight;
        connections.erase(it);
        close(fd);
    }
}

void on_event(int fd, std::uint32_t events) {
    auto it = connections.find(fd);
    if (it == connections.end()) return;
    Connection& c = it->second;
    if (events & EPOLLOUT) {
        std::string pending = std::exchange(c.out, {});
        send_now(c, pending);
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        char buffer[65536];
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got > 0) {
            c.in.append(buffer, static_cast<std::size_t>(got));
            take_requests(c);
        } else if (got == 0 || errno != EAGAIN) {
            drop(fd);
        }
    }
}

int run() {
    static std::uint64_t next_id = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(options.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 4096) != 0) {
        std::perror("mock-engine: cannot listen");
        return 1;
    }
    poller = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = listener}};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int wait_ms = -1;
        if (!timers.empty()) {
            auto wait = std::chrono::ceil<std::chrono::milliseconds>(timers.begin()->first - Clock::now()).count();
            wait_ms = static_cast<int>(std::max<decltype(wait)>(0, wait));
        }
        epoll_event events[256];
        int count = epoll_wait(poller, events, 256, wait_ms);
        for (int i = 0; i < count; ++i) {
            if (events[i].data.fd != listener) {
                on_event(events[i].data.fd, events[i].events);
                continue;
            }
            for (int fd; (fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                Connection& c = connections[fd] = {};
                c.fd = fd;
                c.id = next_id++;
                epoll_event add{.events = EPOLLIN, .data = {.fd = fd}};
                epoll_ctl(poller, EPOLL_CTL_ADD, fd, &add);
            }
        }
        while (!timers.empty() && timers.begin()->first <= Clock::now()) {
            auto [fd, id] = timers.begin()->second;
            timers.erase(timers.begin());
            auto it = connections.find(fd);
            if (it == connections.end() || it->second.id != id) continue;
            advance(it->second);
            take_requests(it->second);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i + 1 < argc; i += 2) {
        std::string_view name = argv[i];
        long value = std::strtol(argv[i + 1], nullptr, 10);
        if (name == "-port") options.port = static_cast<int>(value);
        else if (name == "-n") options.frames = static_cast<int>(value);
        else if (name == "-ttft-us") options.ttft = microseconds(value);
        else if (name == "-itl-us") options.itl = microseconds(value);
        else return std::fprintf(stderr, "mock-engine: no option %s\n", argv[i]), 2;
    }
    return run();
}
