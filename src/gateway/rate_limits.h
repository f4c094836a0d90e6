// What a caller is told of its limits, in the headers of OpenAI
// (x-ratelimit-{limit,remaining,reset}-WHAT) or Anthropic
// (anthropic-ratelimit-WHAT-{limit,remaining,reset}). Whoever enforces a limit says it here; today
// that is a key's requests in flight. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/units.h"
#include "io/http.h"

namespace nereid::gateway {

struct RateLimit {
    std::string_view
        what;  // "requests", "tokens"; of Anthropic's also "input-tokens", "output-tokens"
    std::int64_t limit = 0;
    std::int64_t remaining = 0;
    Duration reset{0};  // until there is more; an estimate
};

// `messages`: Anthropic's names, and times of day instead of durations.
void add_rate_limits(io::Headers& headers, std::span<const RateLimit> limits, bool messages,
                     WallTime now);

}  // namespace nereid::gateway
