#include "io/zmtp.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace nereid::io::zmtp {
namespace {

constexpr unsigned kMore = 1, kLong = 2, kCommand = 4;
constexpr std::size_t kReadBytes = 64u << 10u;
constexpr std::size_t kCompactAt = 1u << 20u;

Error corrupt(std::string what) { return {Code::kCorrupt, "ZMTP: " + std::move(what)}; }

std::uint64_t big_endian(std::string_view bytes) {
    std::uint64_t v = 0;
    for (const char c : bytes) v = v << 8u | static_cast<unsigned char>(c);
    return v;
}
void append_big_endian(std::uint64_t v, int bytes, std::string& out) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
        out.push_back(static_cast<char>(v >> static_cast<unsigned>(shift) & 0xffu));
    }
}

void append_frame(unsigned flags, std::string_view body, std::string& out) {
    if (body.size() > 255) {
        out.push_back(static_cast<char>(flags | kLong));
        append_big_endian(body.size(), 8, out);
    } else {
        out.push_back(static_cast<char>(flags));
        out.push_back(static_cast<char>(body.size()));
    }
    out += body;
}

// A command's body is its name's length, its name, its data.
std::string command(std::string_view name, std::string_view data) {
    std::string body(1, static_cast<char>(name.size()));
    body += name;
    body += data;
    std::string out;
    append_frame(kCommand, body, out);
    return out;
}
std::pair<std::string_view, std::string_view> split_command(std::string_view body) {
    if (body.empty()) return {};
    const auto n = static_cast<unsigned char>(body[0]);
    if (body.size() < std::size_t{n} + 1) return {};
    return {body.substr(1, n), body.substr(std::size_t{n} + 1)};
}

std::string_view name_of(SocketType type) { return type == SocketType::kSub ? "SUB" : "DEALER"; }

}  // namespace

Result<std::optional<Decoder::Item>> Decoder::next() {
    for (;;) {
        const std::string_view rest = std::string_view(buffer_).substr(read_);
        if (rest.size() < 2) return std::nullopt;
        const auto flags = static_cast<unsigned char>(rest[0]);
        if ((flags & ~(kMore | kLong | kCommand)) != 0) return corrupt("flags of a frame");
        const std::size_t head = (flags & kLong) != 0 ? 9 : 2;
        if (rest.size() < head) return std::nullopt;
        const std::uint64_t size = big_endian(rest.substr(1, head - 1));
        if (size > kMaxBytes || frames_bytes_ + size > kMaxBytes || frames_.size() >= kMaxFrames)
            return corrupt("a message that is too large");
        if (rest.size() - head < size) return std::nullopt;
        const std::string_view body = rest.substr(head, size);
        if ((flags & kCommand) != 0) {
            if ((flags & kMore) != 0) return corrupt("a command in parts");
            Item item{.command = true, .frames = {std::string(body)}};
            read_ += head + size;
            return item;
        }
        frames_.emplace_back(body);
        frames_bytes_ += size;
        read_ += head + size;
        if (read_ == buffer_.size() || read_ > kCompactAt) {
            buffer_.erase(0, read_);
            read_ = 0;
        }
        if ((flags & kMore) != 0) continue;
        frames_bytes_ = 0;
        return Item{.command = false, .frames = std::exchange(frames_, {})};
    }
}

std::string greeting() {
    std::string out("\xff\0\0\0\0\0\0\0\0\x7f", 10);
    out += std::string_view("\x03\0", 2);
    std::string mechanism = "NULL";
    mechanism.resize(20);
    out += mechanism;
    out.resize(kGreetingBytes);  // as-server 0, filler
    return out;
}

Result<void> check_greeting(std::string_view bytes) {
    if (bytes.size() < kGreetingBytes || bytes[0] != '\xff' || bytes[9] != '\x7f' || bytes[10] < 3)
        return corrupt("the peer does not speak version 3");
    std::string_view mechanism = bytes.substr(12, 20);
    mechanism = mechanism.substr(0, mechanism.find('\0'));
    if (mechanism == "NULL") return {};
    return err(Code::kUnsupported,
               "ZMTP: the peer wants the mechanism " + std::string(mechanism) + ", we have NULL");
}

std::string ready_command(SocketType type) {
    std::string data;
    const auto property = [&](std::string_view name, std::string_view value) {
        data.push_back(static_cast<char>(name.size()));
        data += name;
        append_big_endian(value.size(), 4, data);
        data += value;
    };
    property("Socket-Type", name_of(type));
    if (type == SocketType::kDealer) property("Identity", "");
    return command("READY", data);
}

