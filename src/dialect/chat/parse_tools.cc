#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "dialect/chat/parse_parts.h"
#include "dialect/fields.h"

namespace nereid::dialect::chat {
namespace {
constexpr std::size_t kMaxNameBytes = 256;
using Kind = model::ToolChoice::Kind;
}  // namespace

Result<std::string> read_name(const Json& object, const std::string& path) {
    const std::string name_path = member_path(path, "name");
    const Json* name = given(object, "name");
    if (name == nullptr) return missing(name_path);
    TRY(std::string value, read_string(*name, name_path));
    if (value.empty() || value.size() > kMaxNameBytes) {
        return bad_value(name_path, fmt::format("expected 1 to {} bytes.", kMaxNameBytes));
    }
    return value;
}

Result<model::Tool> parse_function(const Json& function, const std::string& path) {
    if (!function.is_object()) return wrong_type(function, path, "an object");
    model::Tool tool;
    TRY(tool.name, read_name(function, path));
    TRY(tool.description, optional_string(function, "description", path));
    if (const Json* parameters = given(function, "parameters")) {
        if (!parameters->is_object())
            return wrong_type(*parameters, member_path(path, "parameters"),
                              "a JSON schema (an object)");
        tool.parameters = *parameters;
    }
    if (const Json* strict = given(function, "strict")) {
        TRY(tool.strict, read_bool(*strict, member_path(path, "strict")));
    }
    return tool;
}

Result<model::Tool> parse_custom(const Json& custom, const std::string& path) {
    if (!custom.is_object()) return wrong_type(custom, path, "an object");
    model::Tool tool;
    tool.custom = true;
    TRY(tool.name, read_name(custom, path));
    TRY(tool.description, optional_string(custom, "description", path));
    if (const Json* format = given(custom, "format")) {
        if (!format->is_object())
            return wrong_type(*format, member_path(path, "format"), "an object");
        tool.format = *format;
    }
    return tool;
}

Result<Kind> choice_mode(const Json& value, const std::string& path) {
    TRY(const std::string mode, read_string(value, path));
    if (mode == "auto") return Kind::kAuto;
    if (mode == "none") return Kind::kNone;
    if (mode == "required" || mode == "any") return Kind::kRequired;
    return bad_value(path,
                     fmt::format("'{}' is not 'none', 'auto' or 'required'.", mode.substr(0, 64)));
}

namespace {

Result<model::Tool> parse_tool(const Json& from, const std::string& path) {
    if (!from.is_object()) return wrong_type(from, path, "an object");
    TRY(const std::string type, optional_string(from, "type", path));
    if (type.empty()) return missing(member_path(path, "type"));
    if (type != "function" && type != "custom") {
        return unsupported(
            member_path(path, "type"),
            fmt::format("tools of type '{}' are not supported.", type.substr(0, 64)));
    }
    const std::string body_path = member_path(path, type);
    const Json* body = given(from, type);
    if (body == nullptr) return missing(body_path);
    return type == "function" ? parse_function(*body, body_path) : parse_custom(*body, body_path);
}

// {"type":"function","function":{"name"}}, {"type":"custom","custom":{"name"}} or
// {"type":"function","name"}.
Result<std::string> named_tool(const Json& from, const std::string& path) {
    if (!from.is_object()) return wrong_type(from, path, "an object");
    TRY(const std::string type, optional_string(from, "type", path));
    if (type != "function" && type != "custom") {
        return bad_value(member_path(path, "type"),
                         "expected 'function', 'custom' or 'allowed_tools'.");
    }
    const Json* body = given(from, type);
    if (body == nullptr) return read_name(from, path);
    const std::string body_path = member_path(path, type);
    if (!body->is_object()) return wrong_type(*body, body_path, "an object");
    return read_name(*body, body_path);
}

Result<model::ToolChoice> allowed_tools(const Json& value) {
    const std::string path = "tool_choice.allowed_tools";
    const Json* allowed = given(value, "allowed_tools");
    if (allowed == nullptr) return missing(path);
    if (!allowed->is_object()) return wrong_type(*allowed, path, "an object");
    model::ToolChoice choice;
    if (const Json* mode = given(*allowed, "mode")) {
        TRY(choice.kind, choice_mode(*mode, member_path(path, "mode")));
    }
    const std::string tools_path = member_path(path, "tools");
    const Json* tools = given(*allowed, "tools");
    if (tools == nullptr) return missing(tools_path);
    if (!tools->is_array()) return wrong_type(*tools, tools_path, "an array");
    if (tools->size() == 0) return bad_value(tools_path, "expected at least one tool.");
    for (std::size_t i = 0; i < tools->size(); ++i) {
        TRY(std::string name, named_tool(tools->as_array()[i], at_index(tools_path, i)));
        choice.allowed.push_back(std::move(name));
    }
    return choice;
}

}  // namespace

Result<std::vector<model::Tool>> parse_tools(const Json& value) {
    const std::string path = "tools";
    if (!value.is_array()) return wrong_type(value, path, "an array");
    std::vector<model::Tool> tools;
    tools.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
        TRY(model::Tool tool, parse_tool(value.as_array()[i], at_index(path, i)));
        tools.push_back(std::move(tool));
    }
    return tools;
}

