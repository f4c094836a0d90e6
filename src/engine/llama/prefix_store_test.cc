#include "engine/llama/prefix_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/prng.h"

namespace nereid::engine::llama {
namespace {

using model::BlockKey;

BlockKey key(std::uint8_t a, std::uint8_t b = 0) {
    BlockKey k;
    k.bytes[0] = a;
    k.bytes[1] = b;
    return k;
}
std::vector<BlockKey> chain(std::uint8_t id, std::size_t n) {
    std::vector<BlockKey> out;
    for (std::size_t i = 0; i < n; ++i) out.push_back(key(id, static_cast<std::uint8_t>(i + 1)));
    return out;
}
bool fill(PrefixStore& s, const std::vector<BlockKey>& c, std::size_t n, std::size_t bytes = 10) {
    bool all = true;
    for (std::uint32_t i = 0; i < n; ++i) all = s.put(c, i, std::string(bytes, 'x')) && all;
    return all;
}

TEST(PrefixStore, MatchesTheContiguousPrefix) {
    PrefixStore s(1000);
    const auto c = chain(1, 5);
    EXPECT_FALSE(s.put(c, 1, "no parent"));
    EXPECT_TRUE(fill(s, c, 3));
    EXPECT_EQ(s.match(c), 3u);
    EXPECT_EQ(s.bytes(), 30u);
    EXPECT_TRUE(s.put(c, 2, std::string(10, 'y')));  // it is here already: unchanged
    EXPECT_EQ(*s.find(c[2]), std::string(10, 'x'));
    EXPECT_EQ(s.find(c[4]), nullptr);
    s.drop(c[1]);
    EXPECT_EQ(s.match(c), 1u);
    EXPECT_EQ(s.bytes(), 10u);
    EXPECT_EQ(s.stats().dropped, 2u);
}

TEST(PrefixStore, EvictsTheTailOfTheOldestBeforeItsHead) {
    PrefixStore s(60);
    const auto a = chain(1, 3);
    const auto b = chain(2, 3);
    fill(s, a, 3);
    fill(s, b, 3);
    s.touch(a);  // b is the oldest now
    const auto c = chain(3, 2);
    EXPECT_TRUE(fill(s, c, 2));
    EXPECT_EQ(s.match(a), 3u);
    EXPECT_EQ(s.match(b), 1u);
    EXPECT_EQ(s.match(c), 2u);
}

TEST(PrefixStore, PinnedBlocksStayAndWhatDoesNotFitIsRefused) {
    PrefixStore s(40);
    const auto a = chain(1, 4);
    fill(s, a, 4);
    EXPECT_EQ(s.pin(a), 4u);
    EXPECT_FALSE(s.put(chain(2, 1), 0, std::string(10, 'x')));
    EXPECT_FALSE(s.put(chain(3, 1), 0, std::string(41, 'x')));
    s.unpin(a);
    EXPECT_TRUE(s.put(chain(2, 1), 0, std::string(10, 'x')));
    EXPECT_EQ(s.match(a), 3u);
}

// Random operations against a map that is checked for the promises, not for the order of eviction.
TEST(PrefixStore, RandomOperationsKeepThePromises) {
    Prng prng(8);
    PrefixStore s(300);
    std::map<std::uint8_t, std::vector<BlockKey>> chains;
    std::map<std::array<std::uint8_t, 16>, std::string> written;
    // A tree: chain c shares its first blocks with chain c - 1.
    for (std::uint8_t c = 1; c <= 8; ++c) {
        auto mine = chain(c, 6);
        if (c > 1)
            std::copy_n(chains[static_cast<std::uint8_t>(c - 1)].begin(), prng.below(5),
                        mine.begin());
        chains[c] = mine;
    }
    std::vector<std::vector<BlockKey>> pinned;
    for (int i = 0; i < 20'000; ++i) {
        const auto& c = chains[static_cast<std::uint8_t>(1 + prng.below(8))];
        const auto index = static_cast<std::uint32_t>(prng.below(c.size()));
        switch (prng.below(10)) {
            case 0:
                s.touch(c);
                break;
            case 1:
                s.drop(c[index]);
                break;
            case 2:
                if (pinned.size() < 2) {
                    pinned.push_back({c.begin(), c.begin() + s.match(c)});
                    s.pin(pinned.back());
                }
                break;
            case 3:
                if (!pinned.empty()) {
                    s.unpin(pinned.back());
                    pinned.pop_back();
                }
                break;
            default: {
                const bool was = s.contains(c[index]);
                std::string bytes(10 + prng.below(40), static_cast<char>('a' + prng.below(26)));
                if (s.put(c, index, bytes) && !was) written[c[index].bytes] = bytes;
            }
        }
        ASSERT_LE(s.bytes(), s.capacity());
        ByteCount sum = 0;
        std::map<std::array<std::uint8_t, 16>, bool> counted;
        for (const auto& [id, k] : chains) {
            for (std::size_t j = 0; j < k.size(); ++j) {
                const std::string* found = s.find(k[j]);
                if (found == nullptr) continue;
                ASSERT_EQ(*found, written[k[j].bytes]);
                ASSERT_TRUE(j == 0 || s.contains(k[j - 1])) << "a block without its head";
                if (!counted[k[j].bytes]) sum += found->size();
                counted[k[j].bytes] = true;
            }
        }
        ASSERT_EQ(sum, s.bytes());
    }
    EXPECT_GT(s.stats().evicted, 100u);
}

}  // namespace
}  // namespace nereid::engine::llama
