#include "dialect/responses/items.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "dialect/document.h"
#include "dialect/field_table.h"
#include "dialect/fields.h"
#include "dialect/image.h"
#include "dialect/responses/tools.h"

namespace nereid::dialect::responses {
namespace {

std::string type_of(const Json& item) {
    const Json* type = item.find("type");
    if (type != nullptr && type->is_string()) return type->as_string();
    if (item.find("role") != nullptr) return "message";
    return item.find("id") != nullptr && item.as_object().size() == 1 ? "item_reference" : "";
}

Result<model::Part> input_image(const Json& part, const std::string& path) {
    const Json* url = given(part, "image_url");
    const std::string url_path = member_path(path, "image_url");
    if (url == nullptr) {
        if (given(part, "file_id") == nullptr) return missing(url_path);
        model::ImagePart stored;
        stored.path = member_path(path, "file_id");
        TRY(stored.file_id, read_file_id(part, path));
        TRY(stored.detail, optional_string(part, "detail", path));
        return model::Part(std::move(stored));
    }
    const Json* text = url->is_object() ? given(*url, "url") : url;  // chat's form, seen too
    if (text == nullptr) return missing(member_path(url_path, "url"));
    TRY(model::ImagePart image, read_image_url(*text, url_path));
    TRY(image.detail, optional_string(part, "detail", path));
    return model::Part(std::move(image));
}

Result<std::optional<model::Part>> content_part(const Json& part, const std::string& path) {
    if (part.is_string()) return std::optional<model::Part>(model::TextPart{part.as_string()});
    if (!part.is_object()) return wrong_type(part, path, "an object");
    TRY(const std::string type, required_string(part, "type", path));
    if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" ||
        type == "reasoning_text") {
        TRY(std::string text, required_string(part, "text", path));
        return std::optional<model::Part>(model::TextPart{std::move(text)});
    }
    if (type == "refusal") {
        TRY(std::string text, required_string(part, "refusal", path));
        return std::optional<model::Part>(model::RefusalPart{std::move(text)});
    }
    if (type == "input_image" || type == "image_url") {
        TRY(model::Part image, input_image(part, path));
        return std::optional<model::Part>(std::move(image));
    }
    if (type == "input_file") {
        TRY(model::DocumentPart file, read_file(part, path));
        return std::optional<model::Part>(std::move(file));
    }
    if (type == "input_audio" || type == "file") {
        return unsupported(path,
                           fmt::format("content parts of type '{}' are not supported.", type));
    }
    return std::optional<model::Part>();  // encrypted or future parts: nothing to show a model
}

// `required`: of the attachments.
Result<std::vector<model::Part>> content_of(const Json* content, const std::string& path,
                                            bool required) {
    std::vector<model::Part> parts;
    if (content == nullptr) return parts;
    if (content->is_string()) {
        if (!content->as_string().empty())
            parts.emplace_back(model::TextPart{content->as_string()});
        return parts;
    }
    if (!content->is_array())
        return wrong_type(*content, path, "a string or an array of content parts");
    for (std::size_t i = 0; i < content->size(); ++i) {
        const Json& from = content->as_array()[i];
        auto part = content_part(from, at_index(path, i));
        if (!part.ok() && !required && is_attachment(from)) part = attachment_note(part.error());
        if (!part.ok()) return part.error();
        if (!*part) continue;
        if (!required) make_optional(**part);
        parts.push_back(**std::move(part));
    }
    return parts;
}

std::string joined_text(const Json* parts) {
    std::string text;
    if (parts == nullptr || !parts->is_array()) return text;
    for (const Json& part : parts->as_array()) {
        const Json* t = part.find("text");
        if (t == nullptr || !t->is_string()) continue;
        if (!text.empty()) text += '\n';
        text += t->as_string();
    }
    return text;
}

std::string id_of(const Json& item) {
    const Json* id = item.find("id");
    return id != nullptr && id->is_string() ? id->as_string() : std::string();
}

bool is_reference(const Json& item) {
    const Json* type = item.find("type");
    return type != nullptr && *type == Json("item_reference");
}

std::set<std::string> ids_of(const Json::Array& items) {
    std::set<std::string> out;
    for (const Json& item : items) {
        if (!is_reference(item)) out.insert(id_of(item));
    }
    return out;
}

// An array of content parts, not of something else (what a shell has printed).
bool are_parts(const Json& content) {
    return content.is_array() && std::ranges::all_of(content.as_array(), [](const Json& part) {
               return part.is_string() || (part.is_object() && part.find("type") != nullptr);
           });
}

std::string_view id_prefix(std::string_view type) {
    if (type == "message") return "msg";
    if (type == "reasoning") return "rs";
    if (type == "function_call") return "fc";
    if (type == "custom_tool_call") return "ctc";
    return "item";
}

}  // namespace

std::string flat_name(std::string_view name_space, std::string_view name) {
    if (name_space.empty()) return std::string(name);
    return fmt::format("{}__{}", name_space, name);
}

