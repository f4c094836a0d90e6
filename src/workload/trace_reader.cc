// Readers of trace.h: lines from pieces, then one parser per format.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "base/json.h"
#include "workload/compact.h"
#include "workload/trace.h"

namespace nereid::workload {

namespace {

constexpr std::size_t kMaxLine = 4 << 20;
constexpr std::int64_t kMaxTokens = 100'000'000;  // more is a broken file, not a prompt
constexpr double kMaxSeconds = 1e9;               // 31 years

std::unexpected<Error> bad(std::string field, std::string_view what) {
    std::string message = field + ": " + std::string(what);
    return err(Code::kInvalidArgument, std::move(message), std::move(field));
}

Result<std::int64_t> integer(const Json& line, std::string_view key, std::int64_t min,
                             std::int64_t max) {
    const Json* v = line.find(key);
    if (v == nullptr) return bad(std::string(key), "missing");
    const auto expected = [&](const std::string& found) {
        return bad(std::string(key),
                   fmt::format("expected an integer from {} to {}, found {}", min, max, found));
    };
    if (!v->is_number()) return expected(std::string(v->kind_name()));
    const auto value = v->as_int();
    if (!value || *value < min || *value > max)
        return expected(fmt::format("{:.17g}", v->as_double()));
    return *value;
}

// Splits pieces into lines; calls on_line for each.
class Lines {
  public:
    template <class F>
    Result<void> feed(std::string_view piece, F&& on_line) {
        while (!piece.empty()) {
            const auto end = piece.find('\n');
            const bool whole = end != std::string_view::npos;
            const std::string_view part = piece.substr(0, whole ? end : piece.size());
            if (rest_.size() + part.size() > kMaxLine)
                return err(Code::kTooLarge,
                           fmt::format("line {}: over {} bytes", number_ + 1, kMaxLine));
            piece.remove_prefix(whole ? end + 1 : piece.size());
            if (!whole) {
                rest_.append(part);
                break;
            }
            if (rest_.empty()) {
                TRY_VOID(one(part, on_line));
            } else {
                rest_.append(part);
                TRY_VOID(one(rest_, on_line));
                rest_.clear();
            }
        }
        return {};
    }
    template <class F>
    Result<void> finish(F&& on_line) {
        if (rest_.empty()) return {};
        return one(std::exchange(rest_, {}), on_line);
    }

  private:
    template <class F>
    Result<void> one(std::string_view line, F&& on_line) {
        ++number_;
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.find_first_not_of(" \t") == std::string_view::npos) return {};
        Result<void> done = on_line(line);
        if (done.ok()) return done;
        Error e = done.error();
        e.message = fmt::format("line {}: {}", number_, e.message);
        return e;
    }
    std::string rest_;
    std::size_t number_ = 0;
};

// "2023-11-16 18:17:03.9799600" or "...T...", an optional offset "+00:00" or "Z" -> seconds and
// nanoseconds since the epoch of the proleptic Gregorian calendar.
std::optional<Duration> parse_wall_time(std::string_view s) {
    const auto digits = [&s](std::size_t at, std::size_t n) -> std::optional<std::int64_t> {
        if (s.size() < at + n) return std::nullopt;
        std::int64_t v = 0;
        for (std::size_t i = at; i < at + n; ++i) {
            if (s[i] < '0' || s[i] > '9') return std::nullopt;
            v = v * 10 + (s[i] - '0');
        }
        return v;
    };
    const auto year = digits(0, 4), month = digits(5, 2), day = digits(8, 2);
    const auto hour = digits(11, 2), minute = digits(14, 2), second = digits(17, 2);
    if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
    if (s[4] != '-' || s[7] != '-' || (s[10] != ' ' && s[10] != 'T') || s[13] != ':' ||
        s[16] != ':')
        return std::nullopt;
    const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)),
                                           std::chrono::month(static_cast<unsigned>(*month)),
                                           std::chrono::day(static_cast<unsigned>(*day))};
    if (!date.ok() || *year < 1970 || *year > 2200 || *hour > 23 || *minute > 59 || *second > 60)
        return std::nullopt;
    s.remove_prefix(19);
    std::int64_t nanoseconds = 0;
    if (s.starts_with('.')) {
        s.remove_prefix(1);
        std::int64_t unit = 100'000'000;
        if (s.empty() || s[0] < '0' || s[0] > '9') return std::nullopt;
        for (; !s.empty() && s[0] >= '0' && s[0] <= '9'; s.remove_prefix(1), unit /= 10)
            nanoseconds += unit * (s[0] - '0');
    }
    std::int64_t offset_minutes = 0;
    if (s.size() == 6 && (s[0] == '+' || s[0] == '-') && s[3] == ':') {
        const auto h = digits(1, 2), m = digits(4, 2);
        if (!h || !m || *h > 14 || *m > 59) return std::nullopt;
        offset_minutes = (s[0] == '-' ? -1 : 1) * (*h * 60 + *m);
    } else if (!s.empty() && s != "Z") {
        return std::nullopt;
    }
    const std::chrono::sys_days days{date};
    return std::chrono::seconds(days.time_since_epoch()) + std::chrono::hours(*hour) +
           std::chrono::minutes(*minute - offset_minutes) + std::chrono::seconds(*second) +
           Duration(nanoseconds);
}

}  // namespace

