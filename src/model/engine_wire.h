// engine-wire v1: the bytes between a gateway (or pool) and an engine process.
// docs/formats/engine-wire.md.
//
// A connection is a byte stream (Unix socket; over gRPC for remote workers: one message per frame).
//   message = magic:u32 "NEW1" | type:u16 | flags:u16 (0) | length:u32 | checksum:u32 | payload
//   checksum = CRC-32C of the header's first 12 bytes and the payload
// The client speaks first: Hello{version_min, version_max, client}; the engine answers
// Welcome{version, EngineInfo} or Refuse{Error}. Then commands flow one way and frames the other.
// Unknown types are an error in v1 (same version on both sides); every list is length-checked
// before anything is allocated; a payload is at most kMaxPayload. All functions are pure; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "model/engine_port.h"

namespace nereid::model::wire {

inline constexpr std::uint32_t kMagic = 0x3157454e;  // "NEW1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::uint32_t kMaxPayload = 64u << 20;

struct Hello {
    std::uint16_t version_min = kVersion;
    std::uint16_t version_max = kVersion;
    std::string client;
};
struct Welcome {
    std::uint16_t version = kVersion;
    EngineInfo info;
};
struct Refuse {
    Error error;
};
// Sent by either side when idle; proves that the loop turns.
struct Ping {
    std::uint64_t nonce = 0;
};
struct Pong {
    std::uint64_t nonce = 0;
};

using Message = std::variant<Hello, Welcome, Refuse, Ping, Pong, Command, StepFrame>;

// Appends one message to `out`. False, and `out` as it was, when the payload would be over
// kMaxPayload: only an AddRequest with images, a grammar or a prompt beyond all bounds can be that
// large, and its caller answers kTooLarge.
bool encode(const Message& message, std::string& out);
bool encode(const Command& command, std::string& out);
bool encode(const StepFrame& frame, std::string& out);

// Takes bytes in any chunking and yields messages: feed what was read, call next() until it gives
// nullopt. After an error the decoder stays in error and drops what it is fed: the connection must
// be closed. Header faults (magic, type, length over the bound) are found as soon as the header is
// there. Memory: one message and one chunk; a decoded message takes at most about 8 times its
// payload (a list of empty strings).
class Decoder {
  public:
    void feed(std::string_view bytes);
    // A message, or nullopt when more bytes are needed, or kCorrupt naming what is wrong.
    Result<std::optional<Message>> next();

  private:
    Result<std::optional<Message>> take();
    std::string buffer_;
    std::size_t at_ = 0;
    std::optional<Error> failed_;
};

}  // namespace nereid::model::wire
