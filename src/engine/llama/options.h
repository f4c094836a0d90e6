// LlamaOptions: how the embedded llama.cpp engine is set up. Values are checked by
// LlamaEngine::open.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace nereid::engine::llama {

enum class KvType : std::uint8_t { kF16, kQ8_0 };

struct LlamaOptions {
    std::string model_path;  // a GGUF file
    std::string model_id;    // the name clients use; empty = the file's name without ".gguf"
    TokenCount context_tokens =
        0;  // of one request, prompt + output; 0 = what the model was trained for, at most 8192
    std::uint32_t parallel =
        16;  // sequences stepped at once, 1..kMaxParallel; each has a cache of its own
    TokenCount kv_tokens =
        0;  // all caches together; 0 = parallel x context; less lowers `parallel`
    std::uint32_t ubatch = 512;  // most rows of one prefill call, a multiple of 64, 128..2048
    std::uint32_t threads = 0;   // 0 = all cores
    ByteCount prefix_store_bytes = 512ull
                                   << 20;  // host memory for prompt blocks; 0 = none are kept
    bool determinism = true;               // README, "The determinism rule"
    bool flash_attention = true;  // off: no KV blocks leave or enter (V is transposed then)
    KvType kv_type = KvType::kF16;
    std::uint32_t max_queued = 256;  // requests that wait beyond the running ones
    Duration hold_lease{
        30'000'000'000};  // KV of a kPrefillOnly request dies after this unless pinned longer
    Duration decode_gap{250'000'000};  // prefill may keep decoding streams waiting about this long
                                       // per step of theirs
    std::uint64_t seed =
        0;  // of the engine's own Prng, for requests without a seed; 0 = from the clock
};

inline constexpr std::uint32_t kMaxParallel =
    62;  // + a padding row stays below the 64 rows of another kernel
inline constexpr TokenCount kBlockTokens = 64;

}  // namespace nereid::engine::llama
