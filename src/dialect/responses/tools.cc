#include "dialect/responses/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/utf8.h"
#include "dialect/chat/parse_parts.h"
#include "dialect/fields.h"
#include "dialect/responses/items.h"

namespace nereid::dialect::responses {
namespace {

constexpr std::string_view kSearchName = "tool_search";

// A custom tool as the function that engines see. Its grammar goes along in the description, where
// the model can read it (A78).
model::Tool as_function(model::Tool tool) {
    const Json* syntax = tool.format.find("syntax");
    const Json* definition = tool.format.find("definition");
    if (const Json* grammar = tool.format.find("grammar")) {  // chat's nesting
        syntax = grammar->find("syntax");
        definition = grammar->find("definition");
    }
    if (definition != nullptr && definition->is_string()) {
        tool.description +=
            fmt::format("\n\nThe input must match this {} grammar:\n{}",
                        syntax != nullptr && syntax->is_string() ? syntax->as_string() : "lark",
                        definition->as_string());
    }
    Json input(Json::Object{{"type", "string"}});
    Json properties;
    properties.set("input", std::move(input));
    tool.parameters = Json(Json::Object{{"type", "object"}});
    tool.parameters.set("properties", std::move(properties));
    tool.parameters.set("required", Json(Json::Array{"input"}));
    tool.parameters.set("additionalProperties", false);
    tool.custom = false;
    return tool;
}

Result<void> add_tool(const Json& from, const std::string& path, const std::string& name_space,
                      bool again, const ToolNames* keep, Create& create) {
    if (!from.is_object()) return wrong_type(from, path, "an object");
    TRY(const std::string type, optional_string(from, "type", path));
    if (type.empty()) return missing(member_path(path, "type"));
    model::Tool tool;
    ToolName name;
    if (type == "function") {
        const Json* nested = given(from, "function");  // chat's form, seen from some clients
        TRY(tool, chat::parse_function(nested != nullptr ? *nested : from, path));
    } else if (type == "custom") {
        const Json* nested = given(from, "custom");
        TRY(tool, chat::parse_custom(nested != nullptr ? *nested : from, path));
        tool = as_function(std::move(tool));
        name.kind = ToolKind::kCustom;
    } else if (type == "tool_search" && given(from, "parameters") != nullptr) {
        tool.name = kSearchName;
        TRY(tool.description, optional_string(from, "description", path));
        tool.parameters = *given(from, "parameters");
        name.kind = ToolKind::kSearch;
    } else if (type == "namespace" && name_space.empty()) {
        TRY(const std::string inner, chat::read_name(from, path));
        const Json* members = given(from, "tools");
        if (members == nullptr) return missing(member_path(path, "tools"));
        if (!members->is_array())
            return wrong_type(*members, member_path(path, "tools"), "an array");
        for (std::size_t i = 0; i < members->size(); ++i) {
            TRY_VOID(add_tool(members->as_array()[i], at_index(member_path(path, "tools"), i),
                              inner, again, keep, create));
        }
        return {};
    } else {
        note_ignored("tools[]." + type.substr(0, 40), create.request.ignored_fields);
        return {};
    }
    name.name = tool.name;
    name.name_space = name_space;
    tool.name = flat_name(name_space, tool.name);
    if (keep != nullptr && keep->contains(tool.name)) return {};
    std::vector<model::Tool>& tools = create.request.tools;
    name.at = tools.size();
    const auto [known, fresh] = create.tools.try_emplace(tool.name, name);
    if (fresh) {
        tools.push_back(std::move(tool));
        return {};
    }
    if (!again) return bad_value(path, fmt::format("there are two tools named '{}'.", tool.name));
    // In its old place: the beginning of the prompt stays.
    const std::size_t at = known->second.at;
    name.at = at;
    known->second = std::move(name);
    tools[at] = std::move(tool);
    return {};
}

// The name for engines of a tool that a choice names.
Result<std::string> chosen(const Json& from, const std::string& path, const Create& create) {
    TRY(const std::string type, optional_string(from, "type", path));
    if (type != "function" && type != "custom" && type != "tool_search") {
        return unsupported(path, fmt::format("tools of type '{}' are not run here and cannot be "
                                             "forced.",
                                             type.substr(0, 64)));
    }
    if (type == "tool_search") return std::string(kSearchName);
    const Json* nested = given(from, type);
    TRY(const std::string name, chat::read_name(nested != nullptr ? *nested : from, path));
    TRY(const std::string name_space, optional_string(from, "namespace", path));
    std::string flat = flat_name(name_space, name);
    if (create.tools.contains(flat)) return flat;
    for (const auto& [seen, tool] : create.tools) {  // a member named without its namespace
        if (tool.name == name && name_space.empty()) return seen;
    }
    return bad_value(path, fmt::format("the tool '{}' is not in 'tools'.", name.substr(0, 64)));
}

}  // namespace

Result<void> parse_tools(const Json& value, const std::string& path, Create& create) {
    if (!value.is_array()) return wrong_type(value, path, "an array");
    for (std::size_t i = 0; i < value.size(); ++i)
        TRY_VOID(add_tool(value.as_array()[i], at_index(path, i), {}, false, nullptr, create));
    return {};
}

Result<void> add_item_tools(const Json& item, const std::string& path, Create& create,
                            const ToolNames* keep) {
    const Json* type = item.find("type");
    if (*type != Json("additional_tools") && *type != Json("tool_search_output")) return {};
    const Json* tools = given(item, "tools");
    if (tools == nullptr || !tools->is_array()) return {};
    for (std::size_t i = 0; i < tools->size(); ++i) {
        TRY_VOID(add_tool(tools->as_array()[i], at_index(member_path(path, "tools"), i), {}, true,
                          keep, create));
    }
    return {};
}

Result<void> parse_tool_choice(const Json& value, Create& create) {
    using Kind = model::ToolChoice::Kind;
    const std::string path = "tool_choice";
    model::ToolChoice& choice = create.request.tool_choice;
    if (value.is_string()) {
        TRY(choice.kind, chat::choice_mode(value, path));
    } else if (!value.is_object()) {
        return wrong_type(value, path, "a string or an object");
    } else if (const Json* type = value.find("type");
               type != nullptr && *type == Json("allowed_tools")) {
        const Json* from = given(value, "allowed_tools");  // chat's nesting
        if (from == nullptr) from = &value;
        if (const Json* mode = given(*from, "mode")) {
            TRY(choice.kind, chat::choice_mode(*mode, path + ".mode"));
        }
        const Json* tools = given(*from, "tools");
        if (tools == nullptr) return missing(path + ".tools");
        if (!tools->is_array()) return wrong_type(*tools, path + ".tools", "an array");
        for (std::size_t i = 0; i < tools->size(); ++i) {
            const Json& tool = tools->as_array()[i];
            const std::string tool_path = at_index(path + ".tools", i);
            if (!tool.is_object()) return wrong_type(tool, tool_path, "an object");
            auto name = chosen(tool, tool_path, create);
            // A hosted tool that may be called, but is not here to call.
            if (!name.ok() && name.code() == Code::kUnsupported) continue;
            TRY(std::string one, std::move(name));
            choice.allowed.push_back(std::move(one));
        }
        if (choice.allowed.empty()) {
            if (choice.kind == Kind::kRequired)
                return bad_value(path + ".tools", "none of them can be called here.");
            choice.kind = Kind::kNone;
        }
    } else {
        TRY(choice.name, chosen(value, path, create));
        choice.kind = Kind::kNamed;
    }
    if (choice.kind == Kind::kRequired && create.request.tools.empty())
        return bad_value(path, "it requires a tool, but there is none in 'tools'.");
    return {};
}

void InputExtractor::feed(std::string_view arguments, std::string& out) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const char c = arguments[i];
        if (state_ == State::kText) {
            text(c, out);
            continue;
        }
        if (state_ == State::kDone) return;
        seen_ += c;
        if (state_ == State::kRaw) continue;
        // What may stand before the text, without its white space: {"input":"
        constexpr std::string_view kShape = "{\"input\":\"";
        std::string tight;
        for (const char s : seen_) {
            if (s != ' ' && s != '\n' && s != '\t' && s != '\r') tight += s;
        }
        if (!kShape.starts_with(tight) || seen_.size() > 256)
            state_ = State::kRaw;
        else if (tight.size() == kShape.size())
            state_ = State::kText;
    }
}

