// Documents as requests carry them: text, base64 data, data: URLs, http(s) URLs, ids of stored
// files. Nothing is fetched and nothing is decoded here: that is the gateway's (attachments), which
// says its texts and notes in the words of this header.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/request.h"

namespace nereid::dialect {

// OpenAI's file object: one of file_data (base64 or a data: URL), file_id, file_url; filename.
// kInvalidArgument naming the field below `path`.
Result<model::DocumentPart> read_file(const Json& file, const std::string& path);
// Base64 text of a file.
Result<model::DocumentPart> read_document_base64(std::string_view data, std::string_view media_type,
                                                 const std::string& path);
Result<std::string> read_web_url(const Json& url, const std::string& path);
// The `file_id` of an object; not empty.
Result<std::string> read_file_id(const Json& object, const std::string& path);

// What callers and servers call things, for errors and tags: whole characters, not too many.
std::string short_name(std::string_view name);

// The text of a document as the model sees it.
std::string document_text(std::string_view name, std::string_view context, std::string_view text);

// For attachments whose sender cannot take them back: what cannot be read later gets a note; what
// cannot even be parsed is one.
bool is_attachment(const Json& part);  // what is no text, by its type, in any dialect
void make_optional(model::Part& part);
model::Part attachment_note(const Error& error);

}  // namespace nereid::dialect