std::string wrapped_input(std::string_view input) {
    std::string out;
    JsonWriter(out).begin_object().member("input", input).end_object();
    return out;
}

Result<Json::Array> read_items(const Json& input, const std::string& path, std::string_view id,
                               std::size_t max_items) {
    Json::Array out;
    const auto give_id = [&](Json& item, std::string_view type) {
        if (!id_of(item).empty()) return;
        item.set("id", fmt::format("{}_{}i{}", id_prefix(type), id, out.size()));
    };
    if (input.is_string()) {
        Json part(Json::Object{{"type", "input_text"}, {"text", input.as_string()}});
        Json item(Json::Object{{"type", "message"}, {"role", "user"}, {"status", "completed"}});
        item.set("content", Json(Json::Array{std::move(part)}));
        give_id(item, "message");
        out.push_back(std::move(item));
        return out;
    }
    if (!input.is_array()) return wrong_type(input, path, "a string or an array of items");
    if (input.size() > max_items)
        return bad_value(path, fmt::format("{} items are more than {}.", input.size(), max_items));
    for (std::size_t i = 0; i < input.size(); ++i) {
        const Json& from = input.as_array()[i];
        const std::string item_path = at_index(path, i);
        if (!from.is_object()) return wrong_type(from, item_path, "an object");
        const std::string type = type_of(from);
        if (type.empty()) return missing(member_path(item_path, "type"));
        Json item = from;
        item.set("type", type);
        if (type == "message" && item.find("content") != nullptr &&
            item.find("content")->is_string()) {
            // One form in what is stored and listed.
            const Json* role = item.find("role");
            const bool said = role != nullptr && *role == Json("assistant");
            Json part(Json::Object{{"type", said ? "output_text" : "input_text"}});
            part.set("text", *item.find("content"));
            if (said) part.set("annotations", Json(Json::Array{}));
            item.set("content", Json(Json::Array{std::move(part)}));
        }
        give_id(item, type);
        if (type == "message" && item.find("status") == nullptr) item.set("status", "completed");
        out.push_back(std::move(item));
    }
    return out;
}

Result<void> MessageBuilder::add(const Json& item, const std::string& path) {
    const std::string type = type_of(item);
    if (type == "message") return message(item, path);
    if (type == "reasoning") return reasoning(item);
    if (type.ends_with("_call_output") || type == "tool_search_output") return output(item, path);
    if (type.ends_with("_call") && given(item, "call_id") != nullptr) return call(item, type, path);
    if (type == "compaction" || type == "compaction_summary") {
        const Json* blob = given(item, "encrypted_content");
        const auto text = blob != nullptr && blob->is_string() ? seal_.open(blob->as_string(), {})
                                                               : std::optional<std::string>();
        if (!text) return {};
        flush();
        request_.messages.push_back(
            {.role = model::Role::kUser, .parts = {model::TextPart{*text}}});
        return {};
    }
    if (type == "agent_message") {  // what another agent says, to this one
        flush();
        TRY(auto parts,
            content_of(given(item, "content"), member_path(path, "content"), required_));
        if (!parts.empty())
            request_.messages.push_back({.role = model::Role::kUser, .parts = std::move(parts)});
        return {};
    }
    if (type == "item_reference")
        return err(Code::kNotFound,
                   fmt::format("Item '{}' was not found.", id_of(item).substr(0, 64)), path);
    note_ignored("input[]." + type.substr(0, 40), request_.ignored_fields);
    return {};
}

Result<void> MessageBuilder::message(const Json& item, const std::string& path) {
    TRY(const std::string role, required_string(item, "role", path));
    TRY(auto parts, content_of(given(item, "content"), member_path(path, "content"), required_));
    if (role == "assistant") {
        for (auto& part : parts) assistant_.parts.push_back(std::move(part));
        return {};
    }
    flush();
    model::Message out;
    out.parts = std::move(parts);
    if (role == "user")
        out.role = model::Role::kUser;
    else if (role == "system")
        out.role = model::Role::kSystem;
    else if (role == "developer")
        out.role = model::Role::kDeveloper;
    else
        return bad_value(member_path(path, "role"),
                         fmt::format("'{}' is not 'user', 'assistant', 'system' or 'developer'.",
                                     role.substr(0, 64)));
    request_.messages.push_back(std::move(out));
    return {};
}

// Our own sealed text first; a blob of somebody else's says nothing, then the open content counts.
// A summary is ours, and all the thoughts, where it stands alone.
Result<void> MessageBuilder::reasoning(const Json& item) {
    if (!assistant_.parts.empty() || !assistant_.tool_calls.empty()) flush();
    std::optional<std::string> text;
    const Json* blob = given(item, "encrypted_content");
    if (blob != nullptr && blob->is_string()) text = seal_.open(blob->as_string(), {});
    if (!text) text = joined_text(given(item, "content"));
    if (text->empty() && blob == nullptr) text = joined_text(given(item, "summary"));
    assistant_.reasoning += *text;
    return {};
}

