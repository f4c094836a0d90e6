// KV events of vLLM and SGLang as bytes -> values: a pure decoder, and the bookkeeping of sequence
// numbers that says when to replay or to start over. The ZMQ transport is io/zmtp.h
// with gateway/routing/kv_feed.h.
//
// Format (docs: facts/router.md §2.5; captured bytes in the tests): multipart [topic, seq u64 big
// endian, msgpack]; the payload is an array [ts f64, [events], dp_rank?, ...]. An event is a map
// tagged by "type" (vLLM 0.32, SGLang 0.5.23) or an array ["BlockStored", fields in order...]
// (SGLang 0.5.10). Fields left out have their defaults; unknown fields and event types are skipped
// (counted).
//
// Groups other than the main one (group_idx != 0), sliding-window kinds and events about media that
// a rank cannot serve a hit from at once are dropped here (R21). The salt in extra_keys travels in
// clear: decoded events are confidential and hold it only as part of the chain.
//
// Bounds: a message over max_bytes, nesting over 16, or a count that exceeds what is left is
// kCorrupt; nothing is allocated by an unchecked count. Fuzzed: kv_events_fuzz.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "router/ids.h"

namespace nereid::router {

// An engine's own name of a block: an integer, or bytes of which the last 8 are taken big endian
// (vLLM's own truncation). Seeded per process: of no meaning beyond one engine life.
using EngineHash = std::uint64_t;

struct BlockStored {
    std::vector<EngineHash> blocks;
    std::optional<EngineHash> parent = {};
    std::vector<TokenId> tokens = {};  // blocks.size() · block_size, or empty
    TokenCount block_size = 0;
    std::string lora = {};  // name or number of the adapter, "" = none
    std::vector<std::string> extra =
        {};  // per block: msgpack of its extra keys (salt, images); or empty
};
struct BlockRemoved {
    std::vector<EngineHash> blocks;
};
struct AllBlocksCleared {};
using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

struct KvEventBatch {
    double timestamp = 0;
    std::vector<KvEvent> events;
    std::optional<std::uint32_t> dp_rank;
    std::uint32_t skipped = 0;  // other groups, media or unknown types
};

inline constexpr std::size_t kMaxEventBytes = 64u << 20u;
// kCorrupt names the offset.
Result<KvEventBatch> decode_kv_events(std::string_view payload);
// The second frame; kCorrupt unless 8 bytes.
Result<std::uint64_t> decode_sequence(std::string_view frame);
// What to send to the replay endpoint (a DEALER socket): frames ["", start u64 BE].
std::string encode_replay_request(std::uint64_t start);
// The last reply of a replay has sequence ff·8 and an empty payload.
inline constexpr std::uint64_t kReplayEnd = ~0ull;

// Sequence numbers of one endpoint (R20). A gap is filled by replay; what replay cannot fill, or an
// engine that began again, makes all that was known of the rank invalid.
class EventSequence {
  public:
    enum class Source : std::uint8_t { kLive, kReplay };
    enum class Verdict : std::uint8_t {
        kApply,
        kRepeat,  // seen before: ignore
        kGap,     // some are missing: drop it, ask for replay from missing_from()
    };
    struct Decision {
        Verdict verdict = Verdict::kApply;
        bool clear_first = false;  // forget what the rank held, before anything else
    };
    Decision observe(std::uint64_t sequence, Source source);
    // The replay that was asked for is over. True: messages came in meanwhile and another one is
    // wanted.
    bool replay_ended();
    std::uint64_t missing_from() const { return next_; }
    bool replaying() const { return replaying_; }
    std::uint64_t gaps() const { return gaps_; }
    std::uint64_t resets() const { return resets_; }

  private:
    bool has_live_ = false;
    bool known_ = false;  // something was applied since the last clear
    bool replaying_ = false;
    bool broken_ = false;  // replay did not help
    std::uint64_t last_live_ = 0;
    std::uint64_t next_ = 0;  // wanted next
    std::uint64_t replay_from_ = 0;
    std::uint64_t gaps_ = 0;
    std::uint64_t resets_ = 0;
};

}  // namespace nereid::router
