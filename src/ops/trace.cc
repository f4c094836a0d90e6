#include "ops/trace.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace nereid::ops {
namespace {

constexpr std::size_t kLength = 55;  // of version 00: 2 + 1 + 32 + 1 + 16 + 1 + 2
constexpr std::uint8_t kKnownFlags = TraceContext::kSampled | TraceContext::kRandomId;
constexpr std::size_t kMaxMembers = 32;
constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxValue = 256;

// Lower case only: the specification calls upper-case digits invalid.
bool read_hex(std::string_view hex, std::span<std::uint8_t> out) {
    return std::none_of(hex.begin(), hex.end(), [](char c) { return c >= 'A' && c <= 'F'; }) &&
           from_hex(hex, out);
}

bool all_zero(std::span<const std::uint8_t> id) {
    return std::all_of(id.begin(), id.end(), [](std::uint8_t b) { return b == 0; });
}

void fill_id(std::span<std::uint8_t> id, Prng& prng) {
    do {
        for (std::size_t i = 0; i < id.size(); i += 8) {
            const std::uint64_t word = prng.next();
            std::memcpy(id.data() + i, &word, 8);
        }
    } while (all_zero(id));
}

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// key = ( lcalpha / DIGIT ) 0*255( lcalpha / DIGIT / "_" / "-" / "*" / "/" / "@" ), as level 2
// simplified it.
bool is_key(std::string_view key) {
    if (key.empty() || key.size() > kMaxKey || !(is_lower(key[0]) || is_digit(key[0])))
        return false;
    return std::all_of(key.begin(), key.end(), [](char c) {
        return is_lower(c) || is_digit(c) || std::string_view("_-*/@").contains(c);
    });
}

// value = 0*255(chr) nblk-chr; chr is printable ASCII without ',' and '='.
bool is_value(std::string_view value) {
    if (value.empty() || value.size() > kMaxValue || value.back() == ' ') return false;
    return std::all_of(value.begin(), value.end(),
                       [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

std::string_view trimmed(std::string_view s) {
    const auto first = s.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return s.substr(first, s.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::string TraceContext::trace_id_hex() const { return to_hex(trace_id); }
std::string TraceContext::span_id_hex() const { return to_hex(span_id); }

std::optional<TraceContext> parse_traceparent(std::string_view header) {
    if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-')
        return std::nullopt;
    std::array<std::uint8_t, 1> version;
    std::array<std::uint8_t, 1> flags;
    TraceContext context;
    if (!read_hex(header.substr(0, 2), version) || version[0] == 0xff) return std::nullopt;
    if (header.size() > kLength && (version[0] == 0 || header[kLength] != '-')) return std::nullopt;
    if (!read_hex(header.substr(3, 32), context.trace_id) || all_zero(context.trace_id))
        return std::nullopt;
    if (!read_hex(header.substr(36, 16), context.span_id) || all_zero(context.span_id))
        return std::nullopt;
    if (!read_hex(header.substr(53, 2), flags)) return std::nullopt;
    context.flags = flags[0] & kKnownFlags;
    return context;
}

std::string format_traceparent(const TraceContext& context) {
    const std::array<std::uint8_t, 1> flags{static_cast<std::uint8_t>(context.flags & kKnownFlags)};
    return "00-" + context.trace_id_hex() + "-" + context.span_id_hex() + "-" + to_hex(flags);
}

std::optional<std::string> parse_tracestate(std::string_view header) {
    std::string out;
    std::vector<std::string_view> keys;
    while (true) {
        const auto comma = header.find(',');
        const std::string_view member = trimmed(header.substr(0, comma));
        if (!member.empty()) {
            const auto equals = member.find('=');
            if (equals == std::string_view::npos) return std::nullopt;
            const std::string_view key = member.substr(0, equals);
            if (!is_key(key) || !is_value(member.substr(equals + 1))) return std::nullopt;
            if (keys.size() == kMaxMembers ||
                std::find(keys.begin(), keys.end(), key) != keys.end())
                return std::nullopt;
            keys.push_back(key);
            if (!out.empty()) out.push_back(',');
            out.append(member);
        }
        if (comma == std::string_view::npos) return out;
        header.remove_prefix(comma + 1);
    }
}

TraceContext child_of(const TraceContext& parent, Prng& prng) {
    TraceContext child = parent;
    fill_id(child.span_id, prng);
    return child;
}

TraceContext new_trace(Prng& prng, bool sampled) {
    TraceContext context;
    fill_id(context.trace_id, prng);
    fill_id(context.span_id, prng);
    context.flags =
        static_cast<std::uint8_t>(TraceContext::kRandomId | (sampled ? TraceContext::kSampled : 0));
    return context;
}

}  // namespace nereid::ops
