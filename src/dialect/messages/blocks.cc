#include "dialect/messages/blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "dialect/document.h"
#include "dialect/field_table.h"
#include "dialect/fields.h"
#include "dialect/image.h"

namespace nereid::dialect::messages {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
constexpr std::size_t kMaxNameBytes = 256;

Result<std::string> block_type(const Json& block, const std::string& path) {
    if (!block.is_object()) return wrong_type(block, path, "an object");
    return required_string(block, "type", path);
}

// Where the source of an image or a document stands, as Anthropic's errors name it: Claude Code
// goes on without an attachment whose type it reads in such a path.
std::string source_place(const std::string& path, std::string_view type) {
    return member_path(member_path(path, type), "source");
}

Result<model::Part> parse_image(const Json& block, const std::string& path) {
    const Json* source = given(block, "source");
    const std::string source_path = source_place(path, "image");
    if (source == nullptr) return missing(source_path);
    TRY(const std::string type, block_type(*source, source_path));
    if (type == "base64") {
        TRY(const std::string media, required_string(*source, "media_type", source_path));
        TRY(const std::string data, required_string(*source, "data", source_path));
        TRY(model::ImagePart image,
            read_image_base64(data, media, member_path(source_path, "data")));
        return model::Part(std::move(image));
    }
    if (type == "url") {
        const Json* url = given(*source, "url");
        const std::string url_path = member_path(source_path, "url");
        if (url == nullptr) return missing(url_path);
        TRY(model::ImagePart image, read_image_url(*url, url_path));
        return model::Part(std::move(image));
    }
    if (type == "file") {
        model::ImagePart image;
        image.path = member_path(source_path, "file_id");
        TRY(image.file_id, read_file_id(*source, source_path));
        return model::Part(std::move(image));
    }
    return unsupported(source_path, fmt::format("image sources of type '{}' are not supported.",
                                                type.substr(0, 64)));
}

// Of text blocks, or a string: their text.
std::string text_of(const Json& content) {
    if (content.is_string()) return content.as_string();
    std::string text;
    if (!content.is_array()) return text;
    for (const Json& piece : content.as_array()) {
        const Json* t = piece.find("text");
        if (t == nullptr || !t->is_string()) continue;
        if (!text.empty()) text += '\n';
        text += t->as_string();
    }
    return text;
}

// A source that is bytes somewhere; what is text in the request needs no reading.
Result<model::DocumentPart> document_source(const Json& source, std::string_view type,
                                            const std::string& path) {
    if (type == "base64") {
        TRY(const std::string media, required_string(source, "media_type", path));
        TRY(const std::string data, required_string(source, "data", path));
        return read_document_base64(data, media, member_path(path, "data"));
    }
    model::DocumentPart out;
    if (type == "url") {
        out.path = member_path(path, "url");
        if (given(source, "url") == nullptr) return missing(out.path);
        TRY(out.url, read_web_url(*given(source, "url"), out.path));
        return out;
    }
    if (type != "file") {
        return unsupported(
            path, fmt::format("documents of type '{}' are not supported.", type.substr(0, 64)));
    }
    out.path = member_path(path, "file_id");
    TRY(out.file_id, read_file_id(source, path));
    return out;
}

// The images of a document that is given as blocks stand behind its text.
Result<void> add_images(const Json& content, const std::string& path,
                        std::vector<model::Part>& out) {
    if (!content.is_array()) return {};
    for (std::size_t i = 0; i < content.size(); ++i) {
        const Json& piece = content.as_array()[i];
        const Json* type = piece.find("type");
        if (type == nullptr || *type != Json("image")) continue;
        TRY(model::Part image, parse_image(piece, at_index(path, i)));
        out.push_back(std::move(image));
    }
    return {};
}

Result<void> parse_document(const Json& block, const std::string& path,
                            std::vector<model::Part>& out) {
    const Json* source = given(block, "source");
    const std::string source_path = source_place(path, "document");
    if (source == nullptr) return missing(source_path);
    TRY(const std::string type, block_type(*source, source_path));
    TRY(std::string name, optional_string(block, "title", path));
    TRY(std::string context, optional_string(block, "context", path));
    if (type == "text") {
        TRY(const std::string text, required_string(*source, "data", source_path));
        out.emplace_back(model::TextPart{document_text(name, context, text)});
        return {};
    }
    if (type == "content") {
        const Json* content = given(*source, "content");
        if (content == nullptr) return missing(member_path(source_path, "content"));
        out.emplace_back(model::TextPart{document_text(name, context, text_of(*content))});
        return add_images(*content, member_path(source_path, "content"), out);
    }
    TRY(model::DocumentPart part, document_source(*source, type, source_path));
    part.name = std::move(name);
    part.context = std::move(context);
    out.emplace_back(std::move(part));
    return {};
}

// {"type":"search_result","source","title","content":[text blocks]}
Result<model::Part> parse_search_result(const Json& block, const std::string& path) {
    TRY(std::string text, optional_string(block, "title", path));
    const Json* content = given(block, "content");
    const std::string found = content == nullptr ? std::string() : text_of(*content);
    if (!text.empty() && !found.empty()) text += '\n';
    return model::Part(model::TextPart{text + found});
}

// A block that is content wherever it stands, to `out`; false for another type. `required`: of the
// attachments.
Result<bool> content_block(const Json& block, std::string_view type, const std::string& path,
                           bool required, std::vector<model::Part>& out) {
    if (type == "text") {
        TRY(std::string text, required_string(block, "text", path));
        out.emplace_back(model::TextPart{std::move(text)});
        return true;
    }
    if (type == "search_result") {
        TRY(model::Part part, parse_search_result(block, path));
        out.push_back(std::move(part));
        return true;
    }
    if (type != "image" && type != "document") return false;
    std::vector<model::Part> parts;
    Result<void> read;
    if (type == "document") {
        read = parse_document(block, path, parts);
    } else if (auto image = parse_image(block, path); image.ok()) {
        parts.push_back(*std::move(image));
    } else {
        read = image.error();
    }
    if (!read.ok() && required) return read.error();
    if (!read.ok()) parts.assign(1, attachment_note(read.error()));
    for (model::Part& part : parts) {
        if (!required) make_optional(part);
        out.push_back(std::move(part));
    }
    return true;
}

Result<model::Message> parse_tool_result(const Json& block, const std::string& path,
                                         std::vector<std::string>& ignored) {
    model::Message message;
    message.role = model::Role::kTool;
    TRY(message.tool_call_id, required_string(block, "tool_use_id", path));
    if (const Json* error = given(block, "is_error")) {
        TRY(const bool failed, read_bool(*error, member_path(path, "is_error")));
        // No template has a place for it, and the text may not say so.
        if (failed) message.parts.emplace_back(model::TextPart{"[The tool failed.]\n"});
    }
    const Json* content = given(block, "content");
    if (content == nullptr) return message;
    const std::string content_path = member_path(path, "content");
    if (content->is_string()) {
        if (!content->as_string().empty())
            message.parts.emplace_back(model::TextPart{content->as_string()});
        return message;
    }
    if (!content->is_array())
        return wrong_type(*content, content_path, "a string or an array of blocks");
    for (std::size_t i = 0; i < content->size(); ++i) {
        const Json& piece = content->as_array()[i];
        const std::string piece_path = at_index(content_path, i);
        TRY(const std::string type, block_type(piece, piece_path));
        // The agent cannot take its tool's result back: a refusal would end its session.
        TRY(const bool content_read, content_block(piece, type, piece_path, false, message.parts));
        if (content_read) continue;
        if (type == "tool_reference") {
            TRY(std::string name, optional_string(piece, "tool_name", piece_path));
            message.parts.emplace_back(model::TextPart{std::move(name)});
        } else {
            note_ignored("messages[].content[]." + type.substr(0, 32), ignored);
        }
    }
    return message;
}

Result<model::ToolCall> parse_tool_use(const Json& block, const std::string& path) {
    model::ToolCall call;
    TRY(call.id, required_string(block, "id", path));
    TRY(call.name, required_string(block, "name", path));
    const Json* input = given(block, "input");
    // Clients keep broken arguments as a string (A101).
    if (input == nullptr)
        call.arguments = "{}";
    else
        call.arguments = input->is_string() ? input->as_string() : input->dump();
    return call;
}

Result<void> parse_assistant_block(const Json& block, const std::string& path, const Seal& seal,
                                   model::Message& message, std::vector<std::string>& ignored) {
    TRY(const std::string type, block_type(block, path));
    if (type == "thinking") {
        TRY(const std::string text, optional_string(block, "thinking", path));
        TRY(const std::string signature, optional_string(block, "signature", path));
        if (auto ours = seal.open(signature, text)) message.reasoning += *ours;
        return {};
    }
    if (type == "redacted_thinking") {
        TRY(const std::string data, optional_string(block, "data", path));
        if (auto ours = seal.open(data, {})) message.reasoning += *ours;
        return {};
    }
    if (type == "tool_use") {
        TRY(model::ToolCall call, parse_tool_use(block, path));
        message.tool_calls.push_back(std::move(call));
        return {};
    }
    // An earlier turn: nobody can take it back.
    TRY(const bool known, content_block(block, type, path, false, message.parts));
    if (!known) note_ignored("messages[].content[]." + type.substr(0, 32), ignored);
    return {};
}

Result<void> parse_assistant(const Json& content, const std::string& path, const Seal& seal,
                             model::Request& request) {
    model::Message message;
    message.role = model::Role::kAssistant;
    if (content.is_string()) {
        if (!content.as_string().empty())
            message.parts.emplace_back(model::TextPart{content.as_string()});
    } else {
        for (std::size_t i = 0; i < content.size(); ++i) {
            TRY_VOID(parse_assistant_block(content.as_array()[i], at_index(path, i), seal, message,
                                           request.ignored_fields));
        }
    }
    request.messages.push_back(std::move(message));
    return {};
}

// Tool results come before what the user says beside them, wherever they stand: a template pairs
// them with the calls of the message before.
Result<void> parse_user(const Json& content, const std::string& path, model::Request& request) {
    model::Message message;
    message.role = model::Role::kUser;
    if (content.is_string()) {
        if (!content.as_string().empty())
            message.parts.emplace_back(model::TextPart{content.as_string()});
        request.messages.push_back(std::move(message));
        return {};
    }
    const bool has_results = std::ranges::any_of(content.as_array(), [](const Json& block) {
        const Json* type = block.find("type");
        return type != nullptr && *type == Json("tool_result");
    });
    for (std::size_t i = 0; i < content.size(); ++i) {
        const Json& block = content.as_array()[i];
        const std::string block_path = at_index(path, i);
        TRY(const std::string type, block_type(block, block_path));
        if (type == "tool_result") {
            TRY(model::Message result,
                parse_tool_result(block, block_path, request.ignored_fields));
            request.messages.push_back(std::move(result));
            continue;
        }
        // What stands beside results is what tools have given: Claude Code's Read of a PDF.
        TRY(const bool known, content_block(block, type, block_path, !has_results, message.parts));
        if (!known)
            note_ignored("messages[].content[]." + type.substr(0, 32), request.ignored_fields);
    }
    if (!message.parts.empty() || !has_results) request.messages.push_back(std::move(message));
    return {};
}

Result<void> parse_message(const Json& from, const std::string& path, const Seal& seal,
                           model::Request& request) {
    if (!from.is_object()) return wrong_type(from, path, "an object");
    TRY(const std::string role, required_string(from, "role", path));
    const std::string content_path = member_path(path, "content");
    const Json* content = given(from, "content");
    if (content == nullptr) return missing(content_path);
    if (!content->is_string() && !content->is_array())
        return wrong_type(*content, content_path, "a string or an array of blocks");
    if (role == "user") return parse_user(*content, content_path, request);
    if (role == "assistant") return parse_assistant(*content, content_path, seal, request);
    if (role == "system") {
        TRY(model::Message message, parse_system(*content, content_path, request.ignored_fields));
        if (!message.parts.empty()) request.messages.push_back(std::move(message));
        return {};
    }
    return bad_value(
        member_path(path, "role"),
        fmt::format("'{}' is not 'user', 'assistant' or 'system'.", role.substr(0, 64)));
}

bool is_server_tool(std::string_view type) { return !type.empty() && type != "custom"; }

}  // namespace