void InputExtractor::text(char c, std::string& out) {
    if (!escape_.empty()) return escaped(c, out);
    if (c == '\\') {
        escape_ = "\\";
        return;
    }
    if (high_ != 0) unicode(0, out);
    if (c == '"')
        state_ = State::kDone;
    else
        out += c;
}

void InputExtractor::escaped(char c, std::string& out) {
    escape_ += c;
    if (escape_.size() == 2) {
        constexpr std::string_view kFrom = "\"\\/bfnrt";
        constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
        if (c == 'u') return;
        if (high_ != 0) unicode(0, out);
        const auto at = kFrom.find(c);
        out += at == std::string_view::npos ? c : kTo[at];
        escape_.clear();
        return;
    }
    if (escape_.size() < 6) return;
    std::uint32_t unit = 0;
    const auto [end, error] = std::from_chars(escape_.data() + 2, escape_.data() + 6, unit, 16);
    const bool whole = error == std::errc{} && end == escape_.data() + 6;
    escape_.clear();
    unicode(whole ? unit : 0xfffd, out);
}

// Joins surrogates; half of a pair becomes U+FFFD. 0 is the end of an unfinished pair.
void InputExtractor::unicode(std::uint32_t unit, std::string& out) {
    constexpr std::uint32_t kReplacement = 0xfffd;
    if (high_ != 0) {
        const std::uint32_t high = high_;
        high_ = 0;
        if (unit >= 0xdc00 && unit < 0xe000) {
            append_utf8(out, 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00));
            return;
        }
        append_utf8(out, kReplacement);
        if (unit == 0) return;
    }
    if (unit >= 0xd800 && unit < 0xdc00)
        high_ = unit;
    else
        append_utf8(out, unit >= 0xdc00 && unit < 0xe000 ? kReplacement : unit);
}

void InputExtractor::finish(std::string& out) {
    if (state_ == State::kText && high_ != 0) unicode(0, out);
    if (state_ != State::kRaw && state_ != State::kPrefix) return;
    // Not our shape: maybe the same in another spelling, else the model's own bytes.
    const auto json = Json::parse(seen_);
    const Json* input = json.ok() ? json->find("input") : nullptr;
    out += input != nullptr && input->is_string() ? input->as_string() : seen_;
    seen_.clear();
    state_ = State::kDone;
}

}  // namespace nereid::dialect::responses
