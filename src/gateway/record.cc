#include "gateway/record.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "ops/log.h"

namespace nereid::gateway {
namespace {

// Names of fields are the caller's: they must not fill the log.
constexpr std::size_t kMaxIgnoredShown = 16;
constexpr std::size_t kMaxFieldShown = 64;

// Milliseconds with three decimals: microseconds are as fine as anybody reads, and a shortest
// double costs ten times as much.
void append_ms(std::string& out, Duration d) {
    const auto us = std::max<std::int64_t>(d / 1us, 0);
    char digits[32];
    char* at = std::to_chars(digits, digits + 24, us / 1000).ptr;
    const auto rest = us % 1000;
    *at++ = '.';
    *at++ = static_cast<char>('0' + rest / 100);
    *at++ = static_cast<char>('0' + rest / 10 % 10);
    *at++ = static_cast<char>('0' + rest % 10);
    out.append(digits, at);
}

bool known(TimePoint t) { return t != TimePoint{}; }

void timing(std::string& out, std::string_view name, Duration d) {
    if (d <= Duration{0}) return;
    if (!out.empty()) out += ", ";
    out += name;
    out += ";dur=";
    append_ms(out, d);
}

void member_ms(JsonWriter& w, std::string_view key, Duration d) {
    std::string text;  // short: no allocation
    append_ms(text, d);
    w.key(key).raw(text);
}

void member_if(JsonWriter& w, std::string_view key, const std::string& value) {
    if (!value.empty()) w.member(key, std::string_view(value));
}

}  // namespace

std::string access_line(const RequestRecord& r, TimePoint ended, WallTime wall) {
    std::string out;
    out.reserve(512);
    JsonWriter w(out);
    w.begin_object();
    w.member("ts", std::string_view(ops::format_time(wall)))
        .member("level", "info")
        .member("msg", "request");
    w.member("id", std::string_view(r.id));
    member_if(w, "trace", r.trace_id);
    member_if(w, "peer", r.peer);
    member_if(w, "key", r.key);
    w.member("route", to_string(r.route));
    member_if(w, "model", r.model);
    w.member("status", r.status);
    w.member("stream", r.stream);
    w.member("end", std::string_view(r.end));
    member_if(w, "worker", r.worker);
    member_ms(w, "total_ms", ended - r.received);
    if (known(r.first_token)) member_ms(w, "first_token_ms", r.first_token - r.received);
    if (r.render > Duration{0}) member_ms(w, "render_ms", r.render);
    if (r.queue + r.prefill + r.decode > Duration{0}) {  // a text engine does not tell
        member_ms(w, "queue_ms", r.queue);
        member_ms(w, "restore_ms", r.restore);
        member_ms(w, "prefill_ms", r.prefill);
        member_ms(w, "decode_ms", r.decode);
    }
    if (r.prompt_tokens != 0) {
        w.member("cached_tokens", r.cached_tokens);
        w.member("in_tokens", r.prompt_tokens);
        w.member("out_tokens", r.completion_tokens);
    }
    if (r.dropped_messages != 0) w.member("dropped_messages", r.dropped_messages);
    if (r.keepalives != 0) w.member("keepalives", r.keepalives);
    if (!r.ignored_fields.empty()) {
        w.key("ignored").begin_array();
        const auto shown = std::min(r.ignored_fields.size(), kMaxIgnoredShown);
        for (std::size_t i = 0; i < shown; ++i)
            w.value(std::string_view(r.ignored_fields[i]).substr(0, kMaxFieldShown));
        w.end_array();
    }
    w.end_object();
    out += '\n';
    return out;
}

std::string server_timing(const RequestRecord& r, TimePoint now) {
    std::string out;
    out.reserve(128);
    timing(out, "render", r.render);
    timing(out, "queue", r.queue);
    timing(out, "restore", r.restore);
    timing(out, "prefill", r.prefill);
    if (known(r.first_token)) timing(out, "first_token", r.first_token - r.received);
    timing(out, "decode", r.decode);
    timing(out, "total", now - r.received);
    return out;
}

std::string_view sane_request_id(std::string_view offered) {
    const auto sane = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == ':' || c == '-';
    };
    const bool ok = !offered.empty() && offered.size() <= 128 && std::ranges::all_of(offered, sane);
    return ok ? offered : std::string_view{};
}

}  // namespace nereid::gateway
