// Exact sizes of KV objects, by model family: what Geometry and the layout fingerprint of a
// namespace are made from. Every descriptor is tested to the byte against numbers computed
// elsewhere (facts/kv.md, facts/deepinfer_layout, docs/formats/llama-kv-block.md).
//
// A block's history object is layer-major: the slices of a layer are contiguous, layers in rising
// order, so that copies to a device can start at layer 0. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "kv/namespace.h"
#include "model/engine_port.h"

namespace nereid::kv {

struct LayoutSpec {
    model::KvLayout layout;  // family, sizes, slices; `detail` spells everything that changes
                             // bytes, the replay policy included, and so feeds the fingerprint
    Geometry geometry;
    ByteCount handoff_bytes = 0;  // state that prefill hands to decode besides the blocks (not
                                  // persisted); 0 = none
};

// From what an engine reports. Replay is none or, when the layout has state bytes, a stored state.
LayoutSpec layout_of_engine(const model::KvLayout& layout);

// llama.cpp kv-rows-1: header of 64 B, then K rows of every layer, then V rows of every layer.
struct LlamaGeometry {
    std::uint32_t layers = 0;
    ByteCount k_row_bytes = 0;  // ggml_row_size(type, n_embd_k_gqa) of one token
    ByteCount v_row_bytes = 0;
    TokenCount block_tokens = 64;
    std::string detail = {};
};
LayoutSpec llama_layout(const LlamaGeometry& g);

// Plain attention: K and V of `kv_heads` heads per layer. MHA: kv_heads = heads; GQA: fewer;
// MQA: 1.
struct AttentionGeometry {
    std::uint32_t layers = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t k_head_dim = 0;
    std::uint32_t v_head_dim = 0;
    std::uint32_t element_bits = 16;  // 4, 8, 16, 32
    ByteCount scale_bytes = 0;        // per token, layer and K or V (quantised caches)
    TokenCount block_tokens = 256;
    std::string dtype = {};  // "bf16", "fp8_e4m3"
};
LayoutSpec attention_layout(const AttentionGeometry& g);

// Multi-head latent attention: per token and layer one latent entry and optionally an indexer entry
// (V3.2: 656 + 132).
struct MlaGeometry {
    std::uint32_t layers = 0;
    ByteCount latent_bytes = 0;
    ByteCount indexer_bytes = 0;
    TokenCount block_tokens = 256;
    std::string dtype = {};
};
LayoutSpec mla_layout(const MlaGeometry& g);

// DeepSeek-V4-Flash, fp8 (facts/kv.md §1.1): 21 layers keep an entry per 4 tokens (main 584 B +
// indexer 132 B), 20 layers one per 128 tokens (584 B). The state at a boundary is the sliding
// window of 128 tokens of 44 layer groups; replay chooses whether it is stored or run again.
struct V4FlashGeometry {
    TokenCount block_tokens = 256;  // a multiple of 128
    ReplayPolicy replay = ReplayPolicy::kApproximateWindow;
    std::uint32_t checkpoint_blocks = 0;
};
LayoutSpec v4_flash_layout(const V4FlashGeometry& g);

// DeepInfer 0.1.0 with V4.1-Flash (facts/deepinfer.md §5.3; its own layout code). Only layers 2, 8,
// 14 (one entry per 2 tokens) and 20 (one per token) own KV; the state is a ring of fp8 windows.
struct DeepInferGeometry {
    bool fp4_main = true;            // FP4 sparse KV, otherwise MXFP8
    std::uint32_t draft_tokens = 5;  // DEEPINFER_USE_NEXTN_DECODE; 0 = no speculation
    bool extra_state = false;        // DEEPINFER_PREFILL_STORE_EXTRA_STATE
    TokenCount keep_tokens = 140;    // DEEPINFER_YOCO_PREFILL_KEEP_TOKENS
    std::uint32_t checkpoint_blocks = 8;
};
LayoutSpec deepinfer_v41_flash_layout(const DeepInferGeometry& g);

}  // namespace nereid::kv
