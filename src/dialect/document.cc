#include "dialect/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/base64.h"
#include "base/utf8.h"
#include "dialect/fields.h"
#include "dialect/image.h"

namespace nereid::dialect {

Result<std::string> read_web_url(const Json& url, const std::string& path) {
    TRY(std::string text, read_string(url, path));
    if (!text.starts_with("http://") && !text.starts_with("https://"))
        return bad_value(path, "expected a http: or https: URL.");
    return text;
}

Result<std::string> read_file_id(const Json& object, const std::string& path) {
    TRY(std::string id, required_string(object, "file_id", path));
    if (id.empty()) return bad_value(member_path(path, "file_id"), "expected the id of a file.");
    return id;
}

Result<model::DocumentPart> read_document_base64(std::string_view data, std::string_view media_type,
                                                 const std::string& path) {
    auto bytes = base64_decode(data);
    if (!bytes) return bad_value(path, "the file's data is not valid base64.");
    if (bytes->empty()) return bad_value(path, "the file is empty.");
    model::DocumentPart out;
    out.bytes = std::move(*bytes);
    out.media_type = std::string(media_type);
    out.path = path;
    return out;
}

namespace {

Result<model::DocumentPart> read_data(std::string_view data, const std::string& path) {
    if (!data.starts_with("data:")) return read_document_base64(data, {}, path);
    TRY(const DataUrl parts, split_data_url(data, path));
    return read_document_base64(parts.data, parts.media_type, path);
}

Result<model::DocumentPart> read_source(const Json& file, const std::string& path) {
    model::DocumentPart out;
    if (const Json* data = given(file, "file_data")) {
        const std::string place = member_path(path, "file_data");
        TRY(const std::string text, read_string(*data, place));
        return read_data(text, place);
    }
    if (const Json* url = given(file, "file_url")) {
        out.path = member_path(path, "file_url");
        TRY(out.url, read_web_url(*url, out.path));
        return out;
    }
    if (given(file, "file_id") == nullptr) return missing(member_path(path, "file_data"));
    out.path = member_path(path, "file_id");
    TRY(out.file_id, read_file_id(file, path));
    return out;
}

}  // namespace

Result<model::DocumentPart> read_file(const Json& file, const std::string& path) {
    if (!file.is_object()) return wrong_type(file, path, "an object");
    TRY(model::DocumentPart out, read_source(file, path));
    TRY(out.name, optional_string(file, "filename", path));
    return out;
}

std::string short_name(std::string_view name) {
    constexpr std::size_t kLongest = 128;
    const std::string valid = replace_invalid_utf8(name);
    const std::string_view cut = std::string_view(valid).substr(0, kLongest);
    return std::string(cut.substr(0, complete_utf8_prefix(cut)));
}

namespace {

// A name stands in a tag: nothing of it may end that.
std::string in_tag(std::string_view name) {
    std::string out = short_name(name);
    std::ranges::replace_if(
        out, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '>'; },
        ' ');
    return out;
}

}  // namespace

std::string document_text(std::string_view name, std::string_view context, std::string_view text) {
    std::string out = "<document";
    if (!name.empty()) out += fmt::format(" name=\"{}\"", in_tag(name));
    out += ">\n";
    if (!context.empty()) out.append(context).append("\n\n");
    out += text;
    if (!out.ends_with('\n')) out += '\n';
    out += "</document>\n";
    return out;
}

bool is_attachment(const Json& part) {
    static constexpr std::array<std::string_view, 6> kTexts{
        "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"};
    const Json* type = part.find("type");
    return type != nullptr && type->is_string() &&
           std::ranges::find(kTexts, std::string_view(type->as_string())) == kTexts.end();
}

void make_optional(model::Part& part) {
    if (auto* document = std::get_if<model::DocumentPart>(&part)) document->required = false;
    if (auto* image = std::get_if<model::ImagePart>(&part)) image->required = false;
}

model::Part attachment_note(const Error& error) {
    return model::TextPart{fmt::format("[Something that cannot be shown: {}]\n", error.message)};
}

}  // namespace nereid::dialect
