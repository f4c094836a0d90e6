#include "dialect/messages/messages.h"

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
    return error_body(type_of(error), error.message, request_id);
}

}  // namespace nereid::dialect::messages