Result<void> check_ready(std::string_view body, SocketType ours) {
    auto [name, data] = split_command(body);
    if (name == "ERROR") {
        return err(Code::kUnavailable,
                   "ZMTP: the peer refused: " +
                       std::string(data.substr(std::min<std::size_t>(1, data.size()))));
    }
    if (name != "READY") return corrupt("no READY after the greeting");
    while (!data.empty()) {
        const std::size_t n = static_cast<unsigned char>(data[0]);
        if (data.size() < 1 + n + 4) return corrupt("a cut property");
        const std::string_view key = data.substr(1, n);
        const std::uint64_t size = big_endian(data.substr(1 + n, 4));
        data.remove_prefix(1 + n + 4);
        if (size > data.size()) return corrupt("a cut property");
        const std::string_view value = data.substr(0, size);
        data.remove_prefix(size);
        if (key != "Socket-Type") continue;
        const bool fits = ours == SocketType::kSub
                              ? value == "PUB" || value == "XPUB"
                              : value == "ROUTER" || value == "REP" || value == "DEALER";
        if (fits) return {};
        return err(Code::kConflict, "ZMTP: a " + std::string(name_of(ours)) +
                                        " socket does not fit the peer's " + std::string(value));
    }
    return corrupt("READY without a socket type");
}

void encode(const Message& message, std::string& out) {
    for (std::size_t i = 0; i < message.size(); ++i) {
        append_frame(i + 1 < message.size() ? kMore : 0, message[i], out);
    }
}

Task<Result<std::unique_ptr<Connection>>> Connection::connect(Network& network, Endpoint to,
                                                              SocketType type, TimePoint deadline) {
    auto stream = co_await network.connect(to, deadline);
    if (!stream.ok()) co_return stream.error();
    std::unique_ptr<Connection> connection(new Connection(*std::move(stream)));
    const auto shaken = co_await connection->shake_hands(type, deadline);
    if (!shaken.ok()) co_return shaken.error();
    co_return std::move(connection);
}

Task<Result<void>> Connection::shake_hands(SocketType type, TimePoint deadline) {
    const std::string hello = greeting();
    const std::string_view pieces[] = {hello};
    const auto greeted = co_await stream_->write(pieces, deadline);
    if (!greeted.ok()) co_return greeted.error();
    std::string theirs;
    std::array<char, 512> buffer{};
    while (theirs.size() < kGreetingBytes) {
        const auto n = co_await stream_->read(buffer, deadline);
        if (!n.ok()) co_return n.error();
        if (*n == 0) co_return err(Code::kUnavailable, "ZMTP: closed during the handshake");
        theirs.append(buffer.data(), *n);
    }
    const auto checked = check_greeting(theirs);
    if (!checked.ok()) co_return checked.error();
    decoder_.feed(std::string_view(theirs).substr(kGreetingBytes));
    const std::string ready = ready_command(type);
    const std::string_view ready_pieces[] = {ready};
    const auto sent = co_await stream_->write(ready_pieces, deadline);
    if (!sent.ok()) co_return sent.error();
    const auto answer = co_await item(deadline);
    if (!answer.ok()) co_return answer.error();
    if (!answer->command) co_return corrupt("a message before READY");
    co_return check_ready(answer->frames[0], type);
}

Task<Result<void>> Connection::subscribe(std::string topic) {
    Message message;
    message.push_back("\x01" + topic);
    co_return co_await send(std::move(message));
}

Task<Result<void>> Connection::send(Message message) {
    std::string out;
    encode(message, out);
    const std::string_view pieces[] = {out};
    co_return co_await stream_->write(pieces);
}

Task<Result<Decoder::Item>> Connection::item(TimePoint deadline) {
    std::string buffer(kReadBytes, '\0');
    for (;;) {
        auto found = decoder_.next();
        if (!found.ok()) co_return found.error();
        if (*found) co_return std::move(**found);
        const auto n = co_await stream_->read(buffer, deadline);
        if (!n.ok()) co_return n.error();
        if (*n == 0) co_return err(Code::kUnavailable, "ZMTP: the peer has closed the connection");
        decoder_.feed({buffer.data(), *n});
    }
}

Task<Result<Message>> Connection::receive(TimePoint deadline) {
    for (;;) {
        auto got = co_await item(deadline);
        if (!got.ok()) co_return got.error();
        if (!got->command) co_return std::move(got->frames);
        const auto [name, data] = split_command(got->frames[0]);
        if (name != "PING" || data.size() < 2) continue;
        const std::string pong = command("PONG", data.substr(2));  // after the TTL: the context
        const std::string_view pieces[] = {pong};
        const auto sent = co_await stream_->write(pieces);
        if (!sent.ok()) co_return sent.error();
    }
}

Result<Endpoint> parse_endpoint(std::string_view text) {
    const auto bad = [&] {
        return err(Code::kInvalidArgument, "'" + std::string(text) +
                                               "' is no ZeroMQ endpoint. Mend: tcp://HOST:PORT or "
                                               "ipc:///PATH.");
    };
    Endpoint out;
    if (text.starts_with("ipc://") && text.size() > 6) {
        out.unix_path = text.substr(6);
        return out;
    }
    const std::size_t colon = text.rfind(':');
    if (!text.starts_with("tcp://") || colon == std::string_view::npos || colon <= 6) return bad();
    out.host = text.substr(6, colon - 6);
    if (out.host.starts_with('[') && out.host.ends_with(']'))
        out.host = out.host.substr(1, out.host.size() - 2);
    const std::string_view port = text.substr(colon + 1);
    const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (ec != std::errc{} || end != port.data() + port.size() || out.port == 0) return bad();
    return out;
}

}  // namespace nereid::io::zmtp
