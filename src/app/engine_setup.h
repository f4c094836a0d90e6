// Which engine a worker runs, and with what: the knobs "engine.*" and the two factories behind
// them. The only place where adapters are named. The child gets the same knobs as a file
// (serve.cc), so that they are declared once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "io/config.h"
#include "io/loop.h"
#include "text/tokenizer.h"

namespace nereid::app {

struct EngineOptions {
    std::string kind = "llama";
    std::string model;  // empty = default_model_path()
    std::int64_t context = 0;
    std::int64_t parallel = 16;
    std::int64_t kv_tokens = 0;
    std::int64_t ubatch = 512;
    std::int64_t threads = 0;
    std::int64_t max_queued = 256;
    io::SizeBytes prefix_store{512ull << 20};
    bool determinism = true;
    bool flash_attention = true;
    std::string kv_type = "f16";
    Duration hold_lease = 30s;
    Duration decode_gap = 250ms;
    std::int64_t seed = 0;
    std::string script;
    std::string cache;
    std::string deepinfer;
    std::string deepinfer_name = "deepinfer";
    std::string deepinfer_python = "/usr/bin/python3";
    std::string deepinfer_package;
    Duration deepinfer_progress_timeout = 60s;
    void bind(io::ConfigBinder& b);  // "engine.*"

    std::vector<std::string> deepinfer_groups() const;  // the files that `deepinfer` names
    std::string model_path() const;
    std::string model_name() const;  // the file's name without ".gguf": what clients call it
};

// Where ./dev keeps the default model: ($NEREID_CACHE, or $XDG_CACHE_HOME/nereid, or
// ~/.cache/nereid)/models/...
std::string default_model_path();

// Opens the engine, to be stepped on `loop`; the model loads here (blocks, hundreds of
// milliseconds). kConfig with file, key and mend.
Result<std::unique_ptr<engine::Engine>> make_engine(const EngineOptions& options, io::Loop& loop);

// The text side of the same model (vocabulary and template only). kConfig with file, key and mend.
Result<text::TextModel> open_text(const EngineOptions& options);

// A look at the file before a child is started for it: there, a file, readable, not empty. kConfig
// with the mend.
Result<void> check_model_file(const EngineOptions& options);

}  // namespace nereid::app
