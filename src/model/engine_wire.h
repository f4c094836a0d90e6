// engine-wire v1: the bytes between a gateway (or pool) and an engine process. docs/formats/engine-wire.md.
//
// A connection is a byte stream (Unix socket; over gRPC for remote workers: one message per frame).
//   message = magic:u32 "NEW1" | type:u16 | flags:u16 (0) | length:u32 | crc32c(payload):u32 | payload
// The client speaks first: Hello{version_min, version_max, client}; the engine answers Welcome{version, EngineInfo}
// or Refuse{Error}. Then commands flow one way and frames the other. Unknown types are an error in v1 (same
// version on both sides); every list is length-checked before anything is allocated; a payload is at most
// kMaxPayload. All functions are pure; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "model/engine_port.h"

namespace nereid::model::wire {

inline constexpr std::uint32_t kMagic = 0x3157454e;    // "NEW1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::uint32_t kMaxPayload = 64u << 20;

struct Hello { std::uint16_t version_min = kVersion; std::uint16_t version_max = kVersion; std::string client; };
struct Welcome { std::uint16_t version = kVersion; EngineInfo info; };
struct Refuse { Error error; };
// Sent by either side when idle; proves that the loop turns.
struct Ping { std::uint64_t nonce = 0; };
struct Pong { std::uint64_t nonce = 0; };

using Message = std::variant<Hello, Welcome, Refuse, Ping, Pong, Command, StepFrame>;

// Appends one message to `out`.
void encode(const Message& message, std::string& out);
void encode(const Command& command, std::string& out);
void encode(const StepFrame& frame, std::string& out);

// Takes bytes in any chunking and yields messages. After an error the decoder stays in error: the connection
// must be closed. Holds at most one message (kHeaderBytes + kMaxPayload).
class Decoder {
  public:
    void feed(std::string_view bytes);
    // A message, or nullopt when more bytes are needed, or kCorrupt naming what is wrong.
    Result<std::optional<Message>> next();

  private:
    std::string buffer_;
    std::size_t at_ = 0;
    std::optional<Error> failed_;
};

}  // namespace nereid::model::wire
