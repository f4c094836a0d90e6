#include "app/logging.h"

#include <unistd.h>

namespace nereid::app {

void LogOptions::bind(io::ConfigBinder& b) {
    b.knob("log.level", level,
           {.choices = {"debug", "info", "warn", "error", "off"},
            .reload = true,
            .doc = "Lines below this level are not written."});
}

ops::Level LogOptions::parsed() const {
    const auto parsed = ops::parse_level(level);
    return parsed.ok() ? *parsed : ops::Level::kInfo;
}

ProcessLog::ProcessLog(const LogOptions& options, const io::Clock& clock)
    : sink_(STDERR_FILENO),
      logger_(sink_, [&clock] { return clock.wall_now(); }, options.parsed()) {}

}  // namespace nereid::app
