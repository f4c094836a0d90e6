// Structured logs: one JSON object per line.
//
// A Logger formats on the caller's thread and hands the finished line to its Sink: nothing is
// queued, so nothing is lost at a crash, and a sink that cannot take a line drops it and counts.
// Loggers are small values; a child made by with() carries bound fields ("component", "request_id")
// and shares sink, clock and level with its parent. Any thread may log. The level may be changed
// while running. Cost: about 1 us and one system call a line; nothing below the level.
//
// A line: {"ts":"2026-11-29T16:40:00.123456Z","level":"info","msg":"...", bound fields...,
// fields...}. Keys are literals of ours, snake_case, and not ts, level or msg. Strings are cut at
// kMaxLogString bytes, and invalid UTF-8 is replaced. What must not be read by people or machines
// is a Secret, which prints as "[redacted]" (cases O40, O41).
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nereid::ops {

// A credential or other text that must never be shown: it has no formatter and no stream operator,
// compares in constant time, and is wiped when it goes.
class Secret {
  public:
    Secret() = default;
    explicit Secret(std::string text) : text_(std::move(text)) {}
    Secret(const Secret&) = default;
    Secret(Secret&& other) noexcept;
    Secret& operator=(const Secret& other);
    Secret& operator=(Secret&& other) noexcept;
    ~Secret();

    const std::string& reveal() const {
        return text_;
    }  // for the one place that sends or checks it
    bool empty() const { return text_.empty(); }
    bool operator==(const Secret& other) const;

  private:
    void wipe() noexcept;
    std::string text_;
};

enum class Level : std::uint8_t { kDebug, kInfo, kWarn, kError, kOff };
std::string_view level_name(Level level);
Result<Level> parse_level(std::string_view name);  // kInvalidArgument naming the choices

// A value of a field. Durations are logged in milliseconds: name the key `..._ms`.
class LogValue {
  public:
    LogValue(std::string v) : v_(std::move(v)) {}         // NOLINT(google-explicit-constructor)
    LogValue(std::string_view v) : v_(std::string(v)) {}  // NOLINT(google-explicit-constructor)
    LogValue(const char* v) : v_(std::string(v)) {}       // NOLINT(google-explicit-constructor)
    LogValue(bool v) : v_(v) {}                           // NOLINT(google-explicit-constructor)
    LogValue(double v) : v_(v) {}                         // NOLINT(google-explicit-constructor)
    LogValue(Duration v) : v_(to_ms(v)) {}                // NOLINT(google-explicit-constructor)
    LogValue(const Secret&)
        : v_(std::string("[redacted]")) {}  // NOLINT(google-explicit-constructor)
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    LogValue(T v) {  // NOLINT(google-explicit-constructor)
        if constexpr (std::is_signed_v<T>)
            v_ = static_cast<std::int64_t>(v);
        else
            v_ = static_cast<std::uint64_t>(v);
    }

    const auto& get() const { return v_; }

  private:
    std::variant<std::string, bool, std::int64_t, std::uint64_t, double> v_;
};

struct Field {
    std::string key;
    LogValue value;
};
using Fields = std::vector<Field>;

// Where lines go. May be called from any thread.
class Sink {
  public:
    virtual ~Sink() = default;
    virtual void write(std::string_view line) = 0;  // ends in '\n'
    virtual std::uint64_t dropped() const = 0;      // lines that were lost, whole or in part
};

// A file descriptor: stderr, a file opened with O_APPEND, a pipe. One write(2) per line, so that
// lines of several processes do not mix (files; pipes up to PIPE_BUF). When the descriptor would
// block (non-blocking pipe to a slow reader) or fails, the line is dropped and counted; a line that
// went out in part is ended by a line break before the next. A blocking descriptor blocks the
// caller. A pipe without reader raises SIGPIPE: the process ignores that signal.
class FdSink final : public Sink {
  public:
    explicit FdSink(int fd) : fd_(fd) {}  // not owned
    void write(std::string_view line) override;
    std::uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }

  private:
    int fd_;
    std::mutex mutex_;
    bool torn_ = false;  // under mutex_: the last line went out without its end
    std::atomic<std::uint64_t> dropped_{0};
};

// Keeps lines, for tests.
class MemorySink final : public Sink {
  public:
    void write(std::string_view line) override;
    std::uint64_t dropped() const override { return 0; }
    std::vector<std::string> lines() const;  // without their '\n'
    bool contains(std::string_view text) const;

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
};

inline constexpr std::size_t kMaxLogString = 8192;

class Logger {
  public:
    // `now` gives Unix time (io's); called once per line, from any thread that logs. `sink`
    // outlives every logger.
    Logger(Sink& sink, std::function<WallTime()> now, Level level = Level::kInfo);
    // Logs nothing.
    Logger();

    Logger with(const Fields& bound) const;
    void set_level(Level level) {
        core_->level.store(level, std::memory_order_relaxed);
    }  // of the whole family
    bool enabled(Level level) const {
        return level >= core_->level.load(std::memory_order_relaxed);
    }
    std::uint64_t dropped() const { return core_->sink == nullptr ? 0 : core_->sink->dropped(); }

    void log(Level level, std::string_view message, const Fields& fields = {}) const;
    void debug(std::string_view message, const Fields& fields = {}) const {
        log(Level::kDebug, message, fields);
    }
    void info(std::string_view message, const Fields& fields = {}) const {
        log(Level::kInfo, message, fields);
    }
    void warn(std::string_view message, const Fields& fields = {}) const {
        log(Level::kWarn, message, fields);
    }
    void error(std::string_view message, const Fields& fields = {}) const {
        log(Level::kError, message, fields);
    }

  private:
    struct Core {
        Sink* sink;
        std::function<WallTime()> now;
        std::atomic<Level> level;
    };
    std::shared_ptr<Core> core_;
    std::string bound_;  // serialised members, each with its leading comma
};

// "2026-11-29T16:40:00.123456Z" (RFC 3339, UTC, microseconds, cut not rounded). Years 0000 to 9999.
std::string format_time(WallTime t);

}  // namespace nereid::ops
