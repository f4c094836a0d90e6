#include "gateway/rate_limits.h"

#include <fmt/format.h>

#include "dialect/rfc3339.h"

namespace nereid::gateway {
namespace {

// As OpenAI writes durations: "0s", "250ms", "6m0s".
std::string shown(Duration d) {
    const std::int64_t ms = d / 1ms;
    if (ms % 1000 != 0 && ms < 1000) return fmt::format("{}ms", ms);
    const std::int64_t seconds = (ms + 999) / 1000;
    return seconds < 60 ? fmt::format("{}s", seconds)
                        : fmt::format("{}m{}s", seconds / 60, seconds % 60);
}

}  // namespace

void add_rate_limits(io::Headers& headers, std::span<const RateLimit> limits, bool messages,
                     WallTime now) {
    for (const RateLimit& one : limits) {
        const auto add = [&](std::string_view name, const std::string& value) {
            headers.add(messages ? fmt::format("anthropic-ratelimit-{}-{}", one.what, name)
                                 : fmt::format("x-ratelimit-{}-{}", name, one.what),
                        value);
        };
        add("limit", fmt::to_string(one.limit));
        add("remaining", fmt::to_string(one.remaining));
        add("reset", messages ? dialect::rfc3339(now.seconds() + (one.reset + 999ms) / 1s)
                              : shown(one.reset));
    }
}

}  // namespace nereid::gateway