struct TraceReader::State {
    explicit State(TraceFormat f)
        : format(f),
          trace(f == TraceFormat::kMooncake  ? 512
                : f == TraceFormat::kBailian ? 16
                                             : 0) {}

    Result<void> json_line(std::string_view line);
    Result<void> csv_line(std::string_view line);
    Result<void> session_of(const Json& line, std::uint64_t& session, std::uint32_t& turn);

    TraceFormat format;
    Trace trace;
    Lines lines;
    std::string compact;  // kCompact: the whole file
    std::vector<std::uint64_t> chain;
    // kBailian: root chat and depth of every chat seen.
    std::unordered_map<std::int64_t, std::pair<std::uint64_t, std::uint32_t>> chats;
    std::uint64_t sessions = 0;
    int columns[3] = {-1, -1, -1};  // kAzure
    bool header = false;
    std::optional<Error> failed;
    bool spent = false;
};

// Bailian: parent_chat_id is -1 for a first turn; a parent that is not in the file begins a
// session.
Result<void> TraceReader::State::session_of(const Json& line, std::uint64_t& session,
                                            std::uint32_t& turn) {
    if (line.find("chat_id") == nullptr) return {};
    constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
    TRY(const std::int64_t chat, integer(line, "chat_id", 0, kAny));
    std::int64_t parent = -1;
    if (line.find("parent_chat_id") != nullptr) {
        TRY(parent, integer(line, "parent_chat_id", -1, kAny));
    }
    const auto found = parent < 0 ? chats.end() : chats.find(parent);
    if (found != chats.end()) {
        session = found->second.first;
        turn = found->second.second + 1;
    } else {
        session = ++sessions;
        turn = 0;
    }
    chats[chat] = {session, turn};
    return {};
}

Result<void> TraceReader::State::json_line(std::string_view line) {
    TRY(const Json j, Json::parse(line));
    if (!j.is_object())
        return bad("line", fmt::format("expected an object, found {}", j.kind_name()));
    const Json* stamp = j.find("timestamp");
    if (stamp == nullptr || !stamp->is_number())
        return bad("timestamp", stamp == nullptr ? "missing" : "expected a number");
    const double unit_s = format == TraceFormat::kMooncake ? 1e-3 : 1;
    const double seconds = stamp->as_double() * unit_s;
    if (!(seconds >= 0 && seconds <= kMaxSeconds)) return bad("timestamp", "negative or too large");
    TRY(const std::int64_t input, integer(j, "input_length", 1, kMaxTokens));
    TRY(const std::int64_t output, integer(j, "output_length", 0, kMaxTokens));
    chain.clear();
    if (const Json* ids = j.find("hash_ids"); ids != nullptr) {
        if (!ids->is_array()) return bad("hash_ids", "expected an array");
        const auto most = static_cast<std::size_t>(input / trace.block_tokens() + 1);
        if (ids->size() > most)
            return bad("hash_ids", fmt::format("{} ids for {} tokens in blocks of {}", ids->size(),
                                               input, trace.block_tokens()));
        for (const Json& id : ids->as_array()) {
            const auto value = id.is_number() ? id.as_int() : std::nullopt;
            if (!value || *value < 0) return bad("hash_ids", "expected integers >= 0");
            chain.push_back(static_cast<std::uint64_t>(*value));
        }
    }
    std::uint64_t session = 0;
    std::uint32_t turn = 0;
    TRY_VOID(session_of(j, session, turn));
    trace.add(Duration(static_cast<std::int64_t>(std::llround(seconds * 1e9))),
              static_cast<TokenCount>(input),
              static_cast<TokenCount>(std::max<std::int64_t>(output, 1)), chain, session, turn);
    return {};
}

