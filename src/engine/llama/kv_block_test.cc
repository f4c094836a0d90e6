#include "engine/llama/kv_block.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "engine/llama/options.h"
#include "engine/llama/region.h"

namespace nereid::engine::llama {
namespace {

KvGeometry small() {
    KvGeometry g;
    g.tensors = {{0, false, 1, 8}, {1, false, 1, 8}, {0, true, 1, 4}, {1, true, 1, 4}};
    g.state_magic = 0xabcd;
    g.streams = 3;
    return g;
}
model::BlockKey some_key() {
    model::BlockKey k;
    k.bytes.fill(7);
    return k;
}
std::string block_of(const KvGeometry& g, TokenCount first, TokenCount tokens, std::uint8_t start) {
    std::string out;
    seal_block(g, some_key(), first, tokens, out, [&](std::span<std::uint8_t> rows) {
        for (auto& b : rows) b = start++;
    });
    return out;
}

TEST(KvBlock, RoundTrip) {
    const auto g = small();
    const std::string bytes = block_of(g, 128, 64, 3) + "what follows";
    auto view = open_block(g, bytes);
    ASSERT_TRUE(view.ok()) << view.error().message;
    EXPECT_EQ(view->key, some_key());
    EXPECT_EQ(view->first_token, 128u);
    EXPECT_EQ(view->tokens, 64u);
    EXPECT_EQ(view->size, g.block_bytes(64));
    EXPECT_EQ(view->rows[1], 4);
}

TEST(KvBlock, EveryFlippedBitAndEveryCutIsFound) {
    const auto g = small();
    const std::string good = block_of(g, 0, 5, 1);
    for (std::size_t i = 0; i < good.size() * 8; ++i) {
        std::string bad = good;
        bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
        ASSERT_FALSE(open_block(g, bad).ok()) << "bit " << i;
        ASSERT_EQ(open_block(g, bad).code(), Code::kCorrupt);
    }
    for (std::size_t n = 0; n < good.size(); ++n)
        ASSERT_FALSE(open_block(g, good.substr(0, n)).ok()) << n;
}

TEST(KvBlock, OfAnotherGeometryIsRefused) {
    auto other = small();
    other.tensors[0].type = 8;
    EXPECT_FALSE(open_block(other, block_of(small(), 0, 64, 0)).ok());
}

// The state as llama.cpp writes it (llama-kv-cache.cpp, state_write), spelled out for 3 tokens in
// two blocks.
TEST(KvBlock, StateIsTensorMajor) {
    KvGeometry g;
    g.tensors = {{0, false, 1, 2}, {0, true, 1, 1}};
    g.state_magic = 0x11223344;
    g.streams = 2;
    const std::vector<std::uint8_t> a{1, 2, 3, 4, 100, 101};  // two tokens: K rows, V rows
    const std::vector<std::uint8_t> b{5, 6, 102};             // one token
    const std::vector<BlockView> views{{{}, 0, 2, a, 0}, {{}, 2, 1, b, 0}};
    std::string got;
    assemble_state(g, views, got);
    std::string expected;
    ByteWriter w(expected);
    for (const std::uint32_t v :
         {0x11223344u, 0u, 2u, 3u, 0u, 1u, 0u, 1u, 1u, 0u, 2u, 1u, 0u, 0u, 1u})
        w.put(v);
    w.put(std::int32_t{1});
    w.put(std::uint64_t{2});
    for (const int v : {1, 2, 3, 4, 5, 6}) w.put(static_cast<std::uint8_t>(v));
    w.put(std::int32_t{1});
    w.put(std::uint64_t{1});
    for (const int v : {100, 101, 102}) w.put(static_cast<std::uint8_t>(v));
    w.put(std::uint32_t{0});  // the other stream is empty
    EXPECT_EQ(got, expected);
}

TEST(Region, RangesAreChecked) {
    EXPECT_FALSE(Region::map("/nonexistent/file", 10).ok());
    EXPECT_FALSE(Region::map("/dev/null", 10).ok());
    Region none;
    EXPECT_EQ(none.range(0, 0).code(), Code::kConflict);
}

}  // namespace
}  // namespace nereid::engine::llama
