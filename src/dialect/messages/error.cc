#include <fmt/format.h>

#include "dialect/messages/messages.h"
#include "dialect/overflow.h"

namespace nereid::dialect::messages {
namespace {

std::string_view type_of(const Error& error) {
    switch (error.code) {
        case Code::kUnauthenticated:
            return "authentication_error";
        case Code::kPermissionDenied:
            return "permission_error";
        case Code::kNotFound:
            return "not_found_error";
        case Code::kTooLarge:
            return "request_too_large";
        case Code::kRateLimited:
            return "rate_limit_error";
        case Code::kOverloaded:
        case Code::kUnavailable:
            return "overloaded_error";
        case Code::kDeadlineExceeded:
            return "timeout_error";
        default:
            return code_info(error.code).http_status < 499 ? "invalid_request_error" : "api_error";
    }
}

// Claude Code knows an overflow by Anthropic's words (A61). An OpenAI-compatible server says it in
// OpenAI's, with or without the numbers.
std::string overflow_message(const std::string& message) {
    constexpr std::string_view kTooLong = "prompt is too long";
    if (message.contains(kTooLong)) return message;
    const Overflow said = read_overflow(message);
    const std::size_t tokens = said.asked != 0 ? said.asked : said.prompt;
    if (tokens <= said.context || said.context == 0)
        return fmt::format("{}: {}", kTooLong, message);
    return fmt::format("{}: {} tokens > {} maximum", kTooLong, tokens, said.context);
}

}  // namespace

int error_status(const Error& error) {
    if (error.code == Code::kOverloaded || error.code == Code::kUnavailable) return 529;
    return code_info(error.code).http_status;
}

std::string_view error_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
        case 529:
            return "overloaded_error";
        case 504:
            return "timeout_error";
        default:
            return status < 500 ? "invalid_request_error" : "api_error";
    }
}

std::string error_body(std::string_view type, std::string_view message,
                       std::string_view request_id) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("type", "error").key("error").begin_object();
    w.member("type", type).member("message", message).end_object();
    if (!request_id.empty()) w.member("request_id", request_id);
    w.end_object();
    return out;
}

std::string error_body(const Error& error, std::string_view request_id) {
    return error_body(
        type_of(error),
        error.code == Code::kContextLength ? overflow_message(error.message) : error.message,
        request_id);
}

}  // namespace nereid::dialect::messages