Result<void> TraceReader::State::csv_line(std::string_view line) {
    std::vector<std::string_view> cells;
    for (std::size_t at = 0; at <= line.size();) {
        const auto end = std::min(line.find(',', at), line.size());
        std::string_view cell = line.substr(at, end - at);
        if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
            cell = cell.substr(1, cell.size() - 2);
        cells.push_back(cell);
        at = end + 1;
    }
    constexpr std::string_view kNames[] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
    if (!header) {
        header = true;
        if (cells[0].starts_with("\xef\xbb\xbf")) cells[0].remove_prefix(3);
        for (std::size_t c = 0; c < cells.size(); ++c) {
            for (std::size_t k = 0; k < 3; ++k) {
                if (cells[c] == kNames[k]) columns[k] = static_cast<int>(c);
            }
        }
        for (std::size_t k = 0; k < 3; ++k) {
            if (columns[k] < 0) return bad(std::string(kNames[k]), "no such column in the header");
        }
        return {};
    }
    std::int64_t values[3] = {};
    Duration when{0};
    for (std::size_t k = 0; k < 3; ++k) {
        const auto c = static_cast<std::size_t>(columns[k]);
        if (c >= cells.size()) return bad(std::string(kNames[k]), "missing");
        const std::string_view cell = cells[c];
        if (k == 0) {
            const auto t = parse_wall_time(cell);
            if (!t) return bad("TIMESTAMP", "expected YYYY-MM-DD HH:MM:SS[.digits]");
            when = *t;
            continue;
        }
        const auto [end, error] = std::from_chars(cell.begin(), cell.end(), values[k]);
        if (error != std::errc{} || end != cell.end() || values[k] < 0 || values[k] > kMaxTokens)
            return bad(std::string(kNames[k]),
                       fmt::format("expected an integer from 0 to {}", kMaxTokens));
    }
    // Azure's trace has requests that generated nothing, or came without a prompt.
    trace.add(when, static_cast<TokenCount>(std::max<std::int64_t>(values[1], 1)),
              static_cast<TokenCount>(std::max<std::int64_t>(values[2], 1)), {});
    return {};
}

TraceReader::TraceReader(TraceFormat format) : state_(std::make_unique<State>(format)) {}
TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;

Result<void> TraceReader::feed(std::string_view piece) {
    State& s = *state_;
    CHECK_MSG(!s.spent, "a trace reader is used after finish()");
    if (s.failed) return *s.failed;
    if (s.format == TraceFormat::kCompact) {
        s.compact.append(piece);
        return {};
    }
    Result<void> done = s.lines.feed(piece, [&s](std::string_view line) {
        return s.format == TraceFormat::kAzure ? s.csv_line(line) : s.json_line(line);
    });
    if (!done.ok()) s.failed = done.error();
    return done;
}

Result<Trace> TraceReader::finish() {
    State& s = *state_;
    CHECK_MSG(!s.spent, "a trace reader is used after finish()");
    s.spent = true;
    if (s.failed) return *s.failed;
    if (s.format == TraceFormat::kCompact) return read_compact(s.compact);
    TRY_VOID(s.lines.finish([&s](std::string_view line) {
        return s.format == TraceFormat::kAzure ? s.csv_line(line) : s.json_line(line);
    }));
    if (s.trace.empty()) return err(Code::kInvalidArgument, "the trace holds no request");
    s.trace.sort();
    return std::move(s.trace);
}

Result<Trace> parse_trace(TraceFormat format, std::string_view text) {
    if (format == TraceFormat::kCompact) return read_compact(text);
    TraceReader reader(format);
    TRY_VOID(reader.feed(text));
    return reader.finish();
}

Result<TraceFormat> trace_format_of(std::string_view file_name) {
    const auto slash = file_name.rfind('/');
    const std::string_view name =
        slash == std::string_view::npos ? file_name : file_name.substr(slash + 1);
    if (name.ends_with(".jsonl")) {
        const bool bailian = name.find("qwen") != std::string_view::npos ||
                             name.find("blksz") != std::string_view::npos;
        return bailian ? TraceFormat::kBailian : TraceFormat::kMooncake;
    }
    if (name.ends_with(".csv")) return TraceFormat::kAzure;
    if (name.ends_with(".ntrace")) return TraceFormat::kCompact;
    return err(
        Code::kInvalidArgument,
        fmt::format(
            "{}: no trace format has this ending (.jsonl Mooncake or Qwen-Bailian, .csv Azure, "
            ".ntrace compact)",
            name));
}

}  // namespace nereid::workload
