#include "text/folder/folder.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/json.h"
#include "text/folder/tokenizer.h"
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

std::unexpected<Error> bad(const std::string& path, const std::string& what,
                           const std::string& mend) {
    return err(Code::kConfig, path + ": " + what + ". Mend: " + mend);
}

Result<std::string> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return err(Code::kNotFound, std::strerror(errno));
    return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file that need not be there; null then.
Result<Json> read_json(const std::string& path) {
    const auto text = read_file(path);
    if (!text.ok()) return Json();
    auto parsed = Json::parse(*text);
    if (!parsed.ok()) return bad(path, parsed.error().message, "fetch the file again");
    return parsed;
}

// "<s>", or {"content": "<s>", ...} as older files have it.
std::string token_text(const Json& config, std::string_view name) {
    const Json* token = config.find(name);
    if (token != nullptr && token->is_object()) token = token->find("content");
    return token != nullptr && token->is_string() ? token->as_string() : std::string{};
}

// A template, or a list of named ones of which "default" is for chats.
std::string template_in(const Json& config) {
    const Json* found = config.find("chat_template");
    if (found == nullptr) return {};
    if (found->is_string()) return found->as_string();
    if (!found->is_array()) return {};
    for (const Json& one : found->as_array()) {
        const Json* name = one.find("name");
        if (name != nullptr && name->is_string() && name->as_string() == "default")
            return token_text(one, "template");
    }
    return {};
}

void add_ends(const Json& config, std::vector<TokenId>& out) {
    const Json* ids = config.find("eos_token_id");
    if (ids == nullptr) return;
    const auto add = [&out](const Json& id) {
        const auto number = id.is_int() ? id.as_int() : std::nullopt;
        if (number && *number >= 0 && *number < INT32_MAX)
            out.push_back(static_cast<TokenId>(*number));
    };
    if (!ids->is_array()) return add(*ids);
    for (const Json& id : ids->as_array()) add(id);
}

// Whether encoding a text alone begins with BOS: a post-processor's template says so (Llama 3).
bool begins_with(const Json* processor, const std::string& bos) {
    if (processor == nullptr || bos.empty()) return false;
    if (const Json* all = processor->find("processors"); all != nullptr && all->is_array()) {
        for (const Json& one : all->as_array()) {
            if (begins_with(&one, bos)) return true;
        }
    }
    const Json* single = processor->find("single");
    if (single == nullptr || !single->is_array() || single->as_array().empty()) return false;
    const Json* first = single->as_array()[0].find("SpecialToken");
    return first != nullptr && token_text(*first, "id") == bos;
}

TokenCount context_in(const Json& config) {
    const Json* inner = config.find("text_config");
    for (const Json* place : {inner, &config}) {
        const Json* value = place == nullptr ? nullptr : place->find("max_position_embeddings");
        const auto number = value != nullptr && value->is_int() ? value->as_int() : std::nullopt;
        if (number && *number > 0 && *number < INT32_MAX) return static_cast<TokenCount>(*number);
    }
    return 0;
}

struct Files {
    Json tokenizer;
    Json tokenizer_config;
    Json generation_config;
    Json config;
    std::string chat_template;
};

FolderSpecials specials_of(const Files& files) {
    FolderSpecials out;
    out.bos = token_text(files.tokenizer_config, "bos_token");
    out.eos = token_text(files.tokenizer_config, "eos_token");
    add_ends(files.generation_config, out.ends);
    if (out.ends.empty()) add_ends(files.config, out.ends);
    const Json* told = files.tokenizer_config.find("add_bos_token");
    out.adds_bos = told != nullptr && told->is_bool()
                       ? told->as_bool()
                       : begins_with(files.tokenizer.find("post_processor"), out.bos);
    return out;
}

Result<Files> read_files(const std::string& folder, const std::string& tokenizer_text) {
    Files out;
    auto parsed = Json::parse(tokenizer_text);
    if (!parsed.ok())
        return bad(folder + "/tokenizer.json", parsed.error().message, "fetch the file again");
    out.tokenizer = std::move(*parsed);
    TRY(out.tokenizer_config, read_json(folder + "/tokenizer_config.json"));
    TRY(out.generation_config, read_json(folder + "/generation_config.json"));
    TRY(out.config, read_json(folder + "/config.json"));
    const auto source = read_file(folder + "/chat_template.jinja");
    out.chat_template = source.ok() ? *source : template_in(out.tokenizer_config);
    return out;
}

// Beside a vocabulary of DeepSeek's: V3 and R1 bring a template, V4 and V4.1 do not.
bool is_deepseek_4(const FolderTokenizer& tokenizer, const std::string& chat_template) {
    return tokenizer.added(kBegin) >= 0 && tokenizer.added(kEnd) >= 0 &&
           (chat_template.empty() || detect_family(chat_template) == Family::kDeepSeek4);
}

Result<TextModel> deepseek_4(std::shared_ptr<const Recipe> recipe,
                             const std::shared_ptr<FolderTokenizer>& tokenizer,
                             FolderSpecials specials) {
    specials.bos = kBegin;
    specials.eos = kEnd;
    specials.adds_bos = true;
    tokenizer->set_specials(specials);
    // What stands for the chat template that the library has inside: by it the family is known, and
    // V4.1 by its system token.
    std::string source(kDsml);
    if (tokenizer->added(kSystem) >= 0) source += kSystem;
    TextModel model;
    model.tokenizer = tokenizer;
    model.family = Family::kDeepSeek4;
    model.chat_template = make_recipe_template(std::move(recipe), tokenizer, source);
    return model;
}

}  // namespace

Result<TextModel> open_folder(const std::string& folder, const TemplateMaker& make_template) {
    const std::string path = folder + "/tokenizer.json";
    const auto text = read_file(path);
    if (!text.ok()) {
        std::error_code ignored;
        const bool pieces = std::filesystem::exists(folder + "/tokenizer.model", ignored);
        return bad(
            path, text.error().message,
            pieces ? "tokenizer.model alone is not read; Hugging Face's transformers writes a "
                     "tokenizer.json: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                   : "name the model's folder with --model (engine.model)");
    }
    TRY(const Files files, read_files(folder, *text));
    TRY(auto recipe, Recipe::load());
    auto encoder = recipe->encoder(*text);
    if (!encoder.ok()) {
        return bad(path, "it is no tokenizer of Hugging Face's library: " + encoder.error().message,
                   "fetch the file again");
    }
    const std::string trimmed = folder.substr(0, folder.find_last_not_of('/') + 1);
    auto tokenizer = std::make_shared<FolderTokenizer>(
        std::move(*encoder), trimmed.substr(trimmed.find_last_of('/') + 1));
    if (const auto done = tokenizer->read(files.tokenizer); !done.ok())
        return bad(path, done.error().message, "use a language model's folder");
    const FolderSpecials specials = specials_of(files);
    TextModel model;
    if (is_deepseek_4(*tokenizer, files.chat_template)) {
        TRY(model, deepseek_4(std::move(recipe), tokenizer, specials));
    } else {
        tokenizer->set_specials(specials);
        model.tokenizer = tokenizer;
        if (!files.chat_template.empty()) {
            auto made = make_template(tokenizer, files.chat_template);
            if (!made.ok())
                return bad(folder, made.error().message, "mend its chat_template.jinja");
            model.chat_template = std::move(*made);
            model.family = model.chat_template->family();
        }
    }
    model.context_tokens = context_in(files.config);
    return model;
}

}  // namespace nereid::text
