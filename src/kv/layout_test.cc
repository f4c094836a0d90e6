// Sizes to the byte, against numbers that others computed: facts/deepinfer_layout (DeepInfer's own
// code), facts/kv.md §1.1 (vllm#48906's byte counts), docs/formats/llama-kv-block.md.
#include "kv/layout.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "kv/placement.h"

namespace nereid::kv {
namespace {

std::vector<std::array<std::uint64_t, 3>> slices_of(const LayoutSpec& spec) {
    std::vector<std::array<std::uint64_t, 3>> out;
    for (const auto& s : spec.layout.slices) out.push_back({s.layer, s.offset, s.length});
    return out;
}

void expect_sound(const LayoutSpec& spec) {
    EXPECT_TRUE(check_geometry(spec.geometry).ok());
    EXPECT_EQ(spec.layout.block_bytes, spec.geometry.history_bytes);
    EXPECT_EQ(spec.layout.block_tokens, spec.geometry.block_tokens);
    EXPECT_EQ(spec.layout.state_bytes, spec.geometry.state_bytes);
    ByteCount end = 0;
    for (const auto& s : spec.layout.slices) {
        EXPECT_GE(s.offset, end);
        end = s.offset + s.length;
    }
    EXPECT_LE(end, spec.geometry.history_bytes);
}

TEST(Layout, DeepInferDefaultIsFp4) {
    const LayoutSpec spec = deepinfer_v41_flash_layout({});
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.block_tokens, 128U);
    EXPECT_EQ(spec.geometry.history_bytes, 114'048U);
    EXPECT_EQ(spec.geometry.history_bytes / 128, 891U);
    EXPECT_EQ(spec.geometry.state_bytes, 1'415'040U);
    EXPECT_EQ(spec.handoff_bytes, 3'128'928U);
    EXPECT_EQ(slices_of(spec),
              (std::vector<std::array<std::uint64_t, 3>>{
                  {2, 0, 22784}, {8, 22784, 22784}, {14, 45568, 22784}, {20, 68352, 45568}}));
}

TEST(Layout, DeepInferMxfp8) {
    const LayoutSpec spec = deepinfer_v41_flash_layout({.fp4_main = false});
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.history_bytes, 194'304U);
    EXPECT_EQ(spec.geometry.state_bytes, 1'415'040U);
    EXPECT_EQ(spec.handoff_bytes, 3'128'928U);
    EXPECT_EQ(slices_of(spec),
              (std::vector<std::array<std::uint64_t, 3>>{
                  {2, 0, 38144}, {8, 38144, 38144}, {14, 76288, 38144}, {20, 114432, 76288}}));
}

TEST(Layout, DeepInferWithoutSpeculationAndWithExtraState) {
    const LayoutSpec plain = deepinfer_v41_flash_layout({.draft_tokens = 0});
    EXPECT_EQ(plain.geometry.state_bytes, 1'362'560U);
    EXPECT_EQ(plain.handoff_bytes, 2'954'688U);
    EXPECT_EQ(plain.geometry.history_bytes, 114'048U);
    const LayoutSpec extra = deepinfer_v41_flash_layout({.extra_state = true});
    EXPECT_EQ(extra.geometry.state_bytes, 1'415'040U);
    EXPECT_EQ(extra.handoff_bytes, 3'128'928U);
}

TEST(Layout, V4Flash) {
    const LayoutSpec spec = v4_flash_layout({});
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.history_bytes, 985'664U);
    EXPECT_EQ(spec.geometry.history_bytes / 256, 3'850U);
    EXPECT_EQ(spec.geometry.state_bytes, 0U);
    EXPECT_EQ(v4_flash_layout({.replay = ReplayPolicy::kExactWindow}).geometry.replay_tokens,
              5'504U);
    const LayoutSpec stored =
        v4_flash_layout({.replay = ReplayPolicy::kStoredState, .checkpoint_blocks = 16});
    expect_sound(stored);
    // Four SWA pages of 822,272 B (64 tokens x 22 layers x 584) and the ratio-4 tails.
    EXPECT_EQ(stored.geometry.state_bytes, 4U * 822'272U + 860'160U);
}

TEST(Layout, LlamaRows) {
    const LayoutSpec spec =
        llama_layout({.layers = 30, .k_row_bytes = 384, .v_row_bytes = 384, .detail = "f16"});
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.history_bytes, 1'474'624U);
    EXPECT_EQ(spec.layout.slices.size(), 60U);
    EXPECT_EQ(spec.layout.slices[0].offset, 64U);
    EXPECT_EQ(spec.layout.slices[30].role, "v");
    EXPECT_EQ(spec.geometry.keep_tokens, 64U);
}

TEST(Layout, PlainAttention) {
    // SmolLM2-135M in bf16: the same rows as llama.cpp's f16, without its header.
    EXPECT_EQ(
        attention_layout(
            {.layers = 30, .kv_heads = 3, .k_head_dim = 64, .v_head_dim = 64, .block_tokens = 64})
            .geometry.history_bytes,
        1'474'560U);
    // Llama-3-8B, GQA with 8 of 32 heads: 128 KiB a token. As MHA it would be four times that.
    const AttentionGeometry gqa{.layers = 32, .kv_heads = 8, .k_head_dim = 128, .v_head_dim = 128};
    const LayoutSpec spec = attention_layout(gqa);
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.history_bytes, 256U * 131'072U);
    AttentionGeometry mha = gqa;
    mha.kv_heads = 32;
    EXPECT_EQ(attention_layout(mha).geometry.history_bytes, 256U * 524'288U);
    AttentionGeometry fp8 = gqa;
    fp8.element_bits = 8;
    fp8.scale_bytes = 4;
    EXPECT_EQ(attention_layout(fp8).geometry.history_bytes, 256U * 32U * 2U * (1024U + 4U));
}

TEST(Layout, Mla) {
    const LayoutSpec spec =
        mla_layout({.layers = 61, .latent_bytes = 656, .indexer_bytes = 132, .dtype = "fp8"});
    expect_sound(spec);
    EXPECT_EQ(spec.geometry.history_bytes, 256U * 61U * 788U);  // 48 K a token
    EXPECT_EQ(spec.layout.slices.size(), 122U);
}

// K3, K45: whatever changes bytes or their meaning changes the namespace.
TEST(Layout, EveryKnobChangesTheFingerprint_K3_K45) {
    std::vector<Digest256> seen;
    const auto differs = [&](const LayoutSpec& spec) {
        const Digest256 f = spec.layout.fingerprint();
        EXPECT_EQ(std::count(seen.begin(), seen.end(), f), 0);
        seen.push_back(f);
    };
    differs(deepinfer_v41_flash_layout({}));
    differs(deepinfer_v41_flash_layout({.fp4_main = false}));
    differs(deepinfer_v41_flash_layout({.draft_tokens = 4}));
    differs(deepinfer_v41_flash_layout({.extra_state = true}));
    differs(deepinfer_v41_flash_layout({.keep_tokens = 141}));
    differs(deepinfer_v41_flash_layout({.checkpoint_blocks = 4}));
    differs(v4_flash_layout({}));
    differs(v4_flash_layout({.replay = ReplayPolicy::kExactWindow}));
    differs(v4_flash_layout({.replay = ReplayPolicy::kStoredState}));
    differs(v4_flash_layout({.block_tokens = 128}));
    differs(llama_layout({.layers = 30, .k_row_bytes = 384, .v_row_bytes = 384, .detail = "f16"}));
    differs(llama_layout({.layers = 30, .k_row_bytes = 384, .v_row_bytes = 384, .detail = "q8"}));
    differs(attention_layout(
        {.layers = 2, .kv_heads = 1, .k_head_dim = 64, .v_head_dim = 64, .dtype = "bf16"}));
    differs(attention_layout(
        {.layers = 2, .kv_heads = 1, .k_head_dim = 64, .v_head_dim = 64, .dtype = "f16"}));
}

TEST(Placement, GroupsOfSixteenLiveTogetherAndOrderDoesNotMatter) {
    Prng rng(1);
    std::vector<model::BlockKey> chain(100);
    for (auto& k : chain) {
        for (auto& b : k.bytes) b = static_cast<std::uint8_t>(rng.next());
    }
    const std::vector<NodeId> nodes{{1}, {2}, {3}, {4}, {5}};
    const std::vector<NodeId> reversed(nodes.rbegin(), nodes.rend());
    const auto parts = place_chain(chain, nodes);
    std::uint32_t at = 0;
    for (const auto& p : parts) {
        EXPECT_EQ(p.first_block, at);
        EXPECT_EQ(p.first_block % kGroupBlocks, 0U);
        for (std::uint32_t b = at; b < at + p.blocks; b += kGroupBlocks) {
            EXPECT_EQ(group_home(chain[b], nodes), p.node);
            EXPECT_EQ(reversed[group_home(chain[b], reversed)].value, nodes[p.node].value);
        }
        at += p.blocks;
    }
    EXPECT_EQ(at, 100U);
    EXPECT_EQ(place_chain(chain, std::vector<NodeId>{{7}}), (std::vector<ChainPart>{{0, 100, 0}}));
    EXPECT_TRUE(place_chain({}, nodes).empty());
}

TEST(Placement, ANodeThatLeavesMovesOnlyItsOwnShare) {
    Prng rng(2);
    const std::vector<NodeId> all{{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}};
    const std::vector<NodeId> fewer(all.begin(), all.end() - 1);
    std::vector<int> share(8);
    for (int i = 0; i < 4000; ++i) {
        model::BlockKey k;
        for (auto& b : k.bytes) b = static_cast<std::uint8_t>(rng.next());
        const std::size_t before = group_home(k, all);
        ++share[before];
        if (before != 7) {
            EXPECT_EQ(group_home(k, fewer), before);
        }
    }
    for (const int n : share) EXPECT_NEAR(n, 500, 110);
}

}  // namespace
}  // namespace nereid::kv
