#include "app/engine_setup.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "engine/llama/llama_engine.h"
#include "engine/scripted/scripted_engine.h"
#include "engine/scripted/scripted_text.h"
#include "pools/cache/kv_link.h"

namespace nereid::app {

namespace {

constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string from_environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string{} : std::string(value);
}

engine::llama::LlamaOptions llama_options(const EngineOptions& o) {
    engine::llama::LlamaOptions out;
    out.model_path = o.model_path();
    out.model_id = o.model_name();
    out.context_tokens = static_cast<TokenCount>(o.context);
    out.parallel = static_cast<std::uint32_t>(o.parallel);
    out.kv_tokens = static_cast<TokenCount>(o.kv_tokens);
    out.ubatch = static_cast<std::uint32_t>(o.ubatch);
    out.threads = static_cast<std::uint32_t>(o.threads);
    out.prefix_store_bytes = o.prefix_store.value;
    out.determinism = o.determinism;
    out.flash_attention = o.flash_attention;
    out.kv_type = o.kv_type == "q8_0" ? engine::llama::KvType::kQ8_0 : engine::llama::KvType::kF16;
    out.max_queued = static_cast<std::uint32_t>(o.max_queued);
    out.hold_lease = o.hold_lease;
    out.decode_gap = o.decode_gap;
    out.seed = static_cast<std::uint64_t>(o.seed);
    return out;
}

Result<engine::scripted::Script> script_of(const EngineOptions& options) {
    if (options.script.empty()) return engine::scripted::Script();
    return engine::scripted::load_script(options.script);
}

}  // namespace

std::string default_model_path() {
    std::string cache = from_environment("NEREID_CACHE");
    if (cache.empty()) {
        const std::string xdg = from_environment("XDG_CACHE_HOME");
        cache = (xdg.empty() ? from_environment("HOME") + "/.cache" : xdg) + "/nereid";
    }
    return cache + "/models/" + kDefaultModel;
}

void EngineOptions::bind(io::ConfigBinder& b) {
    b.knob("engine.kind", kind,
           {.choices = {"llama", "scripted", "deepinfer"},
            .doc = "llama: the embedded llama.cpp; scripted: answers from a script, for tests and "
                   "benchmarks; deepinfer: a group of DeepInfer ranks (docs/ops/deepinfer.md)."});
    b.knob("engine.model", model,
           {.doc = "GGUF file; for DeepInfer the model's folder, whose tokenizer.json is read. "
                   "Empty: the default model where ./dev puts it."});
    b.knob("engine.context", context,
           {.unit = "tokens",
            .min = 0,
            .max = 1e7,
            .doc = "Longest prompt and answer together; 0: what the model was trained for, at most "
                   "8192."});
    b.knob(
        "engine.parallel", parallel,
        {.unit = "sequences", .min = 1, .max = 62, .doc = "Requests that are computed at once."});
    b.knob("engine.kv_tokens", kv_tokens,
           {.unit = "tokens",
            .min = 0,
            .max = 1e9,
            .doc = "Room for the caches of all sequences; 0: parallel x context."});
    b.knob("engine.ubatch", ubatch,
           {.unit = "tokens",
            .min = 128,
            .max = 2048,
            .doc = "Largest piece of a prompt computed in one step; a multiple of 64."});
    b.knob("engine.threads", threads,
           {.unit = "threads", .min = 0, .max = 1024, .doc = "0: all cores."});
    b.knob("engine.max_queued", max_queued,
           {.unit = "requests",
            .min = 0,
            .max = 1e6,
            .doc = "Requests that wait in the engine beyond the running ones."});
    b.knob("engine.prefix_store", prefix_store,
           {.doc = "Memory for blocks of prompts that may come again; 0B: none."});
    b.knob("engine.determinism", determinism,
           {.doc = "An answer depends neither on who shares the batch nor on what was cached."});
    b.knob("engine.flash_attention", flash_attention,
           {.doc = "Off: no blocks of prompts are kept or restored."});
    b.knob("engine.kv_type", kv_type,
           {.choices = {"f16", "q8_0"}, .doc = "Number format of the KV cache."});
    b.knob("engine.hold_lease", hold_lease,
           {.min = 0, .doc = "How long the KV of a prefill-only request is kept."});
    b.knob("engine.decode_gap", decode_gap,
           {.min = 0,
            .doc = "How long a prompt may keep running streams waiting, per token of theirs."});
    b.knob("engine.seed", seed,
           {.min = 0, .max = 9e15, .doc = "For requests that bring no seed; 0: from the clock."});
    b.knob(
        "engine.cache", cache,
        {.doc = "Unix socket of the KV cache node that keeps prompts (llama.cpp); `nereid serve` "
                "sets it by the keys of cache.*."});
    b.knob("engine.script", script, {.doc = "Script of the scripted engine."});
    b.knob(
        "engine.deepinfer", deepinfer,
        {.doc = "TOML file of the DeepInfer group; of several (`service.engines`) with commas."});
    b.knob("engine.deepinfer_name", deepinfer_name, {.doc = "What clients call its model."});
    b.knob("engine.deepinfer_python", deepinfer_python,
           {.doc = "Python 3.11 or newer that reads the group's file; ranks run with the file's "
                   "own `python`."});
    b.knob("engine.deepinfer_package", deepinfer_package,
           {.doc = "Folder that holds nereid_deepinfer. Empty: Python finds it by itself."});
    b.knob("engine.deepinfer_progress_timeout", deepinfer_progress_timeout,
           {.min = 1,
            .doc = "A rank that is silent for this long is stuck: the whole group is started "
                   "again."});
}

