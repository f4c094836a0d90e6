#include "text/folder/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/utf8.h"

namespace nereid::text {
namespace {

constexpr std::int64_t kMostTokens = 1 << 22;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool is_blank(std::string_view text) { return std::ranges::all_of(text, is_space); }

bool flag(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    return value != nullptr && value->is_bool() && value->as_bool();
}

}  // namespace

bool FolderTokenizer::put(const Json& id, std::string bytes, bool silent) {
    const auto number = id.is_int() ? id.as_int() : std::nullopt;
    if (!number || *number < 0 || *number >= kMostTokens) return false;
    const auto at = static_cast<std::size_t>(*number);
    if (at >= pieces_.size()) {
        pieces_.resize(at + 1);
        silent_.resize(at + 1);
    }
    pieces_[at] = std::move(bytes);
    silent_[at] = silent;
    return true;
}

// {"piece": id, ...}, or a unigram model's [["piece", score], ...].
Result<void> FolderTokenizer::read_vocabulary(const Json& vocabulary, const PieceSpeller& speller) {
    if (vocabulary.is_object()) {
        for (const auto& [entry, id] : vocabulary.as_object()) {
            if (!put(id, speller.bytes(entry), false))
                return err(Code::kConfig, "model.vocab names an id that is none");
        }
        return {};
    }
    std::int64_t next = 0;
    for (const Json& entry : vocabulary.as_array()) {
        if (!entry.is_array() || entry.as_array().empty() || !entry.as_array()[0].is_string() ||
            !put(Json(next++), speller.bytes(entry.as_array()[0].as_string()), false))
            return err(Code::kConfig, "model.vocab holds an entry without a text");
    }
    return {};
}

Result<void> FolderTokenizer::read_added(const Json& token) {
    const Json* id = token.find("id");
    const Json* content = token.find("content");
    if (id == nullptr || content == nullptr || !content->is_string() ||
        content->as_string().empty() || !put(*id, content->as_string(), flag(token, "special")))
        return err(Code::kConfig, "an added token has no content or no id");
    const std::string& text = content->as_string();
    if (!is_blank(text)) {
        controls_.add({static_cast<TokenId>(*id->as_int()), text, flag(token, "lstrip"),
                       flag(token, "rstrip")});
    }
    return {};
}

Result<void> FolderTokenizer::read(const Json& file) {
    const Json* model = file.find("model");
    const Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
    if (vocabulary == nullptr || !(vocabulary->is_object() || vocabulary->is_array()))
        return err(Code::kConfig, "it has no model.vocab");
    auto speller = PieceSpeller::make(file.find("decoder"));
    if (!speller.ok()) return err(Code::kConfig, speller.error().message);
    TRY_VOID(read_vocabulary(*vocabulary, *speller));
    const Json* added = file.find("added_tokens");
    if (added != nullptr && added->is_array()) {
        for (const Json& token : added->as_array()) TRY_VOID(read_added(token));
    }
    controls_.sort();
    if (pieces_.empty()) return err(Code::kConfig, "its vocabulary is empty");
    return {};
}

void FolderTokenizer::set_specials(const FolderSpecials& specials) {
    bos_ = added(specials.bos);
    eos_ = added(specials.eos);
    ends_ = specials.ends;
    if (eos_ >= 0) ends_.push_back(eos_);
    adds_bos_ = specials.adds_bos && bos_ >= 0;
}

TokenId FolderTokenizer::added(std::string_view text) const {
    const ControlToken* token = text.empty() ? nullptr : controls_.at(text, 0);
    return token != nullptr && token->text == text ? token->id : -1;
}

void FolderTokenizer::encode(std::string_view text, Special special,
                             std::vector<TokenId>& out) const {
    std::string mended;
    if (!is_valid_utf8(text)) text = mended = replace_invalid_utf8(text);
    if (special == Special::kPlain) return encode_plain(text, out);
    const auto ids = encoder_->parse(text);
    if (!ids.ok()) return encode_plain(text, out);
    out.insert(out.end(), ids->begin(), ids->end());
}

// The library refuses a text with a character that its model has no token for, or on which a
// pattern of its pre-tokeniser gives up. Such a text is encoded in halves; a character that is
// refused alone is left out, as the model never saw it.
void FolderTokenizer::encode_plain(std::string_view text, std::vector<TokenId>& out) const {
    const auto ids = encoder_->encode(text, {});
    if (ids.ok()) {
        out.insert(out.end(), ids->begin(), ids->end());
        return;
    }
    std::size_t half = complete_utf8_prefix(text.substr(0, text.size() / 2));
    if (half == 0) {
        half = 1;
        while (half < text.size() && (static_cast<unsigned char>(text[half]) & 0xc0) == 0x80)
            ++half;
    }
    if (half >= text.size()) return;
    encode_plain(text.substr(0, half), out);
    encode_plain(text.substr(half), out);
}

void FolderTokenizer::encode_marked(std::string_view text, std::span<const Mark> marks,
                                    std::vector<TokenId>& out) const {
    std::vector<Recipe::SpecialSpan> spans;
    for (std::size_t i = 0; i < marks.size(); ++i) {
        const Mark& mark = marks[i];
        std::size_t begin = mark.begin;
        std::size_t end = mark.end;
        const std::size_t before = spans.empty() ? 0 : spans.back().end;
        const std::size_t after = i + 1 < marks.size() ? marks[i + 1].begin : text.size();
        while (mark.token->strips_left && begin > before && is_space(text[begin - 1])) --begin;
        while (mark.token->strips_right && end < after && is_space(text[end])) ++end;
        spans.push_back({begin, end, mark.token->id});
    }
    const auto ids = encoder_->encode(text, spans);
    if (ids.ok()) {
        out.insert(out.end(), ids->begin(), ids->end());
        return;
    }
    std::size_t from = 0;
    for (const auto& span : spans) {
        encode(text.substr(from, span.begin - from), Special::kPlain, out);
        out.push_back(span.id);
        from = span.end;
    }
    encode(text.substr(from), Special::kPlain, out);
}

std::string_view FolderTokenizer::piece(TokenId id, Special special) const {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || at >= pieces_.size()) return {};
    return silent_[at] && special == Special::kPlain ? std::string_view{} : pieces_[at];
}

bool FolderTokenizer::is_end(TokenId id) const {
    return std::ranges::find(ends_, id) != ends_.end();
}

}  // namespace nereid::text
