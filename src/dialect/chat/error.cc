#include <string_view>

#include "base/json.h"
#include "dialect/chat/chat.h"

namespace nereid::dialect::chat {
namespace {

struct Kind {
    std::string_view type;
    std::string_view code;
};

// OpenAI's words where it has one for the case (facts: docs/formats/dialect-chat.md), else our
// code's own name.
Kind kind_of(const Error& error) {
    constexpr std::string_view kRequest = "invalid_request_error";
    switch (error.code) {
        case Code::kInvalidArgument:
            return {kRequest, "invalid_value"};
        case Code::kUnsupported:
            return {kRequest, "unsupported_parameter"};
        case Code::kContextLength:
            return {kRequest, "context_length_exceeded"};
        case Code::kUnauthenticated:
            return {kRequest, "invalid_api_key"};
        case Code::kPermissionDenied:
            return {"permission_error", "permission_denied"};
        case Code::kNotFound:
            return {kRequest, error.param == "model" ? "model_not_found" : "not_found"};
        case Code::kConflict:
            return {kRequest, "conflict"};
        case Code::kTooLarge:
            return {kRequest, "request_too_large"};
        case Code::kRateLimited:
            return {"rate_limit_error", "rate_limit_exceeded"};
        case Code::kOverloaded:
        case Code::kUnavailable:
        case Code::kWorkerLost:
        case Code::kCancelled:
        case Code::kDeadlineExceeded:
        case Code::kCorrupt:
        case Code::kNoSpace:
        case Code::kIo:
        case Code::kConfig:
        case Code::kInternal:
            break;
    }
    return {"server_error", code_info(error.code).name};
}

}  // namespace

std::string error_body(const Error& error) {
    const Kind kind = kind_of(error);
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("error").begin_object();
    w.member("message", error.message).member("type", kind.type).key("param");
    if (error.param.empty())
        w.null();
    else
        w.value(error.param);
    w.member("code", kind.code).end_object().end_object();
    return out;
}

int error_status(const Error& error) { return code_info(error.code).http_status; }

std::string error_frame(const Error& error) { return error_body(error); }

}  // namespace nereid::dialect::chat