Result<std::vector<model::Tool>> parse_functions(const Json& value) {
    const std::string path = "functions";
    if (!value.is_array()) return wrong_type(value, path, "an array");
    std::vector<model::Tool> tools;
    for (std::size_t i = 0; i < value.size(); ++i) {
        TRY(model::Tool tool, parse_function(value.as_array()[i], at_index(path, i)));
        tools.push_back(std::move(tool));
    }
    return tools;
}

Result<model::ToolChoice> parse_tool_choice(const Json& value) {
    const std::string path = "tool_choice";
    model::ToolChoice choice;
    if (value.is_string()) {
        TRY(choice.kind, choice_mode(value, path));
        return choice;
    }
    if (!value.is_object()) return wrong_type(value, path, "a string or an object");
    if (const Json* type = value.find("type"); type != nullptr && *type == Json("allowed_tools"))
        return allowed_tools(value);
    TRY(choice.name, named_tool(value, path));
    choice.kind = Kind::kNamed;
    return choice;
}

Result<model::ToolChoice> parse_function_call(const Json& value) {
    const std::string path = "function_call";
    model::ToolChoice choice;
    if (value.is_string()) {
        TRY(choice.kind, choice_mode(value, path));
        return choice;
    }
    if (!value.is_object()) return wrong_type(value, path, "a string or an object");
    TRY(choice.name, read_name(value, path));
    choice.kind = Kind::kNamed;
    return choice;
}

Result<void> check_tool_choice(const model::ToolChoice& choice,
                               const std::vector<model::Tool>& tools) {
    const auto exists = [&](const std::string& name) {
        return std::ranges::find(tools, name, &model::Tool::name) != tools.end();
    };
    if (choice.kind == Kind::kRequired && tools.empty())
        return bad_value("tool_choice", "it requires a tool, but 'tools' is empty.");
    if (choice.kind == Kind::kNamed && !exists(choice.name)) {
        return bad_value("tool_choice",
                         fmt::format("the tool '{}' is not in 'tools'.", choice.name));
    }
    for (const std::string& name : choice.allowed) {
        if (!exists(name))
            return bad_value("tool_choice", fmt::format("the tool '{}' is not in 'tools'.", name));
    }
    return {};
}

// ---------------------------------------------------------------- output format

namespace {

using Format = model::OutputFormat;

// A schema as an object (or `true`/`false`), or as a string that holds one.
Result<Json> read_schema(const Json& value, const std::string& path) {
    if (value.is_object()) return value;
    if (!value.is_string()) return wrong_type(value, path, "a JSON schema (an object)");
    auto parsed = Json::parse(value.as_string());
    if (!parsed.ok()) return bad_value(path, parsed.error().message);
    if (!parsed->is_object()) return wrong_type(*parsed, path, "a JSON schema (an object)");
    return std::move(*parsed);
}

}  // namespace

Result<Format> schema_format(const Json& value, const std::string& path) {
    Format format;
    format.kind = Format::Kind::kJsonSchema;
    TRY(format.schema, read_schema(value, path));
    return format;
}

