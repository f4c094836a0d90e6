#include "model/block_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/hash.h"
#include "base/prng.h"
#include "model/engine_port.h"

namespace nereid::model {
namespace {

Digest256 filled(std::uint8_t first) {
    Digest256 d;
    std::iota(d.begin(), d.end(), first);
    return d;
}

std::string hex(const BlockKey& k) { return to_hex(k.bytes); }

KvLayout sample_layout() {
    KvLayout layout;
    layout.family = "llama.cpp/seq-state-3";
    layout.block_tokens = 64;
    layout.block_bytes = 1'474'560;
    layout.state_bytes = 0;
    layout.replay_tokens = 1;
    layout.detail = "f16,fa=1";
    layout.slices = {{0, 0, 1024, "k"}, {0, 1024, 512, "v"}};
    return layout;
}

Namespace sample_namespace() {
    return make_namespace({filled(0), sample_layout().fingerprint(), "tenant-a", true});
}

std::vector<TokenId> iota_tokens(std::size_t n) {
    std::vector<TokenId> t(n);
    std::iota(t.begin(), t.end(), 1);
    return t;
}

// The two vectors of docs/formats/block-key.md, made there by a second implementation (Python's
// hashlib). Stored blocks depend on them: they change only together with the domain strings.
TEST(BlockKeyFormat, VectorOneTextOnly) {
    EXPECT_EQ(to_hex(sample_layout().fingerprint()),
              "06e8b5e8535b962371f83ef4c2a4db2ca0f831d3421d359a5e67d7df153710b7");
    const Namespace ns = sample_namespace();
    EXPECT_EQ(to_hex(ns.digest),
              "c57af69712dd45a907878a697da4bf6e8af06da9efb2d7a38f54ce0bebd75e38");
    const auto keys = block_chain(ns, iota_tokens(150), 64);
    ASSERT_EQ(keys.size(), 2u);
    EXPECT_EQ(hex(keys[0]), "dce7cbbe89edc4f7bd05674d25995206");
    EXPECT_EQ(hex(keys[1]), "b3a0bf0a2705f2bac12e4b0238ebd655");
}

TEST(BlockKeyFormat, VectorTwoImagesAndAdapter) {
    const Namespace ns = make_namespace({filled(0), filled(32), "", false});
    EXPECT_EQ(to_hex(ns.digest),
              "636051573ffc9a160625ad433caf35a73b7fd6633a0b6c179630894eba1e9829");
    const std::vector<TokenId> tokens{-1, 0, 7, 100'000, 5, 6, 7, 8};
    const ImageRef images[] = {{1, filled(64)}, {3, filled(96)}, {4, filled(128)}};
    const auto keys = block_chain(ns, tokens, 4, images, "lora-1");
    ASSERT_EQ(keys.size(), 2u);
    EXPECT_EQ(hex(keys[0]), "cae2926d1be0f615339e75e2a512400e");
    EXPECT_EQ(hex(keys[1]), "b4581f752b42a2798c625dde28c3f453");
}

TEST(BlockKey, OnlyWholeBlocksHaveNames) {
    const Namespace ns = sample_namespace();
    EXPECT_TRUE(block_chain(ns, {}, 64).empty());
    EXPECT_TRUE(block_chain(ns, iota_tokens(63), 64).empty());
    EXPECT_EQ(block_chain(ns, iota_tokens(64), 64).size(), 1u);
    EXPECT_EQ(block_chain(ns, iota_tokens(129), 64).size(), 2u);
}

TEST(BlockKey, PrefixesShareTheirKeysAndNothingElseDoes) {
    const Namespace ns = sample_namespace();
    Prng prng(1);
    for (int round = 0; round < 200; ++round) {
        std::vector<TokenId> a(32);
        for (auto& t : a) t = static_cast<TokenId>(prng.below(4));
        auto b = a;
        const std::size_t changed = prng.below(b.size());
        b[changed] ^= 1;
        const auto ka = block_chain(ns, a, 4);
        const auto kb = block_chain(ns, b, 4);
        for (std::size_t i = 0; i < ka.size(); ++i) {
            ASSERT_EQ(ka[i] == kb[i], i < changed / 4) << "block " << i << " token " << changed;
        }
    }
}

// Everything that determines a block's bytes changes its name.
TEST(BlockKey, EveryIngredientSeparates) {
    const auto tokens = iota_tokens(8);
    std::set<std::string> seen;
    const auto add = [&](const Namespace& ns, TokenCount block, std::span<const ImageRef> images,
                         std::string_view adapter) {
        return seen.insert(hex(block_chain(ns, tokens, block, images, adapter).front())).second;
    };
    const Namespace plain = make_namespace({filled(0), filled(1), "s", true});
    const ImageRef at0[] = {{0, filled(5)}};
    const ImageRef at1[] = {{1, filled(5)}};
    const ImageRef other[] = {{1, filled(6)}};
    const ImageRef two[] = {{0, filled(5)}, {1, filled(5)}};
    EXPECT_TRUE(add(plain, 4, {}, ""));
    EXPECT_TRUE(add(plain, 8, {}, ""));
    EXPECT_TRUE(add(plain, 4, {}, "a"));
    EXPECT_TRUE(add(plain, 4, at0, ""));
    EXPECT_TRUE(add(plain, 4, at1, ""));
    EXPECT_TRUE(add(plain, 4, other, ""));
    EXPECT_TRUE(add(plain, 4, two, ""));
    EXPECT_TRUE(add(make_namespace({filled(9), filled(1), "s", true}), 4, {}, ""));
    EXPECT_TRUE(add(make_namespace({filled(0), filled(9), "s", true}), 4, {}, ""));
    EXPECT_TRUE(add(make_namespace({filled(0), filled(1), "t", true}), 4, {}, ""));
    EXPECT_TRUE(add(make_namespace({filled(0), filled(1), "s", false}), 4, {}, ""));
    EXPECT_FALSE(add(plain, 4, {}, ""));
}

// An image that begins after the last whole block changes nothing; one that begins in the first
// changes all that follow.
TEST(BlockKey, AnImageBelongsToTheBlockOfItsFirstPlaceholder) {
    const Namespace ns = sample_namespace();
    const auto tokens = iota_tokens(10);
    const auto plain = block_chain(ns, tokens, 4);
    const ImageRef tail[] = {{8, filled(5)}};
    EXPECT_EQ(block_chain(ns, tokens, 4, tail), plain);
    const ImageRef second[] = {{7, filled(5)}};
    const auto keys = block_chain(ns, tokens, 4, second);
    EXPECT_EQ(keys[0], plain[0]);
    EXPECT_NE(keys[1], plain[1]);
}

TEST(BlockKeyDeathTest, UnsortedImagesAreOurBug) {
    const auto tokens = iota_tokens(8);
    const ImageRef unsorted[] = {{5, filled(5)}, {1, filled(5)}};
    EXPECT_DEATH((void)block_chain(sample_namespace(), tokens, 4, unsorted), "not sorted");
}

TEST(KvLayout, EveryFieldChangesTheFingerprint) {
    std::set<Digest256> seen;
    const auto add = [&seen](auto change) {
        KvLayout layout = sample_layout();
        change(layout);
        return seen.insert(layout.fingerprint()).second;
    };
    EXPECT_TRUE(add([](KvLayout&) {}));
    EXPECT_TRUE(add([](KvLayout& l) { l.family += "x"; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.block_tokens += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.block_bytes += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.state_bytes += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.replay_tokens += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.detail += "x"; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.slices.pop_back(); }));
    EXPECT_TRUE(add([](KvLayout& l) { l.slices[1].layer += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.slices[1].offset += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.slices[1].length += 1; }));
    EXPECT_TRUE(add([](KvLayout& l) { l.slices[1].role += "x"; }));
    EXPECT_FALSE(add([](KvLayout&) {}));
}

}  // namespace
}  // namespace nereid::model