Result<void> MessageBuilder::call(const Json& item, std::string_view type,
                                  const std::string& path) {
    model::ToolCall out;
    TRY(out.id, required_string(item, "call_id", path));
    TRY(const std::string name_space, optional_string(item, "namespace", path));
    TRY(std::string name, optional_string(item, "name", path));
    if (name.empty()) name = std::string(type.substr(0, type.size() - 5));  // "tool_search"
    out.name = flat_name(name_space, name);
    if (type == "custom_tool_call") {
        TRY(const std::string input, optional_string(item, "input", path));
        out.arguments = wrapped_input(input);
    } else {
        const Json* arguments = given(item, "arguments");
        if (arguments == nullptr) arguments = given(item, "action");
        if (arguments == nullptr) arguments = given(item, "operation");
        // As they were sent, JSON or not (A101).
        if (arguments != nullptr)
            out.arguments = arguments->is_string() ? arguments->as_string() : arguments->dump();
    }
    assistant_.tool_calls.push_back(std::move(out));
    return {};
}

Result<void> MessageBuilder::output(const Json& item, const std::string& path) {
    model::Message out;
    out.role = model::Role::kTool;
    TRY(out.tool_call_id, optional_string(item, "call_id", path));
    if (out.tool_call_id.empty() && *item.find("type") == Json("local_shell_call_output"))
        out.tool_call_id = id_of(item);  // it has no other
    if (out.tool_call_id.empty()) {
        // The SDK's types allow it; whose output it is nobody can tell.
        note_ignored("input[].output_without_call_id", request_.ignored_fields);
        return {};
    }
    const Json* content = given(item, "output");
    if (content == nullptr) content = given(item, "tools");  // of tool_search
    if (content != nullptr && given(item, "output") != nullptr && are_parts(*content)) {
        // The agent cannot take its tool's result back: a refusal would end its session. A77, A82.
        TRY(out.parts, content_of(content, member_path(path, "output"), false));
    } else if (content != nullptr) {
        const std::string text = content->is_string() ? content->as_string() : content->dump();
        if (!text.empty()) out.parts.emplace_back(model::TextPart{text});
    }
    flush();
    request_.messages.push_back(std::move(out));
    return {};
}

void MessageBuilder::flush() {
    if (!assistant_.parts.empty() || !assistant_.tool_calls.empty() ||
        !assistant_.reasoning.empty()) {
        assistant_.role = model::Role::kAssistant;
        request_.messages.push_back(std::move(assistant_));
    }
    assistant_ = {};
}

Result<void> add_messages(Create& create, const Json::Array& history, const Seal& seal) {
    model::Request& request = create.request;
    if (!create.instructions.empty()) {
        request.messages.push_back(
            {.role = model::Role::kSystem, .parts = {model::TextPart{create.instructions}}});
    }
    MessageBuilder builder(request, seal);
    const ToolNames own = create.tools;
    for (std::size_t i = 0; i < history.size(); ++i) {
        if (is_reference(history[i])) continue;  // to what stands before it
        const std::string path = at_index("previous_response_id.items", i);
        TRY_VOID(builder.add_earlier(history[i], path));
        TRY_VOID(add_item_tools(history[i], path, create, &own));
    }
    const std::set<std::string> known = ids_of(history);
    for (std::size_t i = 0; i < create.input.size(); ++i) {
        const Json& item = create.input[i];
        if (is_reference(item) && known.contains(id_of(item))) continue;
        TRY_VOID(builder.add(item, at_index("input", i)));
        TRY_VOID(add_item_tools(item, at_index("input", i), create, &own));  // was a reference
    }
    builder.finish();
    if (!create.tool_choice.is_null())
        TRY_VOID(parse_tool_choice(std::exchange(create.tool_choice, {}), create));
    settle_items(create.input, history);
    if (request.messages.empty())
        return err(Code::kInvalidArgument, "There is nothing to answer: 'input' is empty.",
                   "input");
    return {};
}

void settle_items(Json::Array& items, const Json::Array& history) {
    std::set<std::string> taken = ids_of(history);
    std::erase_if(
        items, [&](const Json& item) { return is_reference(item) && taken.contains(id_of(item)); });
    std::map<std::string, std::uint32_t> copies;
    for (Json& item : items) {
        if (is_reference(item)) continue;
        const std::string id = id_of(item);
        std::string own = id;
        while (!taken.insert(own).second) own = fmt::format("{}_{}", id, ++copies[id]);
        if (own != id) item.set("id", own);
    }
}

Result<void> check_items(const Json::Array& items, const std::string& path, const Seal& seal) {
    model::Request request;
    MessageBuilder builder(request, seal);
    for (std::size_t i = 0; i < items.size(); ++i)
        TRY_VOID(builder.add(items[i], at_index(path, i)));
    return {};
}

}  // namespace nereid::dialect::responses
