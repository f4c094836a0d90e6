#include "gateway/multipart.h"

#include <utility>

namespace nereid::gateway {
namespace {

constexpr std::size_t kMaxParts = 64;

std::unexpected<Error> malformed(std::string what) {
    return err(Code::kInvalidArgument, "The body is no valid multipart/form-data: " + what + ".");
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

// The value of `; name="value"` or `; name=value` in a header's value; a quoted one may hold \" and
// \\.
std::string parameter(std::string_view header, std::string_view name) {
    const std::string low = lower(header);
    std::size_t at = 0;
    while ((at = low.find(name, at)) != std::string::npos) {
        const std::size_t equals = at + name.size();
        const bool begins = at > 0 && (low[at - 1] == ' ' || low[at - 1] == ';');
        if (!begins || equals >= low.size() || low[equals] != '=') {
            at = equals;
            continue;
        }
        std::string_view rest = header.substr(equals + 1);
        std::string out;
        if (!rest.starts_with('"')) return std::string(rest.substr(0, rest.find_first_of("; \t")));
        for (std::size_t i = 1; i < rest.size() && rest[i] != '"'; ++i) {
            if (rest[i] == '\\' && i + 1 < rest.size()) ++i;
            out += rest[i];
        }
        return out;
    }
    return {};
}

// Browsers and SDKs escape just these three in names (WHATWG, multipart/form-data encoding).
std::string unescaped(std::string text) {
    constexpr std::pair<std::string_view, char> kEscapes[] = {
        {"%22", '"'}, {"%0D", '\r'}, {"%0A", '\n'}};
    for (const auto& [code, c] : kEscapes) {
        for (auto at = text.find(code); at != std::string::npos; at = text.find(code, at + 1))
            text.replace(at, code.size(), 1, c);
    }
    return text;
}

// Reads the headers of one part; `part` is left at its content.
Result<FormPart> read_headers(std::string_view part) {
    FormPart out;
    for (;;) {
        const auto end = part.find("\r\n");
        if (end == std::string_view::npos) return malformed("a part has no end of its headers");
        const std::string_view line = part.substr(0, end);
        part.remove_prefix(end + 2);
        if (line.empty()) break;
        constexpr std::string_view kType = "content-type:";
        if (lower(line).starts_with(kType)) {
            std::string_view type = line.substr(kType.size());
            type = type.substr(0, type.find(';'));
            while (type.starts_with(' ') || type.starts_with('\t')) type.remove_prefix(1);
            while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
            out.media_type = std::string(type);
        }
        if (!lower(line).starts_with("content-disposition:")) continue;
        out.name = unescaped(parameter(line, "name"));
        out.filename = unescaped(parameter(line, "filename"));
    }
    if (out.name.empty()) return malformed("a part has no name");
    out.body = part;
    return out;
}

}  // namespace

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type,
                                              std::string_view body) {
    const std::string boundary = parameter(content_type, "boundary");
    if (!lower(content_type).starts_with("multipart/form-data") || boundary.empty() ||
        boundary.size() > 200) {
        return malformed("the content-type must be multipart/form-data with a boundary");
    }
    const std::string first = "--" + boundary;
    const std::string next = "\r\n" + first;
    if (!body.starts_with(first)) {
        const auto at = body.find(next);  // a preamble
        if (at == std::string_view::npos) return malformed("its boundary is not there");
        body.remove_prefix(at + 2);
    }
    body.remove_prefix(first.size());
    std::vector<FormPart> parts;
    while (!body.starts_with("--")) {
        if (!body.starts_with("\r\n")) return malformed("a boundary is followed by something else");
        body.remove_prefix(2);
        const auto end = body.find(next);
        if (end == std::string_view::npos) return malformed("the last boundary is missing");
        if (parts.size() == kMaxParts) return malformed("it has too many parts");
        TRY(FormPart part, read_headers(body.substr(0, end)));
        parts.push_back(std::move(part));
        body.remove_prefix(end + next.size());
    }
    return parts;
}

}  // namespace nereid::gateway