std::vector<std::string> EngineOptions::deepinfer_groups() const {
    std::vector<std::string> out;
    std::stringstream files(deepinfer);
    for (std::string file; std::getline(files, file, ',');) {
        const std::size_t begin = file.find_first_not_of(' ');
        if (begin == std::string::npos) continue;
        out.push_back(file.substr(begin, file.find_last_not_of(' ') - begin + 1));
    }
    return out;
}

std::string EngineOptions::model_path() const {
    return model.empty() ? default_model_path() : model;
}

std::string EngineOptions::model_name() const {
    if (kind == "deepinfer") return deepinfer_name;
    if (kind == "scripted") {
        const auto loaded = script_of(*this);
        return loaded.ok() ? loaded->model_id : "scripted";
    }
    return std::filesystem::path(model_path()).stem().string();
}

Result<void> check_model_file(const EngineOptions& options) {
    const std::string path = options.model_path();
    const std::string mend =
        options.model.empty()
            ? "`./dev up` fetches the default model, or name a GGUF file with --model PATH"
            : "name a GGUF file with --model PATH (key engine.model)";
    std::error_code ec;
    const auto status = std::filesystem::status(path, ec);
    if (!std::filesystem::exists(status))
        return err(Code::kConfig, fmt::format("{}: there is no such file. Mend: {}.", path, mend));
    if (!std::filesystem::is_regular_file(status))
        return err(Code::kConfig, fmt::format("{}: is not a file. Mend: {}.", path, mend));
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return err(Code::kConfig,
                   fmt::format("{}: cannot be read. Mend: its permissions, or {}.", path, mend));
    return {};
}

Result<std::unique_ptr<engine::Engine>> make_engine(const EngineOptions& options, io::Loop& loop) {
    if (options.kind == "scripted") {
        TRY(engine::scripted::Script script, script_of(options));
        return std::unique_ptr<engine::Engine>(
            std::make_unique<engine::scripted::ScriptedEngine>(std::move(script)));
    }
    TRY_VOID(check_model_file(options));
    TRY(auto engine, engine::llama::LlamaEngine::open(llama_options(options)));
    if (!options.cache.empty() && engine->info().layout.block_tokens != 0) {
        pools::KvLinkOptions link;
        link.socket = options.cache;
        engine->use_tier(std::make_unique<pools::KvLink>(loop, std::move(link)));
    }
    return std::unique_ptr<engine::Engine>(std::move(engine));
}

Result<text::TextModel> open_text(const EngineOptions& options) {
    // Without a model's folder (or a GGUF file) a DeepInfer group is spoken to in bytes.
    const bool bytes = options.kind == "deepinfer" && options.model.empty();
    if (options.kind == "scripted" || bytes) {
        TRY(const engine::scripted::Script script, script_of(options));
        return engine::scripted::scripted_text(script);
    }
    if (options.kind == "deepinfer" && std::filesystem::is_directory(options.model))
        return text::open_text_model(options.model);
    TRY_VOID(check_model_file(options));
    return text::open_gguf_text(options.model_path());
}

}  // namespace nereid::app
