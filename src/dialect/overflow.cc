#include "dialect/overflow.h"

#include <charconv>
#include <initializer_list>

namespace nereid::dialect {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t number(std::string_view text) {
    std::size_t out = 0;
    std::from_chars(text.data(), text.data() + text.size(), out);
    return out;
}

// The number behind the first of these words that is there.
std::size_t after(std::string_view text, std::initializer_list<std::string_view> words) {
    for (const std::string_view word : words) {
        const auto at = text.find(word);
        if (at != std::string_view::npos) return number(text.substr(at + word.size()));
    }
    return 0;
}

// The number before it.
std::size_t before(std::string_view text, std::initializer_list<std::string_view> words) {
    for (const std::string_view word : words) {
        const auto end = text.find(word);
        if (end == std::string_view::npos) continue;
        std::size_t begin = end;
        while (begin > 0 && is_digit(text[begin - 1])) --begin;
        if (begin < end) return number(text.substr(begin, end - begin));
    }
    return 0;
}

}  // namespace

Overflow read_overflow(std::string_view message) {
    return {
        .context = after(message, {"maximum context length is ", "maximum context length of "}),
        .prompt = before(message, {" in the messages", " in the input", " in the prompt",
                                   " in your prompt", " input tokens", " tokens from the input"}),
        .asked = after(message, {"resulted in ", "requested a total of ", "you requested "})};
}

}  // namespace nereid::dialect