namespace {

Result<Format> text_format(Format::Kind kind, const Json& value, const std::string& path,
                           std::string_view syntax = {}) {
    Format format;
    format.kind = kind;
    TRY(format.source, read_string(value, path));
    if (format.source.empty()) return bad_value(path, "it is empty.");
    format.syntax = std::string(syntax);
    return format;
}

// "one of these strings" as a regular expression.
Result<Format> choice_format(const Json& value, const std::string& path) {
    if (!value.is_array()) return wrong_type(value, path, "an array of strings");
    if (value.size() == 0) return bad_value(path, "expected at least one choice.");
    Format format;
    format.kind = Format::Kind::kRegex;
    for (std::size_t i = 0; i < value.size(); ++i) {
        TRY(const std::string choice, read_string(value.as_array()[i], at_index(path, i)));
        if (i != 0) format.source += '|';
        for (const char c : choice) {
            if (std::string_view("\\^$.|?*+()[]{}/-").find(c) != std::string_view::npos)
                format.source += '\\';
            format.source += c;
        }
    }
    format.source = "(" + format.source + ")";
    return format;
}

Result<Format> structured_outputs(const Json& value) {
    const std::string path = "structured_outputs";
    if (!value.is_object()) return wrong_type(value, path, "an object");
    Format format;
    std::string_view first;
    for (const std::string_view name :
         {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}) {
        const Json* member = given(value, name);
        if (member == nullptr || *member == Json(false)) continue;
        if (!first.empty())
            return bad_value(path, fmt::format("'{}' and '{}' exclude each other.", first, name));
        first = name;
        const std::string member_at = member_path(path, name);
        if (name == "json") {
            TRY(format, schema_format(*member, member_at));
        } else if (name == "regex") {
            TRY(format, text_format(Format::Kind::kRegex, *member, member_at));
        } else if (name == "choice") {
            TRY(format, choice_format(*member, member_at));
        } else if (name == "grammar") {
            TRY(format, text_format(Format::Kind::kGrammar, *member, member_at, "ebnf"));
        } else if (name == "json_object") {
            TRY(const bool on, read_bool(*member, member_at));
            if (on) format.kind = Format::Kind::kJsonObject;
        } else {
            return unsupported(member_at, "structural tags are not supported.");
        }
    }
    return format;
}

}  // namespace

Result<model::OutputFormat> parse_response_format(const Json& value) {
    const std::string path = "response_format";
    if (!value.is_object()) return wrong_type(value, path, "an object");
    TRY(const std::string type, optional_string(value, "type", path));
    const std::string type_path = member_path(path, "type");
    if (type.empty()) return missing(type_path);
    Format format;
    if (type == "text") return format;
    if (type == "json_object") {
        format.kind = Format::Kind::kJsonObject;
        // Some engines take a schema here; an ignored one would be a dropped constraint.
        if (const Json* schema = given(value, "schema"))
            return schema_format(*schema, member_path(path, "schema"));
        return format;
    }
    if (type == "structural_tag" || type == "grammar" || type == "regex") {
        return unsupported(type_path, fmt::format("'{}' is not supported here.", type));
    }
    if (type != "json_schema") {
        return bad_value(
            type_path,
            fmt::format("'{}' is not 'text', 'json_object' or 'json_schema'.", type.substr(0, 64)));
    }
    const std::string body_path = member_path(path, "json_schema");
    const Json* body = given(value, "json_schema");
    if (body == nullptr) return missing(body_path);
    if (!body->is_object()) return wrong_type(*body, body_path, "an object");
    const Json* schema = given(*body, "schema");
    if (schema == nullptr) return missing(member_path(body_path, "schema"));
    TRY(format, schema_format(*schema, member_path(body_path, "schema")));
    TRY(format.name,
        optional_string(*body, "name", body_path));  // OpenAI requires it, no engine needs it
    if (const Json* strict = given(*body, "strict")) {
        TRY(format.strict, read_bool(*strict, member_path(body_path, "strict")));
    }
    return format;
}

Result<model::OutputFormat> parse_guided(std::string_view name, const Json& value) {
    const std::string path(name);
    if (name == "structured_outputs") return structured_outputs(value);
    if (name == "guided_json" || name == "json_schema") return schema_format(value, path);
    if (name == "guided_regex" || name == "regex")
        return text_format(Format::Kind::kRegex, value, path);
    if (name == "guided_choice") return choice_format(value, path);
    if (name == "guided_grammar" || name == "ebnf")
        return text_format(Format::Kind::kGrammar, value, path, "ebnf");
    if (name == "grammar") return text_format(Format::Kind::kGrammar, value, path, "gbnf");
    CHECK_MSG(name == "guided_json_object", name);
    Format format;
    TRY(const bool on, read_bool(value, path));
    if (on) format.kind = Format::Kind::kJsonObject;
    return format;
}

}  // namespace nereid::dialect::chat
