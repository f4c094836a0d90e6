#include "text/folder/pieces.h"

#include <cstdint>

namespace nereid::text {
namespace {

// Byte-level BPE writes a byte as one character: printable Latin-1 as itself, the others from
// U+0100 on (GPT-2's table). -1: no byte.
std::array<int, 0x144> byte_of_character() {
    std::array<int, 0x144> out{};
    out.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        out[static_cast<std::size_t>(itself ? byte : next++)] = byte;
    }
    return out;
}

// Two-byte UTF-8 reaches U+07FF, which is all that the table needs.
std::string from_byte_level(std::string_view token) {
    static const auto table = byte_of_character();
    std::string out;
    for (std::size_t i = 0; i < token.size(); ++i) {
        const auto first = static_cast<unsigned char>(token[i]);
        const bool two = first >= 0xc2 && first < 0xe0 && i + 1 < token.size();
        std::size_t character = first;
        if (two)
            character = (first & 0x1fu) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3fu);
        const bool known = (first < 0x80 || two) && character < table.size();
        const int byte = known ? table[character] : -1;
        if (byte < 0) {
            out += token[i];
            continue;
        }
        out += static_cast<char>(byte);
        if (two) ++i;
    }
    return out;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// "<0x0A>"; -1: another entry.
int fallback_byte(std::string_view entry) {
    if (entry.size() != 6 || !entry.starts_with("<0x") || entry[5] != '>') return -1;
    const int high = hex_digit(entry[3]);
    const int low = hex_digit(entry[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view with) {
    std::string out;
    for (std::size_t at = 0;;) {
        const std::size_t found = text.find(what, at);
        out.append(text.substr(at, found == std::string_view::npos ? found : found - at));
        if (found == std::string_view::npos) return out;
        out.append(with);
        at = found + what.size();
    }
}

std::string string_at(const Json& object, std::string_view name, std::string_view otherwise) {
    const Json* value = object.find(name);
    return value != nullptr && value->is_string() ? value->as_string() : std::string(otherwise);
}

}  // namespace

Result<PieceSpeller> PieceSpeller::make(const Json* decoder) {
    PieceSpeller out;
    if (decoder == nullptr || decoder->is_null()) {
        out.words_ = true;
        return out;
    }
    TRY_VOID(out.read(*decoder));
    return out;
}

Result<void> PieceSpeller::read(const Json& decoder) {
    const std::string type = string_at(decoder, "type", "");
    if (type == "Sequence") {
        const Json* steps = decoder.find("decoders");
        if (steps != nullptr && steps->is_array()) {
            for (const Json& step : steps->as_array()) TRY_VOID(read(step));
        }
    } else if (type == "ByteLevel") {
        byte_level_ = true;
    } else if (type == "ByteFallback") {
        byte_fallback_ = true;
    } else if (type == "Replace") {
        const Json* pattern = decoder.find("pattern");
        const std::string what = pattern == nullptr ? "" : string_at(*pattern, "String", "");
        if (what.empty()) return err(Code::kUnsupported, "its decoder replaces by a pattern");
        replaced_.emplace_back(what, string_at(decoder, "content", ""));
    } else if (type == "Metaspace") {
        replaced_.emplace_back(string_at(decoder, "replacement", "\u2581"), " ");
    } else if (type == "BPEDecoder") {
        word_ends_.push_back(string_at(decoder, "suffix", "</w>"));
    } else if (type == "WordPiece") {
        words_ = true;
        continues_ = string_at(decoder, "prefix", "##");
    } else if (type != "Fuse" && type != "Strip") {
        return err(Code::kUnsupported, "its decoder '" + type + "' is none of a language model's");
    }
    return {};
}

std::string PieceSpeller::bytes(std::string_view entry) const {
    if (byte_fallback_) {
        const int byte = fallback_byte(entry);
        if (byte >= 0) return std::string(1, static_cast<char>(byte));
    }
    std::string text(entry);
    for (const auto& [what, with] : replaced_) text = replace_all(text, what, with);
    for (const std::string& end : word_ends_) text = replace_all(text, end, " ");
    if (!continues_.empty() && text.starts_with(continues_)) return text.substr(continues_.size());
    if (words_) text.insert(text.begin(), ' ');
    return byte_level_ ? from_byte_level(text) : text;
}

}  // namespace nereid::text
