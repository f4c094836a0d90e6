// One request of a workload: when it arrives, how long it is, and which prefix it shares with whom.
// No text: simulators, planners and load drivers need no more. And Source, where requests come
// from.
//
// Times are since the start of the workload. Lengths are tokens. Prefixes are chains of 64-bit
// block ids: id i names blocks 0..i together, so two requests whose first n ids are equal share
// their first n blocks, and an id never appears at two positions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"

namespace nereid::workload {

// How long the KV of a request is worth keeping (DESIGN §6): chat 7 days, agent 3 days.
enum class TtlClass : std::uint8_t { kChat, kAgent };

struct Image {
    std::uint64_t digest = 0;   // equal digests are the same picture
    std::uint32_t patches = 0;  // what an encoder's cost is linear in
    bool operator==(const Image&) const = default;
};

struct Request {
    std::uint64_t id = 0;  // unique within a source, in order of take()
    Duration arrival{0};
    TokenCount input_tokens = 0;   // >= 1; includes the placeholders of images
    TokenCount output_tokens = 0;  // >= 1; what the request will generate: hidden from policies
    std::uint64_t session = 0;     // 0: none. Turns of one conversation share it
    std::uint32_t turn = 0;        // 0 is a session's first
    bool last_turn = true;         // no later turn of this session will come
    TtlClass ttl = TtlClass::kChat;
    std::uint32_t origin = 0;  // which source of a mix it came from; 0 elsewhere
    std::uint64_t tag = 0;     // the source's own mark
    // The prompt's chain: ceil(input_tokens / block_tokens) ids, the last one may name a part of a
    // block and then cannot be a hit of whole blocks. Empty: nothing is known about prefixes, so
    // nothing is shared.
    std::vector<std::uint64_t> blocks = {};
    std::vector<Image> images = {};
};

// Whole blocks of the prompt, those that a prefix cache can hold.
inline std::uint32_t whole_blocks(const Request& r, TokenCount block_tokens) {
    const auto n = r.input_tokens / block_tokens;
    return n < r.blocks.size() ? n : static_cast<std::uint32_t>(r.blocks.size());
}

// A stream of requests in order of arrival. Deterministic: the same source, the same calls, the
// same requests. One thread. Use:
//
//     Request r;                                   // reused: its vectors keep their capacity
//     while (source.next_arrival() <= now) { source.take(r); submit(r); }
//     ... when r has its last token (or was given up):  source.finished(r, now);
//
// Sources of an open loop know all arrivals; in a closed loop (agents) the next turn of a session
// arrives its think time after finished(), so next_arrival() may become earlier by that call, never
// earlier than `at`. Whoever drives a closed loop must report every request it took.
class Source {
  public:
    static constexpr Duration kNever = Duration::max();

    virtual ~Source() = default;
    // When the next known request arrives; kNever when none is known now.
    virtual Duration next_arrival() = 0;
    // Moves the next request out. Precondition (CHECK): next_arrival() != kNever.
    virtual void take(Request& out) = 0;
    // No request will ever come again, whatever finishes.
    virtual bool exhausted() = 0;
    // `request` (its origin and tag are read: keep those two) ended at `at`. Once per request. Open
    // loops ignore it.
    virtual void finished(const Request& request, Duration at) {
        (void)request;
        (void)at;
    }
    // Tokens per id of Request::blocks; 0 when the source has no chains.
    virtual TokenCount block_tokens() const = 0;
    // For reports: one line, e.g. "mooncake conversation, 12 copies, 1.5x speed".
    virtual std::string describe() const = 0;
};

}  // namespace nereid::workload
