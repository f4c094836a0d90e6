// ZMTP: ZeroMQ's wire protocol, as far as a client of publishers needs it: one connection of a SUB
// or DEALER socket over a Stream. Version 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23),
// which every libzmq since 4.0 speaks; encryption and authentication are refused by the handshake.
//
// Why not libzmq: docs/adr/0012. What a ZeroMQ socket adds (reconnection, fan-in, queues) is the
// caller's.
//
// Everything on the loop of the stream. A message over kMaxBytes or with more than kMaxFrames
// frames is kCorrupt; nothing is allocated by a length alone.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/stream.h"

namespace nereid::io::zmtp {

using Message = std::vector<std::string>;  // its frames

inline constexpr std::size_t kMaxBytes = 64u << 20u;  // of a message
inline constexpr std::size_t kMaxFrames = 64;

enum class SocketType : char { kSub, kDealer };

// What comes after the handshake's greeting, from bytes in any pieces. After an error nothing more.
class Decoder {
  public:
    struct Item {
        bool command = false;  // then one frame, its name and data
        Message frames;
    };
    void feed(std::string_view bytes) { buffer_ += bytes; }
    // Nothing: more bytes are wanted. kCorrupt.
    Result<std::optional<Item>> next();

  private:
    std::string buffer_;
    std::size_t read_ = 0;  // of the buffer
    Message frames_;
    std::size_t frames_bytes_ = 0;
};

std::string greeting();
// kCorrupt: no ZMTP 3; kUnsupported: another mechanism than NULL. `bytes` has kGreetingBytes.
inline constexpr std::size_t kGreetingBytes = 64;
Result<void> check_greeting(std::string_view bytes);
std::string ready_command(SocketType type);
// kUnavailable with the peer's reason for ERROR; kConflict for a socket type that does not fit.
Result<void> check_ready(std::string_view command, SocketType ours);
void encode(const Message& message, std::string& out);

class Connection {
  public:
    // Connects and shakes hands. As Network::connect, check_greeting, check_ready.
    static Task<Result<std::unique_ptr<Connection>>> connect(Network& network, Endpoint to,
                                                             SocketType type, TimePoint deadline);
    // Messages whose first frame begins with `topic`.
    Task<Result<void>> subscribe(std::string topic);
    Task<Result<void>> send(Message message);
    // The next message. kUnavailable at the peer's end; kDeadlineExceeded (the connection stays
    // usable); kCorrupt. PINGs of the peer are answered here.
    Task<Result<Message>> receive(TimePoint deadline = TimePoint::never());

  private:
    explicit Connection(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
    Task<Result<void>> shake_hands(SocketType type, TimePoint deadline);
    Task<Result<Decoder::Item>> item(TimePoint deadline);

    std::unique_ptr<Stream> stream_;
    Decoder decoder_;
};

// "tcp://host:port" or "ipc:///path". kInvalidArgument with the mend.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace nereid::io::zmtp
