// Quantities with their unit in the type, and the time types that every room uses.
//
// Duration and TimePoint are signed 64-bit nanoseconds. A TimePoint is a reading of
// io::Clock::now(): monotonic, with an arbitrary origin (0 in the simulator). WallTime is Unix
// time; it is for people and for the wire, never for intervals.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace nereid {

using Duration = std::chrono::nanoseconds;
using namespace std::chrono_literals;

struct TimePoint {
    Duration since_origin{0};
    auto operator<=>(const TimePoint&) const = default;
    static constexpr TimePoint never() { return {Duration::max()}; }
    constexpr TimePoint operator+(Duration d) const { return {since_origin + d}; }
    constexpr Duration operator-(TimePoint o) const { return since_origin - o.since_origin; }
};

struct WallTime {
    Duration since_epoch{0};
    auto operator<=>(const WallTime&) const = default;
    constexpr std::int64_t seconds() const { return since_epoch.count() / 1'000'000'000; }
};

constexpr double to_ms(Duration d) { return static_cast<double>(d.count()) / 1e6; }
constexpr double to_seconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }

using TokenId = std::int32_t;      // index into the model's vocabulary
using TokenCount = std::uint32_t;  // a number of tokens; positions too
using ByteCount = std::uint64_t;

}  // namespace nereid