Result<model::Message> parse_system(const Json& value, const std::string& path,
                                    std::vector<std::string>& ignored) {
    model::Message message;
    message.role = model::Role::kSystem;
    const auto add = [&](std::string text) {
        if (text.starts_with(
                kBillingHeader)) {  // its line only: somebody may have joined the blocks
            note_ignored("system[].billing_header", ignored);
            const auto line = text.find('\n');
            text.erase(0, line == std::string::npos ? line : line + 1);
        }
        if (!text.empty()) message.parts.emplace_back(model::TextPart{std::move(text)});
    };
    if (value.is_string()) {
        add(value.as_string());
        return message;
    }
    if (!value.is_array()) return wrong_type(value, path, "a string or an array of text blocks");
    for (std::size_t i = 0; i < value.size(); ++i) {
        const Json& block = value.as_array()[i];
        const std::string block_path = at_index(path, i);
        TRY(const std::string type, block_type(block, block_path));
        if (type != "text") return bad_value(member_path(block_path, "type"), "expected 'text'.");
        TRY(const std::string text, required_string(block, "text", block_path));
        add(text);
    }
    return message;
}

Result<void> parse_messages(const Json& value, std::size_t max_messages, const Seal& seal,
                            model::Request& request) {
    const std::string path = "messages";
    if (!value.is_array()) return wrong_type(value, path, "an array");
    if (value.size() == 0) return bad_value(path, "at least one message is required.");
    if (value.size() > max_messages)
        return bad_value(path,
                         fmt::format("{} messages are more than {}.", value.size(), max_messages));
    for (std::size_t i = 0; i < value.size(); ++i)
        TRY_VOID(parse_message(value.as_array()[i], at_index(path, i), seal, request));
    return {};
}

