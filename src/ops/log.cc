#include "ops/log.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>

#include "base/hash.h"
#include "base/json.h"

namespace nereid::ops {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warn", "error", "off"};

void append_value(std::string& out, const LogValue& value) {
    std::visit(
        [&out]<class T>(const T& v) {
            if constexpr (std::is_same_v<T, std::string>) {
                append_json_string(out, std::string_view(v).substr(0, kMaxLogString));
            } else {
                JsonWriter(out).value(v);
            }
        },
        value.get());
}

void append_fields(std::string& out, const Fields& fields) {
    for (const Field& field : fields) {
        out.push_back(',');
        append_json_string(out, field.key);
        out.push_back(':');
        append_value(out, field.value);
    }
}

// Fixed-width decimal.
void append_digits(std::string& out, std::int64_t v, int width) {
    char raw[20];
    for (int i = width - 1; i >= 0; --i) {
        raw[i] = static_cast<char>('0' + v % 10);
        v /= 10;
    }
    out.append(raw, static_cast<std::size_t>(width));
}

}  // namespace

// ---------------------------------------------------------------- Secret

Secret::Secret(Secret&& other) noexcept : text_(other.text_) { other.wipe(); }

Secret& Secret::operator=(const Secret& other) {
    if (this != &other) {
        wipe();
        text_ = other.text_;
    }
    return *this;
}

Secret& Secret::operator=(Secret&& other) noexcept {
    if (this != &other) {
        wipe();
        text_ = other.text_;
        other.wipe();
    }
    return *this;
}

Secret::~Secret() { wipe(); }

bool Secret::operator==(const Secret& other) const {
    return equal_constant_time(as_bytes(text_), as_bytes(other.text_));
}

void Secret::wipe() noexcept {
    OPENSSL_cleanse(text_.data(), text_.size());
    text_.clear();
}

// ---------------------------------------------------------------- levels

std::string_view level_name(Level level) { return kLevelNames[static_cast<std::size_t>(level)]; }

Result<Level> parse_level(std::string_view name) {
    for (std::size_t i = 0; i < std::size(kLevelNames); ++i) {
        if (kLevelNames[i] == name) return static_cast<Level>(i);
    }
    return err(Code::kInvalidArgument,
               "unknown log level; the levels are debug, info, warn, error, off");
}

// ---------------------------------------------------------------- sinks

void FdSink::write(std::string_view line) {
    const std::scoped_lock lock(mutex_);
    std::string mended;
    if (torn_) {
        mended.reserve(line.size() + 1);
        mended.append(1, '\n').append(line);
        line = mended;
    }
    std::size_t done = 0;
    while (done < line.size()) {
        const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            dropped_.fetch_add(1, std::memory_order_relaxed);
            torn_ = torn_ ? done != 1 : done != 0;
            return;
        }
        done += static_cast<std::size_t>(n);
    }
    torn_ = false;
}

void MemorySink::write(std::string_view line) {
    const std::scoped_lock lock(mutex_);
    if (line.ends_with('\n')) line.remove_suffix(1);
    lines_.emplace_back(line);
}

std::vector<std::string> MemorySink::lines() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
}

bool MemorySink::contains(std::string_view text) const {
    const std::scoped_lock lock(mutex_);
    return std::any_of(lines_.begin(), lines_.end(), [text](const std::string& line) {
        return line.find(text) != std::string::npos;
    });
}

// ---------------------------------------------------------------- Logger

Logger::Logger(Sink& sink, std::function<WallTime()> now, Level level)
    : core_(std::make_shared<Core>(&sink, std::move(now), level)) {}

Logger::Logger() : core_(std::make_shared<Core>(nullptr, nullptr, Level::kOff)) {}

Logger Logger::with(const Fields& bound) const {
    Logger child = *this;
    append_fields(child.bound_, bound);
    return child;
}

void Logger::log(Level level, std::string_view message, const Fields& fields) const {
    if (!enabled(level) || core_->sink == nullptr || level == Level::kOff) return;
    std::string line;
    line.reserve(256 + bound_.size() + message.size());
    line.append("{\"ts\":\"").append(format_time(core_->now())).append("\",\"level\":\"");
    line.append(level_name(level)).append("\",\"msg\":");
    append_json_string(line, message.substr(0, kMaxLogString));
    line.append(bound_);
    append_fields(line, fields);
    line.append("}\n");
    core_->sink->write(line);
}

std::string format_time(WallTime t) {
    using std::chrono::floor;
    const std::chrono::sys_time<Duration> at(t.since_epoch);
    const auto day = floor<std::chrono::days>(at);
    const std::chrono::year_month_day date(day);
    const std::chrono::hh_mm_ss time(floor<std::chrono::microseconds>(at - day));
    std::string out;
    out.reserve(27);
    append_digits(out, static_cast<int>(date.year()), 4);
    out.push_back('-');
    append_digits(out, static_cast<unsigned>(date.month()), 2);
    out.push_back('-');
    append_digits(out, static_cast<unsigned>(date.day()), 2);
    out.push_back('T');
    append_digits(out, time.hours().count(), 2);
    out.push_back(':');
    append_digits(out, time.minutes().count(), 2);
    out.push_back(':');
    append_digits(out, time.seconds().count(), 2);
    out.push_back('.');
    append_digits(out, time.subseconds().count(), 6);
    out.push_back('Z');
    return out;
}

}  // namespace nereid::ops
