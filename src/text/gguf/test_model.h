// The small real model that tests of this room open. Tests only.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "text/tokenizer.h"

namespace nereid::text {

// NEREID_MODEL (set by ctest), else the place where ./dev setup puts it.
inline std::string test_model_path() {
    const char* given =
        std::getenv("NEREID_MODEL");  // tidy: allow env because ctest names the test model this way
    if (given != nullptr) return given;
    const char* home =
        std::getenv("HOME");  // tidy: allow env because a test run by hand finds the cache of ./dev
    return std::string(home == nullptr ? "" : home) +
           "/.cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// llama.cpp's source tree, whose chat templates of real models tests read.
inline std::string llama_source() {
    const char* given =
        std::getenv("NEREID_LLAMA_SOURCE");  // tidy: allow env because ctest names it so
    if (given != nullptr) return given;
    const char* home =
        std::getenv("HOME");  // tidy: allow env because a test run by hand finds the cache of ./dev
    const std::string cache = std::string(home == nullptr ? "" : home) + "/.cache/nereid/src";
    for (const auto& entry : std::filesystem::directory_iterator(cache)) {
        if (entry.path().filename().string().starts_with("llama.cpp-")) return entry.path();
    }
    return cache;
}

// Opened once per process.
inline const TextModel& test_model() {
    static const TextModel model = [] {
        const std::string path = test_model_path();
        CHECK_MSG(std::filesystem::exists(path), "the test model is missing at " + path +
                                                     ". Mend: ./dev setup, or set NEREID_MODEL");
        auto opened = open_gguf_text(path);
        CHECK_MSG(opened.ok(), opened.error().message);
        return std::move(*opened);
    }();
    return model;
}

}  // namespace nereid::text