Result<void> parse_tools(const Json& value, model::Request& request) {
    const std::string path = "tools";
    if (!value.is_array()) return wrong_type(value, path, "an array");
    for (std::size_t i = 0; i < value.size(); ++i) {
        const Json& from = value.as_array()[i];
        const std::string tool_path = at_index(path, i);
        if (!from.is_object()) return wrong_type(from, tool_path, "an object");
        TRY(const std::string type, optional_string(from, "type", tool_path));
        if (is_server_tool(type)) {
            note_ignored("tools[]." + type.substr(0, 40), request.ignored_fields);
            continue;
        }
        model::Tool tool;
        TRY(tool.name, required_string(from, "name", tool_path));
        if (tool.name.empty() || tool.name.size() > kMaxNameBytes)
            return bad_value(member_path(tool_path, "name"),
                             fmt::format("expected 1 to {} bytes.", kMaxNameBytes));
        TRY(tool.description, optional_string(from, "description", tool_path));
        const Json* schema = given(from, "input_schema");
        if (schema == nullptr) return missing(member_path(tool_path, "input_schema"));
        if (!schema->is_object())
            return wrong_type(*schema, member_path(tool_path, "input_schema"), "a JSON schema");
        tool.parameters = *schema;
        if (const Json* strict = given(from, "strict")) {
            TRY(tool.strict, read_bool(*strict, member_path(tool_path, "strict")));
        }
        request.tools.push_back(std::move(tool));
    }
    return {};
}

