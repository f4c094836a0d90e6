// W3C Trace Context (Recommendation, level 1; the random-id flag of level 2): which trace a request
// belongs to.
//
// Pure functions; ids come from a Prng that the caller seeds. A header that does not parse is
// ignored, as the specification asks: a new trace begins. What goes out carries a span id of ours
// (case O54), never the caller's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/prng.h"

namespace nereid::ops {

struct TraceContext {
    static constexpr std::uint8_t kSampled = 0x01;
    static constexpr std::uint8_t kRandomId = 0x02;  // the trace id's right half is random

    std::array<std::uint8_t, 16> trace_id{};  // not all zero
    std::array<std::uint8_t, 8> span_id{};    // not all zero; "parent-id" in the specification
    std::uint8_t flags = 0;
    std::string state = {};  // tracestate, passed through; empty = none

    bool sampled() const { return (flags & kSampled) != 0; }
    std::string trace_id_hex() const;  // 32 lower-case digits
    std::string span_id_hex() const;   // 16
    bool operator==(const TraceContext&) const = default;
};

// nullopt when the header is invalid: wrong length or separators, upper-case digits, all-zero ids,
// version ff, or version 00 with anything after the flags. Of a later version the first four
// members are taken. Flags that we do not know are cleared. `state` stays empty.
std::optional<TraceContext> parse_traceparent(std::string_view header);

// Version 00: "00-<trace id>-<span id>-<flags>", 55 characters.
std::string format_traceparent(const TraceContext& context);

// The header's members without empty ones and outer white space, or nullopt when it breaks the
// grammar: over 32 members, a duplicate or malformed key, a malformed value. Several header lines
// are joined with ',' first.
std::optional<std::string> parse_tracestate(std::string_view header);

// The context for what a request of ours does: the same trace and state, a new span id.
TraceContext child_of(const TraceContext& parent, Prng& prng);
// A trace of our own.
TraceContext new_trace(Prng& prng, bool sampled);

}  // namespace nereid::ops
