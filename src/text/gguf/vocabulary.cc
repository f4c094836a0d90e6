#include "text/gguf/vocabulary.h"

#include <llama.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/utf8.h"

namespace nereid::text {
namespace {

constexpr std::uint8_t kSilent = 1;
constexpr std::uint8_t kEnd = 2;
// A call of libllama counts in int32; longer texts are cut into such pieces at a line break or,
// failing that, anywhere between characters. No context is that long: the request is refused by its
// token count afterwards.
constexpr std::size_t kMaxCallBytes = 512u << 20;

std::string read_piece(const llama_vocab* vocab, TokenId id) {
    std::string piece(32, '\0');
    while (true) {
        const std::int32_t size = llama_token_to_piece(
            vocab, id, piece.data(), static_cast<std::int32_t>(piece.size()), 0, true);
        if (size >= 0) {
            piece.resize(static_cast<std::size_t>(size));
            return piece;
        }
        piece.resize(static_cast<std::size_t>(-size));
    }
}

void encode_piece(const llama_vocab* vocab, std::string_view text, bool parse,
                  std::vector<TokenId>& out) {
    const std::size_t before = out.size();
    // A token is rarely shorter than two bytes; when it is, the second call has the exact room.
    std::size_t room = text.size() / 2 + 16;
    while (true) {
        out.resize(before + room);
        const std::int32_t count =
            llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()),
                           out.data() + before, static_cast<std::int32_t>(room), false, parse);
        if (count >= 0) {
            out.resize(before + static_cast<std::size_t>(count));
            return;
        }
        CHECK_MSG(count != std::numeric_limits<std::int32_t>::min(),
                  "llama_tokenize: more than 2^31 tokens");
        room = static_cast<std::size_t>(-count);
    }
}

}  // namespace

void Vocabulary::Free::operator()(llama_model* model) const { llama_model_free(model); }

Vocabulary::Vocabulary(llama_model* model, std::string name)
    : model_(model), vocab_(llama_model_get_vocab(model)), name_(std::move(name)) {
    const std::int32_t count = llama_vocab_n_tokens(vocab_);
    ends_.reserve(static_cast<std::size_t>(count));
    flags_.reserve(static_cast<std::size_t>(count));
    for (TokenId id = 0; id < count; ++id) {
        const std::string piece = read_piece(vocab_, id);
        const auto attributes = static_cast<std::uint32_t>(llama_vocab_get_attr(vocab_, id));
        const bool silent =
            (attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
        if (silent) {
            const char* text = llama_vocab_get_text(vocab_, id);
            if (text != nullptr && *text != '\0') {
                controls_.add({id, text, (attributes & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                               (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
            }
        }
        pieces_ += piece;
        ends_.push_back(static_cast<std::uint32_t>(pieces_.size()));
        flags_.push_back(static_cast<std::uint8_t>((silent ? kSilent : 0) |
                                                   (llama_vocab_is_eog(vocab_, id) ? kEnd : 0)));
    }
    controls_.sort();
    bos_ = llama_vocab_bos(vocab_);
    eos_ = llama_vocab_eos(vocab_);
    adds_bos_ = bos_ >= 0 && llama_vocab_get_add_bos(vocab_);
}

Vocabulary::~Vocabulary() = default;

void Vocabulary::encode(std::string_view text, Special special, std::vector<TokenId>& out) const {
    if (!is_valid_utf8(text)) {
        const std::string repaired = replace_invalid_utf8(text);
        encode(repaired, special, out);
        return;
    }
    while (!text.empty()) {
        std::size_t size = text.size();
        if (size > kMaxCallBytes) {
            const std::size_t line = text.rfind('\n', kMaxCallBytes - 1);
            size = line != std::string_view::npos && line > 0
                       ? line
                       : complete_utf8_prefix(text.substr(0, kMaxCallBytes));
        }
        encode_piece(vocab_, text.substr(0, size), special == Special::kParse, out);
        text.remove_prefix(size);
    }
}

std::string_view Vocabulary::piece(TokenId id, Special special) const {
    if (id < 0 || static_cast<std::size_t>(id) >= ends_.size()) return {};
    const auto i = static_cast<std::size_t>(id);
    if (special == Special::kPlain && (flags_[i] & kSilent) != 0) return {};
    const std::uint32_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(pieces_).substr(begin, ends_[i] - begin);
}

bool Vocabulary::is_end(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < flags_.size() &&
           (flags_[static_cast<std::size_t>(id)] & kEnd) != 0;
}

void Vocabulary::encode_marked(std::string_view text, std::span<const Mark> marks,
                               std::vector<TokenId>& out) const {
    const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
    std::size_t from = 0;
    bool strip_left = false;
    const auto plain = [&](std::size_t end, bool strip_right) {
        std::string_view part = text.substr(from, end - from);
        while (strip_left && !part.empty() && is_space(part.front())) part.remove_prefix(1);
        while (strip_right && !part.empty() && is_space(part.back())) part.remove_suffix(1);
        if (!part.empty()) encode(part, Special::kPlain, out);
    };
    for (const Mark& mark : marks) {
        plain(mark.begin, mark.token->strips_left);
        out.push_back(mark.token->id);
        strip_left = mark.token->strips_right;
        from = mark.end;
    }
    plain(text.size(), false);
}

}  // namespace nereid::text