Result<void> parse_tool_choice(const Json& value, model::Request& request) {
    using Kind = model::ToolChoice::Kind;
    const std::string path = "tool_choice";
    TRY(const std::string type, block_type(value, path));
    if (const Json* alone = given(value, "disable_parallel_tool_use")) {
        TRY(const bool on, read_bool(*alone, path + ".disable_parallel_tool_use"));
        request.parallel_tool_calls = !on;
    }
    if (type == "auto") return {};
    if (type == "none") {
        request.tool_choice.kind = Kind::kNone;
        return {};
    }
    if (type == "any") {
        if (request.tools.empty())
            return bad_value(path, "it requires a tool, but there is none in 'tools'.");
        request.tool_choice.kind = Kind::kRequired;
        return {};
    }
    if (type != "tool")
        return bad_value(path + ".type", "expected 'auto', 'any', 'tool' or 'none'.");
    TRY(request.tool_choice.name, required_string(value, "name", path));
    request.tool_choice.kind = Kind::kNamed;
    if (std::ranges::find(request.tools, request.tool_choice.name, &model::Tool::name) ==
        request.tools.end()) {
        return bad_value(path, fmt::format("the tool '{}' is not in 'tools'.",
                                           request.tool_choice.name.substr(0, 64)));
    }
    return {};
}

}  // namespace nereid::dialect::messages
