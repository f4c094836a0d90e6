#include "dialect/rfc3339.h"

#include <fmt/format.h>

namespace nereid::dialect {

// Days since 1970-01-01 -> date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
std::string rfc3339(std::int64_t unix_seconds) {
    const std::int64_t second = ((unix_seconds % 86400) + 86400) % 86400;
    const std::int64_t days = (unix_seconds - second) / 86400 + 719468;
    const std::int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    const std::int64_t doe = days - era * 146097;
    const std::int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    const std::int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    const std::int64_t mp = (5 * doy + 2) / 153;
    const std::int64_t month = mp < 10 ? mp + 3 : mp - 9;
    const std::int64_t year = yoe + era * 400 + (month <= 2 ? 1 : 0);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", year, month,
                       doy - (153 * mp + 2) / 5 + 1, second / 3600, second / 60 % 60, second % 60);
}

}  // namespace nereid::dialect
