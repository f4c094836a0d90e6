#include "kv/layout.h"

#include <array>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"

namespace nereid::kv {
namespace {

constexpr ByteCount round_up(ByteCount n, ByteCount to) { return (n + to - 1) / to * to; }

// Adds a slice behind the last one.
void add_slice(model::KvLayout& layout, std::uint32_t layer, ByteCount length, std::string role) {
    const ByteCount at =
        layout.slices.empty() ? 0 : layout.slices.back().offset + layout.slices.back().length;
    layout.slices.push_back({layer, at, length, std::move(role)});
}

ByteCount end_of(const model::KvLayout& layout) {
    return layout.slices.back().offset + layout.slices.back().length;
}

std::string_view replay_name(ReplayPolicy replay) {
    switch (replay) {
        case ReplayPolicy::kNone:
            return "none";
        case ReplayPolicy::kApproximateWindow:
            return "approximate";
        case ReplayPolicy::kExactWindow:
            return "exact";
        case ReplayPolicy::kStoredState:
            return "stored";
    }
    return "none";
}

// The rules are part of what a block means (recovery mode, DESIGN §6): into the fingerprint.
LayoutSpec finish(model::KvLayout layout, Geometry g) {
    layout.block_tokens = g.block_tokens;
    layout.block_bytes = g.history_bytes;
    layout.state_bytes = g.state_bytes;
    layout.replay_tokens = g.keep_tokens;
    layout.detail += fmt::format("{}replay={} window={} again={} checkpoint={}",
                                 layout.detail.empty() ? "" : "; ", replay_name(g.replay),
                                 g.window_tokens, g.replay_tokens, g.checkpoint_blocks);
    return {std::move(layout), g, 0};
}

}  // namespace

LayoutSpec layout_of_engine(const model::KvLayout& layout) {
    Geometry g;
    g.block_tokens = layout.block_tokens;
    g.history_bytes = layout.block_bytes;
    g.state_bytes = layout.state_bytes;
    g.keep_tokens = std::max<TokenCount>(1, layout.replay_tokens);
    g.replay = layout.state_bytes == 0 ? ReplayPolicy::kNone : ReplayPolicy::kStoredState;
    return {layout, g, 0};
}

LayoutSpec llama_layout(const LlamaGeometry& in) {
    constexpr ByteCount kHeader = 64;  // docs/formats/llama-kv-block.md
    model::KvLayout layout;
    layout.family = "llama.cpp/kv-rows-1";
    layout.detail = in.detail;
    ByteCount at = kHeader;
    for (const bool value : {false, true}) {
        const ByteCount length = (value ? in.v_row_bytes : in.k_row_bytes) * in.block_tokens;
        for (std::uint32_t layer = 0; layer < in.layers; ++layer, at += length) {
            layout.slices.push_back({layer, at, length, value ? "v" : "k"});
        }
    }
    layout.block_tokens = in.block_tokens;
    layout.block_bytes = at;
    layout.replay_tokens = in.block_tokens;  // no prefill call under 64 rows (src/engine/README.md)
    return layout_of_engine(layout);
}

LayoutSpec attention_layout(const AttentionGeometry& in) {
    model::KvLayout layout;
    layout.family = "attention/1";
    layout.detail = fmt::format("{}; heads {} k {} v {} bits {} scale {}", in.dtype, in.kv_heads,
                                in.k_head_dim, in.v_head_dim, in.element_bits, in.scale_bytes);
    for (std::uint32_t layer = 0; layer < in.layers; ++layer) {
        for (const bool value : {false, true}) {
            const ByteCount bits =
                ByteCount{in.kv_heads} * in.element_bits * (value ? in.v_head_dim : in.k_head_dim);
            CHECK_MSG(bits % 8 == 0, "a token's heads are no whole number of bytes");
            add_slice(layout, layer, (bits / 8 + in.scale_bytes) * in.block_tokens,
                      value ? "v" : "k");
        }
    }
    Geometry g;
    g.block_tokens = in.block_tokens;
    g.history_bytes = end_of(layout);
    return finish(std::move(layout), g);
}

LayoutSpec mla_layout(const MlaGeometry& in) {
    model::KvLayout layout;
    layout.family = "mla/1";
    layout.detail =
        fmt::format("{}; latent {} indexer {}", in.dtype, in.latent_bytes, in.indexer_bytes);
    for (std::uint32_t layer = 0; layer < in.layers; ++layer) {
        add_slice(layout, layer, in.latent_bytes * in.block_tokens, "latent");
        if (in.indexer_bytes != 0) {
            add_slice(layout, layer, in.indexer_bytes * in.block_tokens, "index_k");
        }
    }
    Geometry g;
    g.block_tokens = in.block_tokens;
    g.history_bytes = end_of(layout);
    return finish(std::move(layout), g);
}

LayoutSpec v4_flash_layout(const V4FlashGeometry& in) {
    constexpr std::uint32_t kRatio4 = 21;
    constexpr std::uint32_t kRatio128 = 20;
    constexpr std::uint32_t kWindowLayers = 44;  // two groups of 22
    constexpr std::uint32_t kLayers = 43;
    constexpr TokenCount kWindow = 128;
    constexpr ByteCount kMain = 448 + 128 + 8;  // fp8, bf16 of RoPE, scales
    constexpr ByteCount kIndexer = 128 + 4;
    constexpr ByteCount kOverlap = 860'160;  // tails of the ratio-4 compressors, main and indexer
    CHECK_MSG(in.block_tokens % 128 == 0, "a block ends where a ratio-128 entry does");

    model::KvLayout layout;
    layout.family = "deepseek/v4-flash-fp8";
    // Which layer has which ratio is not public: the two kinds alternate here. Sizes do not depend
    // on it.
    for (std::uint32_t layer = 0; layer < kRatio4 + kRatio128; ++layer) {
        if (layer % 2 == 0) {
            add_slice(layout, layer, kMain * (in.block_tokens / 4), "latent");
            add_slice(layout, layer, kIndexer * (in.block_tokens / 4), "index_k");
        } else {
            add_slice(layout, layer, kMain * (in.block_tokens / 128), "latent");
        }
    }
    Geometry g;
    g.block_tokens = in.block_tokens;
    g.history_bytes = end_of(layout);
    g.replay = in.replay;
    g.window_tokens = kWindow;
    if (in.replay == ReplayPolicy::kExactWindow) {
        g.replay_tokens = kWindow + (kLayers - 1) * kWindow;
    } else if (in.replay == ReplayPolicy::kStoredState) {
        // A block ends on a ratio-128 boundary, so those compressors have no tail.
        g.state_bytes = kWindow * kWindowLayers * kMain + kOverlap;
        g.checkpoint_blocks = in.checkpoint_blocks;
    }
    return finish(std::move(layout), g);
}

LayoutSpec deepinfer_v41_flash_layout(const DeepInferGeometry& in) {
    struct Owner {
        std::uint32_t layer;
        std::uint32_t ratio;
    };
    constexpr std::array<Owner, 4> kOwners{{{2, 2}, {8, 2}, {14, 2}, {20, 1}}};
    constexpr TokenCount kBlock = 128;
    constexpr TokenCount kWindow = 128;
    constexpr ByteCount kIndexer = 64 + 4;  // FP4 and UE8M0 scales
    constexpr ByteCount kWindowEntry = 512 + 16;
    constexpr ByteCount kStateAlign = 32;
    constexpr std::uint32_t kStoredWindows = 20;       // layers 0-19
    constexpr std::uint32_t kWindows = 40 + 3;         // and 20-39, and DSpark's three
    constexpr ByteCount kCompressorRow = 2 * 512 * 4;  // of each ratio-2 owner, fp32

    const ByteCount main = in.fp4_main ? 256 + 32 : 512 + 16;
    model::KvLayout layout;
    layout.family = in.fp4_main ? "deepinfer/v4.1-flash-fp4" : "deepinfer/v4.1-flash-mxfp8";
    for (const auto [layer, ratio] : kOwners) {
        // Inside a layer: the index keys of the block, then the main entries.
        const ByteCount entries = kBlock / ratio;
        add_slice(layout, layer, entries * (kIndexer + main), "index_k+latent");
    }
    const TokenCount backtracking = in.draft_tokens + 1;
    const TokenCount ring = kWindow + backtracking;
    const ByteCount window = round_up(ring * kWindowEntry, kStateAlign);
    layout.detail =
        fmt::format("drafts {} backtracking {} ring {} extra-state {} keep {}", in.draft_tokens,
                    backtracking, ring, in.extra_state ? 1 : 0, in.keep_tokens);
    Geometry g;
    g.block_tokens = kBlock;
    g.history_bytes = round_up(end_of(layout), std::lcm(ByteCount{128}, main));
    g.state_bytes = kStoredWindows * window;
    g.replay = ReplayPolicy::kStoredState;
    g.keep_tokens = in.keep_tokens;
    g.window_tokens = kWindow;
    g.checkpoint_blocks = in.checkpoint_blocks;
    LayoutSpec spec = finish(std::move(layout), g);
    spec.handoff_bytes = round_up(kWindows * window + 3 * (backtracking + 1) * kCompressorRow,
                                  std::lcm(kStateAlign, kWindowEntry));
    return spec;
}

}  // namespace nereid::kv
