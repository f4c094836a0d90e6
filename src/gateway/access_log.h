// AccessLog: where the line per request goes. One write(2) per line (ops::FdSink); a line that
// cannot be written is dropped and counted, a request never waits for its line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "ops/log.h"

namespace nereid::gateway {

class AccessLog {
  public:
    AccessLog() = default;
    ~AccessLog();
    AccessLog(const AccessLog&) = delete;
    AccessLog& operator=(const AccessLog&) = delete;

    // "stderr", "off", or a file (appended to; made with mode 0640). Once, before write(). kConfig
    // with the mend.
    Result<void> open(const std::string& target);
    // Opens the file again under its name (log rotation), while others write. After an error the
    // old one goes on.
    Result<void> reopen();
    bool enabled() const { return sink_ != nullptr; }
    // `line` ends in '\n'. Any thread.
    void write(std::string_view line) { sink_->write(line); }
    std::uint64_t dropped() const { return sink_ == nullptr ? 0 : sink_->dropped(); }

  private:
    std::string path_;  // empty: no file
    int fd_ = -1;       // ours when path_ is set
    std::unique_ptr<ops::FdSink> sink_;
};

}  // namespace nereid::gateway
