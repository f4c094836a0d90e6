#include "dialect/openai_error.h"

#include "base/json.h"

namespace nereid::dialect {

OpenAiErrorKind openai_error_kind(const Error& error) {
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
            return {kRequest, error.param == "model" ? "model_not_found" : ""};
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

std::string openai_error_json(std::string_view message, std::string_view type,
                              std::string_view code, std::string_view param) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("error").begin_object();
    w.member("message", message).member("type", type).key("param");
    if (param.empty())
        w.null();
    else
        w.value(param);
    w.key("code");
    if (code.empty())
        w.null();
    else
        w.value(code);
    w.end_object().end_object();
    return out;
}

std::string openai_error_body(const Error& error) {
    const OpenAiErrorKind kind = openai_error_kind(error);
    return openai_error_json(error.message, kind.type, kind.code, error.param);
}

}  // namespace nereid::dialect
