// A model's folder as Hugging Face lays it out: tokenizer.json, byte-level BPE.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/recipe/recipe.h"

namespace nereid::text {

namespace {

constexpr std::string_view kBegin =
    "<\uff5c"
    "begin\u2581of\u2581sentence\uff5c>";
constexpr std::string_view kEnd =
    "<\uff5c"
    "end\u2581of\u2581sentence\uff5c>";
constexpr std::string_view kDsml =
    "<\uff5c"
    "DSML\uff5c>";
constexpr std::string_view kSystem =
    "<\uff5c"
    "System\uff5c>";

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
std::string bytes_of(std::string_view token) {
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

struct Added {
    TokenId id = -1;
    std::string text;
};

class FolderTokenizer final : public Tokenizer {
  public:
    FolderTokenizer(std::shared_ptr<const Recipe::Encoder> encoder, std::string name)
        : encoder_(std::move(encoder)), name_(std::move(name)) {}

    // What is wrong with the file; nothing when it could be read.
    std::optional<std::string> read(const Json& file) {
        const Json* model = file.find("model");
        const Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
        const Json* added = file.find("added_tokens");
        if (vocabulary == nullptr || !vocabulary->is_object() || added == nullptr ||
            !added->is_array())
            return "it has no model.vocab or no added_tokens";
        for (const auto& [text, id] : vocabulary->as_object()) {
            if (!put(id, bytes_of(text), false)) return "it names an id that is none";
        }
        for (const Json& token : added->as_array()) {
            const Json* id = token.find("id");
            const Json* content = token.find("content");
            const Json* special = token.find("special");
            if (id == nullptr || content == nullptr || !content->is_string() ||
                content->as_string().empty() ||
                !put(*id, content->as_string(),
                     special != nullptr && special->is_bool() && special->as_bool()))
                return "an added token has no content or no id";
            const std::string& text = content->as_string();
            const auto number = static_cast<TokenId>(*id->as_int());
            added_[static_cast<unsigned char>(text[0])].push_back({number, text});
            if (text == kBegin) begin_ = number;
            if (text == kEnd) end_ = number;
            v41_ = v41_ || text == kSystem;
        }
        for (auto& tokens : added_) {
            std::ranges::sort(tokens, [](const Added& a, const Added& b) {
                return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
            });
        }
        if (begin_ < 0 || end_ < 0)
            return "it is no tokenizer of DeepSeek V4: it lacks its markers";
        return std::nullopt;
    }

    void encode(std::string_view text, Special special, std::vector<TokenId>& out) const override {
        std::string mended;
        if (!is_valid_utf8(text)) text = mended = replace_invalid_utf8(text);
        std::vector<std::pair<std::size_t, std::size_t>> ranges;
        for (std::size_t at = 0; special == Special::kParse && at < text.size();) {
            const Added* found = added_at(text.substr(at));
            if (found != nullptr) ranges.emplace_back(at, at + found->text.size());
            at += found != nullptr ? found->text.size() : 1;
        }
        const auto ids = encoder_->encode(text, ranges);
        CHECK_MSG(ids.ok(), ids.error().message);  // valid text, ranges of its own tokens
        out.insert(out.end(), ids->begin(), ids->end());
    }
    std::string_view piece(TokenId id, Special special) const override {
        const auto at = static_cast<std::size_t>(id);
        if (id < 0 || at >= pieces_.size()) return {};
        return silent_[at] && special == Special::kPlain ? std::string_view{} : pieces_[at];
    }
    std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(pieces_.size()); }
    bool is_end(TokenId id) const override { return id == end_; }
    TokenId bos() const override { return begin_; }
    bool adds_bos() const override { return true; }
    std::string_view name() const override { return name_; }
    bool v41() const { return v41_; }

  private:
    static constexpr std::int64_t kMostTokens = 1 << 22;

    bool put(const Json& id, std::string bytes, bool silent) {
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
    const Added* added_at(std::string_view text) const {
        for (const Added& token : added_[static_cast<unsigned char>(text[0])])
            if (text.starts_with(token.text)) return &token;
        return nullptr;
    }

    std::shared_ptr<const Recipe::Encoder> encoder_;
    std::string name_;
    std::vector<std::string> pieces_;
    std::vector<bool> silent_;  // no text for a reader
    std::array<std::vector<Added>, 256> added_;
    TokenId begin_ = -1;
    TokenId end_ = -1;
    bool v41_ = false;
};

}  // namespace

Result<TextModel> open_deepseek_folder(const std::string& folder) {
    const std::string path = folder + "/tokenizer.json";
    const auto fault = [&path](const std::string& what, const char* mend) {
        return err(Code::kConfig, path + ": " + what + ". Mend: " + mend);
    };
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return fault(std::strerror(errno), "name the model's folder with --model (engine.model)");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto parsed = Json::parse(text);
    if (!parsed.ok()) return fault(parsed.error().message, "fetch the file again");
    TRY(auto recipe, Recipe::load());
    auto encoder = recipe->encoder(text);
    if (!encoder.ok()) return fault(encoder.error().message, "fetch the file again");
    auto tokenizer = std::make_shared<FolderTokenizer>(std::move(*encoder),
                                                       folder.substr(folder.find_last_of('/') + 1));
    if (const auto what = tokenizer->read(*parsed))
        return fault(*what, "only models of DeepSeek V4 and V4.1 are read from such a folder");
    // What stands for the chat template that the library has inside: by it the family is known.
    std::string source(kDsml);
    if (tokenizer->v41()) source += kSystem;
    TextModel model;
    model.tokenizer = tokenizer;
    model.family = Family::kDeepSeek4;
    model.chat_template = make_recipe_template(std::move(recipe), tokenizer, source);
    return model;
}

}  // namespace nereid::text
