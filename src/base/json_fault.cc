#include "base/json_fault.h"

#include <charconv>
#include <cstdint>
#include <system_error>
#include <vector>

#include "base/utf8.h"

namespace nereid {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class FaultFinder {
  public:
    FaultFinder(std::string_view text, std::size_t max_depth)
        : text_(text), max_depth_(max_depth) {}

    std::optional<JsonFault> run() {
        skip_space();
        if (at_ == text_.size()) return JsonFault{at_, "the document is empty"};
        if (!document()) return fault_;
        skip_space();
        if (at_ != text_.size()) {
            fail("expected the end after the document");
            return fault_;
        }
        return std::nullopt;
    }

  private:
    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool more() const { return at_ < text_.size(); }
    bool fail(std::string what) {
        fault_ = JsonFault{at_, std::move(what)};
        return false;
    }
    void skip_space() {
        while (more() && is_space(text_[at_])) ++at_;
    }
    bool take(char c) {
        if (!more() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    // One value with all that it contains. `open_` holds the kind of each container we are in.
    bool document() {
        while (true) {
            bool opened = false;
            if (!value_or_open(opened)) return false;
            if (opened) continue;
            bool another = false;
            if (!after_value(another)) return false;
            if (!another) return true;
        }
    }

    // At the place of a value. `opened`: a container was entered and its first value comes next.
    bool value_or_open(bool& opened) {
        skip_space();
        const char c = peek();
        if (c != '{' && c != '[') return scalar();
        if (open_.size() == max_depth_) {
            return fail("more than " + std::to_string(max_depth_) + " levels of nesting");
        }
        ++at_;
        open_.push_back(c);
        skip_space();
        if (take(c == '{' ? '}' : ']')) {
            open_.pop_back();
            return true;
        }
        opened = true;
        return c == '[' || member_name();
    }

    // After a complete value: closes what closes. `another`: a further value follows.
    bool after_value(bool& another) {
        while (!open_.empty()) {
            const bool in_object = open_.back() == '{';
            skip_space();
            if (take(',')) {
                skip_space();
                another = true;
                return !in_object || member_name();
            }
            if (!take(in_object ? '}' : ']')) {
                return fail(in_object ? "expected ',' or '}' after a member"
                                      : "expected ',' or ']' after an element");
            }
            open_.pop_back();
        }
        return true;
    }

    bool member_name() {
        if (peek() != '"') return fail("expected a member's name in double quotes");
        if (!string()) return false;
        skip_space();
        if (!take(':')) return fail("expected ':' after a member's name");
        return true;
    }

    bool scalar() {
        const char c = peek();
        if (c == '"') return string();
        if (c == '-' || is_digit(c)) return number();
        for (const std::string_view word : {"true", "false", "null"}) {
            if (text_.substr(at_).starts_with(word)) {
                at_ += word.size();
                return ends_token();
            }
        }
        return fail("expected a value");
    }

    // A number or a word ends at a delimiter: "truex" and "01" are one broken token, not two.
    bool ends_token() {
        if (!more() || is_space(text_[at_]) || std::string_view(",:[]{}").contains(text_[at_]))
            return true;
        return fail("unexpected character inside a value");
    }

    bool number() {
        take('-');
        if (take('0')) {
            if (is_digit(peek())) return fail("a number must not begin with 0");
        } else if (!digits()) {
            return fail("expected a digit");
        }
        if (take('.') && !digits()) return fail("expected a digit after '.'");
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (!take('+')) take('-');
            if (!digits()) return fail("expected a digit in the exponent");
        }
        return ends_token();
    }
    bool digits() {
        const std::size_t first = at_;
        while (is_digit(peek())) ++at_;
        return at_ != first;
    }

    bool string() {
        const std::size_t quote = at_++;
        while (true) {
            const std::size_t run = at_;
            while (more() && plain(text_[at_])) ++at_;
            if (!check_utf8(run)) return false;
            if (!more()) {
                at_ = quote;
                return fail("the string that begins here is not closed");
            }
            if (take('"')) return true;
            if (text_[at_] != '\\') return fail("a control character must be escaped");
            if (!escape()) return false;
        }
    }
    static bool plain(char c) {
        return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
    }

    bool check_utf8(std::size_t first) {
        const std::string_view run = text_.substr(first, at_ - first);
        const std::size_t valid = valid_utf8_prefix(run);
        if (valid == run.size()) return true;
        at_ = first + valid;
        return fail("invalid UTF-8");
    }

    bool escape() {
        const std::size_t start = at_++;
        const char c = peek();
        if (c != 'u') {
            if (more() && std::string_view("\"\\/bfnrt").contains(c)) {
                ++at_;
                return true;
            }
            at_ = start;
            return fail("unknown escape");
        }
        ++at_;
        unsigned unit = 0;
        unsigned low = 0;
        if (!hex4(unit)) return fail("expected four hex digits after \\u");
        if (unit < 0xd800 || unit > 0xdfff) return true;
        if (unit < 0xdc00 && take('\\') && take('u') && hex4(low) && low >= 0xdc00 && low <= 0xdfff)
            return true;
        at_ = start;
        return fail("a surrogate without its pair");
    }
    bool hex4(unsigned& out) {
        if (text_.size() - at_ < 4) return false;
        const char* first = text_.data() + at_;
        const auto [end, error] = std::from_chars(first, first + 4, out, 16);
        if (error != std::errc{} || end != first + 4 || *first == '-') return false;
        at_ += 4;
        return true;
    }

    std::string_view text_;
    std::size_t max_depth_;
    std::size_t at_ = 0;
    std::vector<char> open_;
    std::optional<JsonFault> fault_;
};

// Is this number's text an integer outside int64 and uint64?
bool is_big_integer(std::string_view number) {
    if (number.size() < 19 || number.find_first_of(".eE") != std::string_view::npos) return false;
    const char* end = number.data() + number.size();
    std::int64_t i = 0;
    std::uint64_t u = 0;
    return std::from_chars(number.data(), end, i).ec != std::errc{} &&
           std::from_chars(number.data(), end, u).ec != std::errc{};
}

}  // namespace

std::optional<JsonFault> find_json_fault(std::string_view text, std::size_t max_depth) {
    return FaultFinder(text, max_depth).run();
}

std::string widen_big_integers(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t first = at;
        const char c = text[at++];
        if (c == '"') {
            while (text[at] != '"') at += text[at] == '\\' ? 2 : 1;
            ++at;
        } else if (c == '-' || is_digit(c)) {
            while (at < text.size() &&
                   (is_digit(text[at]) || std::string_view("+-.eE").contains(text[at])))
                ++at;
        }
        const std::string_view token = text.substr(first, at - first);
        out.append(token);
        if (c != '"' && is_big_integer(token)) out.append(".0");
    }
    return out;
}

}  // namespace nereid
