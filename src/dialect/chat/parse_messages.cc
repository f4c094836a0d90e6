#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "dialect/chat/parse_parts.h"
#include "dialect/document.h"
#include "dialect/field_table.h"
#include "dialect/fields.h"
#include "dialect/image.h"

namespace nereid::dialect::chat {
namespace {

struct RoleName {
    std::string_view name;
    model::Role role;
};
constexpr std::array<RoleName, 6> kRoles{{{"system", model::Role::kSystem},
                                          {"developer", model::Role::kDeveloper},
                                          {"user", model::Role::kUser},
                                          {"assistant", model::Role::kAssistant},
                                          {"tool", model::Role::kTool},
                                          {"function", model::Role::kTool}}};

// {"type":"image_url","image_url":{"url","detail"}}, also with the URL itself as image_url.
Result<model::Part> parse_image(const Json& part, const std::string& path) {
    const Json* image_url = given(part, "image_url");
    const std::string image_path = member_path(path, "image_url");
    if (image_url == nullptr) return missing(image_path);
    std::string url_path = image_path;
    const Json* url = image_url;
    std::string detail;
    if (image_url->is_object()) {
        url_path = member_path(image_path, "url");
        url = given(*image_url, "url");
        if (url == nullptr) return missing(url_path);
        TRY(detail, optional_string(*image_url, "detail", image_path));
    }
    TRY(model::ImagePart image, read_image_url(*url, url_path));
    image.detail = std::move(detail);
    return model::Part(std::move(image));
}

Result<model::Part> parse_part(const Json& part, const std::string& path) {
    if (part.is_string())
        return model::Part(model::TextPart{part.as_string()});  // seen from several SDKs
    if (!part.is_object()) return wrong_type(part, path, "an object");
    const Json* type = given(part, "type");
    if (type == nullptr) return missing(member_path(path, "type"));
    TRY(const std::string name, read_string(*type, member_path(path, "type")));
    if (name == "text" || name == "input_text" || name == "output_text") {
        const Json* text = part.find("text");
        if (text == nullptr) return missing(member_path(path, "text"));
        TRY(std::string value, read_string(*text, member_path(path, "text")));
        return model::Part(model::TextPart{std::move(value)});
    }
    if (name == "refusal") {
        const Json* text = part.find("refusal");
        if (text == nullptr) return missing(member_path(path, "refusal"));
        TRY(std::string value, read_string(*text, member_path(path, "refusal")));
        return model::Part(model::RefusalPart{std::move(value)});
    }
    if (name == "image_url") return parse_image(part, path);
    if (name == "file") {
        const Json* file = given(part, "file");
        if (file == nullptr) return missing(member_path(path, "file"));
        TRY(model::DocumentPart document, read_file(*file, member_path(path, "file")));
        return model::Part(std::move(document));
    }
    if (name == "input_audio" || name == "video_url" || name == "audio_url") {
        return unsupported(path,
                           fmt::format("content parts of type '{}' are not supported.", name));
    }
    return bad_value(
        member_path(path, "type"),
        fmt::format("'{}' is not 'text', 'image_url', 'file' or 'refusal'.", name.substr(0, 64)));
}

// `required`: of the attachments.
Result<std::vector<model::Part>> parse_content(const Json& content, const std::string& path,
                                               bool required) {
    std::vector<model::Part> parts;
    if (content.is_null()) return parts;
    if (content.is_string()) {
        // An empty string is no part: null, absent and "" mean the same to a template (A69, A70).
        if (!content.as_string().empty()) parts.emplace_back(model::TextPart{content.as_string()});
        return parts;
    }
    if (!content.is_array())
        return wrong_type(content, path, "a string or an array of content parts");
    parts.reserve(content.size());
    for (std::size_t i = 0; i < content.size(); ++i) {
        const Json& from = content.as_array()[i];
        auto part = parse_part(from, at_index(path, i));
        if (!part.ok() && !required && is_attachment(from)) part = attachment_note(part.error());
        if (!part.ok()) return part.error();
        if (!required) make_optional(*part);
        parts.push_back(*std::move(part));
    }
    return parts;
}

// Arguments are kept as the bytes the client sends, valid JSON or not (A101); an object is written
// out.
Result<std::string> parse_arguments(const Json& function, std::string_view name,
                                    const std::string& path) {
    const Json* arguments = given(function, name);
    if (arguments == nullptr) return std::string();
    if (arguments->is_object()) return arguments->dump();
    return read_string(*arguments, member_path(path, name));
}

Result<model::ToolCall> parse_call(const Json& call, const std::string& path) {
    if (!call.is_object()) return wrong_type(call, path, "an object");
    model::ToolCall out;
    TRY(out.id, optional_string(call, "id", path));
    TRY(const std::string type, optional_string(call, "type", path));
    out.custom = type == "custom";
    if (!type.empty() && type != "function" && type != "custom") {
        return bad_value(member_path(path, "type"), "expected 'function' or 'custom'.");
    }
    const std::string_view kind = out.custom ? "custom" : "function";
    const std::string kind_path = member_path(path, kind);
    const Json* body = given(call, kind);
    if (body == nullptr) return missing(kind_path);
    if (!body->is_object()) return wrong_type(*body, kind_path, "an object");
    const Json* name = given(*body, "name");
    if (name == nullptr) return missing(member_path(kind_path, "name"));
    TRY(out.name, read_string(*name, member_path(kind_path, "name")));
    TRY(out.arguments, parse_arguments(*body, out.custom ? "input" : "arguments", kind_path));
    return out;
}

Result<void> parse_calls(const Json& from, const std::string& path, model::Message& message) {
    if (const Json* calls = given(from, "tool_calls")) {
        const std::string calls_path = member_path(path, "tool_calls");
        if (!calls->is_array()) return wrong_type(*calls, calls_path, "an array");
        for (std::size_t i = 0; i < calls->size(); ++i) {
            TRY(model::ToolCall call, parse_call(calls->as_array()[i], at_index(calls_path, i)));
            message.tool_calls.push_back(std::move(call));
        }
    }
    if (const Json* legacy = given(from, "function_call")) {
        const std::string call_path = member_path(path, "function_call");
        if (!legacy->is_object()) return wrong_type(*legacy, call_path, "an object");
        model::ToolCall call;
        TRY(call.name, optional_string(*legacy, "name", call_path));
        TRY(call.arguments, parse_arguments(*legacy, "arguments", call_path));
        message.tool_calls.push_back(std::move(call));
    }
    return {};
}

// Members of a message that mean nothing to us.
void note_unknown(const Json& from, std::vector<std::string>& ignored) {
    static constexpr std::array<std::string_view, 10> kKnown = {
        "role",      "content", "name",          "tool_calls", "tool_call_id", "reasoning_content",
        "reasoning", "refusal", "function_call", "prefix"};
    for (const auto& [name, value] : from.as_object()) {
        if (!value.is_null() && std::ranges::find(kKnown, name) == kKnown.end())
            note_ignored("messages[]." + name.substr(0, 64), ignored);
    }
}

Result<model::Message> parse_message(const Json& from, const std::string& path,
                                     std::vector<std::string>& ignored) {
    if (!from.is_object()) return wrong_type(from, path, "an object");
    model::Message message;
    const Json* role = given(from, "role");
    const std::string role_path = member_path(path, "role");
    if (role == nullptr) return missing(role_path);
    TRY(const std::string role_name, read_string(*role, role_path));
    const auto known = std::ranges::find(kRoles, role_name, &RoleName::name);
    if (known == kRoles.end()) {
        return bad_value(
            role_path,
            fmt::format("'{}' is not one of 'system', 'developer', 'user', 'assistant', 'tool'.",
                        role_name.substr(0, 64)));
    }
    message.role = known->role;
    if (const Json* content = from.find("content")) {
        // Nobody can take back what a tool has given, or the model said.
        const bool required =
            message.role != model::Role::kTool && message.role != model::Role::kAssistant;
        TRY(message.parts, parse_content(*content, member_path(path, "content"), required));
    }
    TRY(message.name, optional_string(from, "name", path));
    TRY(message.tool_call_id, optional_string(from, "tool_call_id", path));
    if (message.role == model::Role::kAssistant) {
        TRY(message.reasoning, optional_string(from, "reasoning_content", path));
        if (message.reasoning.empty()) {
            TRY(message.reasoning, optional_string(from, "reasoning", path));
        }
        TRY(std::string refusal, optional_string(from, "refusal", path));
        if (!refusal.empty()) message.parts.emplace_back(model::RefusalPart{std::move(refusal)});
        TRY_VOID(parse_calls(from, path, message));
    } else if (given(from, "tool_calls") != nullptr) {
        return bad_value(member_path(path, "tool_calls"),
                         "only an assistant message has tool calls.");
    }
    if (const Json* prefix = given(from, "prefix"); prefix != nullptr && *prefix != Json(false)) {
        return unsupported(member_path(path, "prefix"),
                           "continuing an assistant message is not supported.");
    }
    note_unknown(from, ignored);
    return message;
}

}  // namespace

Result<std::vector<model::Message>> parse_messages(const Json& value, std::size_t max_messages,
                                                   std::vector<std::string>& ignored) {
    const std::string path = "messages";
    if (!value.is_array()) return wrong_type(value, path, "an array");
    if (value.size() == 0)
        return err(Code::kInvalidArgument,
                   "Invalid 'messages': empty array. Expected at least one message.", path);
    if (value.size() > max_messages)
        return bad_value(path,
                         fmt::format("{} messages are more than {}.", value.size(), max_messages));
    std::vector<model::Message> messages;
    messages.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
        TRY(model::Message message, parse_message(value.as_array()[i], at_index(path, i), ignored));
        messages.push_back(std::move(message));
    }
    return messages;
}

}  // namespace nereid::dialect::chat
