// kv-wire: what engines and a cache node on the same machine say to each other over a Unix socket
// (docs/formats/kv-wire.md). Objects' bytes do not travel here: they lie in the node's arena and in
// the client's staging regions, whose descriptors accompany Welcome and Region (SCM_RIGHTS).
//
// Pure: bytes to values and back. The decoder takes what a stream gives, in any pieces, allocates
// nothing by a count that it has not checked, and after the first fault stays failed: the
// connection is to be closed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "kv/node/node.h"

namespace nereid::kv::wire {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::size_t kMaxPayload = std::size_t{4} << 20;

struct Hello {  // client, first
    std::uint32_t version = kVersion;
    std::string client;  // for logs and `nereid cache stats`
    bool operator==(const Hello&) const = default;
};
struct Welcome {  // node, with the arena's descriptor
    std::uint32_t version = kVersion;
    std::uint64_t epoch = 0;
    ByteCount arena_bytes = 0;
    std::uint32_t max_objects = 0;
    bool operator==(const Welcome&) const = default;
};
struct Refuse {  // node, last
    std::string code;
    std::string message;
    bool operator==(const Refuse&) const = default;
};
struct Region {  // client, with a sealed memfd's descriptor: a staging region of its own
    std::uint32_t region = 0;
    ByteCount bytes = 0;
    bool operator==(const Region&) const = default;
};
// Who may open a namespace: HMAC-SHA-256(secret of the node, "nereid-kv-cap\1" | namespace digest).
using Capability = Digest256;
struct Call {
    std::uint64_t tag = 0;
    Capability capability{};  // for OpenNamespace, else zero
    Command command;
};
struct Answered {
    std::uint64_t tag = 0;
    Answer answer;
};
struct StatsCall {
    std::uint64_t tag = 0;
    std::uint8_t what = 0;  // 0 statistics, 1 objects in memory (some thousands), 2 scrub a segment
    bool operator==(const StatsCall&) const = default;
};
struct Stats {
    std::uint64_t tag = 0;
    std::string json;
    bool operator==(const Stats&) const = default;
};
// What a client saw that its node cannot see, since its last report: for the node's metrics. In the
// order of ClientCounts; a node ignores numbers that it has no name for.
struct Report {
    std::vector<std::uint64_t> counts;
    bool operator==(const Report&) const = default;
};
using Message =
    std::variant<Hello, Welcome, Refuse, Region, Call, Answered, StatsCall, Stats, Report>;

// Appends the message. False, and `out` as it was: a payload over kMaxPayload.
bool encode(const Message& message, std::string& out);

class Decoder {
  public:
    void feed(std::string_view bytes) { buffer_.append(bytes); }
    // The next whole message; nullopt: more bytes are needed. kCorrupt for ever after a fault.
    Result<std::optional<Message>> next();

  private:
    Result<std::optional<Message>> fail(std::string_view what);
    std::string buffer_;
    std::size_t at_ = 0;
    bool failed_ = false;
};

}  // namespace nereid::kv::wire
