// The process's log: lines on standard error, and the knobs "log.*".
#pragma once

#include <string>

#include "io/config.h"
#include "io/loop.h"
#include "ops/log.h"

namespace nereid::app {

struct LogOptions {
    std::string level = "info";
    void bind(io::ConfigBinder& b);
    ops::Level parsed() const;  // of a bound value
};

class ProcessLog {
  public:
    // `clock` gives the time of lines, from any thread, and outlives this.
    ProcessLog(const LogOptions& options, const io::Clock& clock);
    ops::Logger& logger() { return logger_; }

  private:
    ops::FdSink sink_;
    ops::Logger logger_;
};

}  // namespace nereid::app
