// Unix time as Anthropic's objects print it.
#pragma once

#include <cstdint>
#include <string>

namespace nereid::dialect {

// "2026-11-29T19:00:00Z"; years beyond 9999 print as they are.
std::string rfc3339(std::int64_t unix_seconds);

}  // namespace nereid::dialect
