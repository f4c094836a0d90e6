#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"

namespace nereid {
namespace {

// Needs no thought inside a JSON string: ASCII, no control character, no quote, no backslash.
bool is_plain(char c) {
    const auto b = static_cast<unsigned char>(c);
    return b >= 0x20 && b < 0x80 && c != '"' && c != '\\';
}

// Sets the top bit of each byte of `word` that is zero; bytes above a set one may be set falsely,
// which is harmless here.
constexpr std::uint64_t zero_bytes(std::uint64_t word) {
    return (word - 0x0101010101010101u) & ~word & 0x8080808080808080u;
}

// Length of the run of plain bytes that s begins with, 8 bytes a turn.
std::size_t plain_run(std::string_view s) {
    constexpr std::uint64_t kOnes = 0x0101010101010101u;
    std::size_t i = 0;
    for (; i + 8 <= s.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, s.data() + i, 8);
        const std::uint64_t control = (word - kOnes * 0x20) & ~word & (kOnes * 0x80);
        const std::uint64_t quote = zero_bytes(word ^ (kOnes * '"'));
        const std::uint64_t backslash = zero_bytes(word ^ (kOnes * '\\'));
        if (((word & (kOnes * 0x80)) | control | quote | backslash) != 0) break;
    }
    while (i < s.size() && is_plain(s[i])) ++i;
    return i;
}

void append_escape(std::string& out, char c) {
    switch (c) {
        case '"':
            out.append("\\\"");
            return;
        case '\\':
            out.append("\\\\");
            return;
        case '\n':
            out.append("\\n");
            return;
        case '\r':
            out.append("\\r");
            return;
        case '\t':
            out.append("\\t");
            return;
        case '\b':
            out.append("\\b");
            return;
        case '\f':
            out.append("\\f");
            return;
        default:
            break;
    }
    constexpr char kHex[] = "0123456789abcdef";
    const auto b = static_cast<unsigned char>(c);
    const char escape[6] = {'\\', 'u', '0', '0', kHex[b >> 4], kHex[b & 15]};
    out.append(escape, sizeof escape);
}

template <class T>
void append_float(std::string& out, T v) {
    if (!std::isfinite(v)) {
        out.append("null");
        return;
    }
    const T size = std::fabs(v);
    const bool fixed = size == 0 || (size >= static_cast<T>(1e-4) && size < static_cast<T>(1e16));
    char raw[64];
    const auto [end, error] = std::to_chars(
        raw, raw + sizeof raw, v, fixed ? std::chars_format::fixed : std::chars_format::scientific);
    CHECK(error == std::errc{});
    out.append(raw, end);
    if (fixed && std::memchr(raw, '.', static_cast<std::size_t>(end - raw)) == nullptr)
        out.append(".0");
}

template <class T>
void append_integer(std::string& out, T v) {
    char raw[24];
    const auto [end, error] = std::to_chars(raw, raw + sizeof raw, v);
    CHECK(error == std::errc{});
    out.append(raw, end);
}

}  // namespace

void append_json_string(std::string& out, std::string_view s) {
    out.push_back('"');
    while (true) {
        const std::size_t run = plain_run(s);
        out.append(s, 0, run);
        s.remove_prefix(run);
        if (s.empty()) break;
        if (static_cast<unsigned char>(s[0]) < 0x80) {
            append_escape(out, s[0]);
            s.remove_prefix(1);
            continue;
        }
        // An invalid sequence never reaches over an ASCII byte, so the run can be judged alone.
        std::size_t wide = 1;
        while (wide < s.size() && static_cast<unsigned char>(s[wide]) >= 0x80) ++wide;
        const std::string_view text = s.substr(0, wide);
        if (is_valid_utf8(text))
            out.append(text);
        else
            out.append(replace_invalid_utf8(text));
        s.remove_prefix(wide);
    }
    out.push_back('"');
}

void JsonWriter::separate() {
    if (need_comma_) out_.push_back(',');
    need_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
    separate();
    out_.push_back('{');
    need_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::end_object() {
    out_.push_back('}');
    need_comma_ = true;
    return *this;
}

JsonWriter& JsonWriter::begin_array() {
    separate();
    out_.push_back('[');
    need_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::end_array() {
    out_.push_back(']');
    need_comma_ = true;
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view k) {
    separate();
    append_json_string(out_, k);
    out_.push_back(':');
    need_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::value(std::string_view v) {
    separate();
    append_json_string(out_, v);
    return *this;
}

JsonWriter& JsonWriter::value(bool v) {
    separate();
    out_.append(v ? "true" : "false");
    return *this;
}

JsonWriter& JsonWriter::value(std::int64_t v) {
    separate();
    append_integer(out_, v);
    return *this;
}

JsonWriter& JsonWriter::value(std::uint64_t v) {
    separate();
    append_integer(out_, v);
    return *this;
}

JsonWriter& JsonWriter::value(double v) {
    separate();
    append_float(out_, v);
    return *this;
}

JsonWriter& JsonWriter::value(float v) {
    separate();
    append_float(out_, v);
    return *this;
}

JsonWriter& JsonWriter::null() {
    separate();
    out_.append("null");
    return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
    separate();
    const std::size_t begin = out_.size();
    out_.append(json);
    std::ranges::replace_if(
        out_.begin() + static_cast<std::ptrdiff_t>(begin), out_.end(),
        [](char c) { return c == '\n' || c == '\r'; }, ' ');
    return *this;
}

JsonWriter& JsonWriter::value(const Json& v) {
    v.visit([this](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
            null();
        } else if constexpr (std::is_same_v<T, Json::Array>) {
            begin_array();
            for (const Json& element : held) value(element);
            end_array();
        } else if constexpr (std::is_same_v<T, Json::Object>) {
            begin_object();
            for (const auto& [name, member] : held) key(name).value(member);
            end_object();
        } else if constexpr (std::is_same_v<T, std::string>) {
            value(std::string_view(held));
        } else {
            value(held);
        }
    });
    return *this;
}

std::string Json::dump() const {
    std::string out;
    JsonWriter(out).value(*this);
    return out;
}

}  // namespace nereid
