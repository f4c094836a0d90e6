#include <llama.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "text/folder/folder.h"
#include "text/gguf/chat_template.h"
#include "text/gguf/vocabulary.h"
#include "text/recipe/recipe.h"
#include "text/tokenizer.h"

namespace nereid::text {
namespace {

// libllama tells why a load failed only through its log, which is global: each thread that opens a
// file collects its own.
thread_local std::string* collected_errors = nullptr;

void collect_log(ggml_log_level level, const char* text, void*) {
    if (collected_errors != nullptr && level == GGML_LOG_LEVEL_ERROR) *collected_errors += text;
}

// The reason inside libllama's "llama_model_load: error loading model: REASON\n...".
std::string reason_in(const std::string& log) {
    constexpr std::string_view kMark = "error loading model: ";
    const std::size_t mark = log.find(kMark);
    const std::size_t begin = mark == std::string::npos ? 0 : mark + kMark.size();
    std::string reason = log.substr(begin, log.find('\n', begin) - begin);
    return reason.empty() ? "libllama gave no reason" : reason;
}

std::unexpected<Error> bad_file(const std::string& path, const std::string& what,
                                const std::string& mend) {
    return err(Code::kConfig, "model file " + path + ": " + what + ". Mend: " + mend);
}

Result<void> look_at(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return bad_file(path, std::strerror(errno),
                        "give an existing, readable GGUF file with --model PATH");
    }
    std::array<char, 4> magic{};
    file.read(magic.data(), magic.size());
    if (file.gcount() != 4 || std::memcmp(magic.data(), "GGUF", 4) != 0) {
        return bad_file(
            path, "not a GGUF file (it does not begin with \"GGUF\")",
            "convert the model with llama.cpp's convert_hf_to_gguf.py, or download a .gguf");
    }
    return {};
}

llama_model* load(const std::string& path, std::string& log) {
    // Set once and never taken back: engine/llama may set its own callback later, then reasons go
    // there.
    static std::once_flag once;
    std::call_once(once, [] { llama_log_set(collect_log, nullptr); });
    collected_errors = &log;
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model* model = nullptr;
    try {
        model = llama_model_load_from_file(path.c_str(), params);
    } catch (const std::exception& e) {
        log += std::string("error loading model: ") + e.what() + "\n";
    }
    collected_errors = nullptr;
    return model;
}

std::string metadata(const llama_model* model, const std::string& key) {
    std::string value(256, '\0');
    const std::int32_t size =
        llama_model_meta_val_str(model, key.c_str(), value.data(), value.size());
    value.resize(size < 0 ? 0 : std::min(static_cast<std::size_t>(size), value.size() - 1));
    return value;
}

// libllama reads this into its hyperparameters only when it loads the weights, too.
TokenCount context_of(const llama_model* model) {
    const std::string text =
        metadata(model, metadata(model, "general.architecture") + ".context_length");
    TokenCount tokens = 0;
    std::from_chars(text.data(), text.data() + text.size(), tokens);  // 0 = the file does not say
    return tokens;
}

}  // namespace

Result<TextModel> open_gguf_text(const std::string& path, const std::string& template_override) {
    TRY_VOID(look_at(path));
    std::string log;
    llama_model* loaded = load(path, log);
    if (loaded == nullptr) {
        return bad_file(
            path, reason_in(log),
            "the file may be truncated or damaged: compare its size and sha256, download it again");
    }
    const std::string name = path.substr(path.rfind('/') + 1);
    std::shared_ptr<const Vocabulary> vocabulary;
    try {
        vocabulary = std::make_shared<const Vocabulary>(loaded, name);
    } catch (const std::exception& e) {
        return bad_file(path, std::string("its vocabulary cannot be read: ") + e.what(),
                        "download the file again");
    }
    if (vocabulary->vocab_size() == 0) {
        return bad_file(path, "it holds no vocabulary", "use the GGUF of a text model");
    }

    TextModel model;
    model.tokenizer = vocabulary;
    model.context_tokens = context_of(vocabulary->model());
    std::string source = template_override;
    if (source.empty()) {
        const char* own = llama_model_chat_template(vocabulary->model(), nullptr);
        if (own != nullptr) source = own;
    }
    if (!source.empty()) {
        auto made = make_jinja_template(vocabulary, source);
        if (!made.ok()) {
            return bad_file(path, made.error().message,
                            "give another template with --chat-template FILE");
        }
        model.chat_template = std::move(*made);
        model.family = model.chat_template->family();
        if (model.family == Family::kDeepSeek4) {
            TRY(auto recipe, Recipe::load());
            model.chat_template = make_recipe_template(std::move(recipe), vocabulary, source);
        }
    }
    return model;
}

Result<TextModel> open_text_model(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return open_folder(path, make_jinja_template);
    return open_gguf_text(path);
}

}  // namespace nereid::text
