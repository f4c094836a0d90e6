// LineSplitter: cuts bytes that arrive in pieces into lines without their '\n' (or "\r\n"). A line
// over `max_bytes` is given once, cut, and the rest of it is dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace nereid::io {

class LineSplitter {
  public:
    using OnLine = std::function<void(std::string_view)>;
    LineSplitter(std::size_t max_bytes, OnLine on_line)
        : max_bytes_(max_bytes), on_line_(std::move(on_line)) {}

    void add(std::string_view bytes) {
        while (!bytes.empty()) {
            const std::size_t end = bytes.find('\n');
            const std::string_view part = bytes.substr(0, end);
            if (!dropping_) line_.append(part.substr(0, max_bytes_ - line_.size()));
            if (end == std::string_view::npos) {
                if (!dropping_ && line_.size() == max_bytes_) give(true);
                return;
            }
            if (!dropping_) give(false);
            dropping_ = false;
            bytes.remove_prefix(end + 1);
        }
    }
    // The bytes after the last '\n', at the end of the stream.
    void finish() {
        if (!line_.empty()) give(false);
    }

  private:
    void give(bool cut) {
        std::string_view line = line_;
        if (!cut && line.ends_with('\r')) line.remove_suffix(1);
        on_line_(line);
        line_.clear();
        dropping_ = cut;
    }
    std::size_t max_bytes_;
    OnLine on_line_;
    std::string line_;
    bool dropping_ = false;  // until the next '\n'
};

}  // namespace nereid::io
