#include "kv/ssd/notes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"
#include "base/prng.h"

namespace nereid::kv::ssd {
namespace {

constexpr FolderId kFolder{1, 2, 3};

Notes some_notes() {
    Notes n;
    n.clears[Digest256{7}] = 3;
    n.clears[Digest256{9}] = 1;
    n.hits[12] = {1, 0, 0x8000000000000000};
    n.hits[15] = {};
    return n;
}

TEST(Notes, ComeBack) {
    for (const Notes& n : {Notes{}, some_notes()}) {
        const std::string bytes = encode_notes(n, kFolder);
        EXPECT_EQ(bytes.size() % kPage, 0U);
        const auto back = decode_notes(bytes, kFolder);
        ASSERT_TRUE(back.ok()) << back.error().message;
        EXPECT_EQ(*back, n);
    }
    EXPECT_FALSE(decode_notes(encode_notes(some_notes(), kFolder), FolderId{4}).ok());
}

TEST(Notes, EveryFlippedBitAndEveryCutIsFound) {
    const std::string good = encode_notes(some_notes(), kFolder);
    for (std::size_t bit = 0; bit < 8 * good.size(); bit += bit < 8 * 400 ? 1 : 997) {
        std::string bad = good;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
        EXPECT_FALSE(decode_notes(bad, kFolder).ok()) << bit;
    }
    for (const std::size_t length : {0UL, 1UL, 47UL, 4095UL})
        EXPECT_FALSE(decode_notes(std::string_view(good).substr(0, length), kFolder).ok());
    EXPECT_FALSE(decode_notes(good + std::string(kPage, '\0'), kFolder).ok());
}

// Counts that lie under a right checksum.
TEST(Notes, LyingCountsAllocateNothing) {
    Prng rng(3);
    for (int i = 0; i < 2000; ++i) {
        std::string bytes = encode_notes(some_notes(), kFolder);
        const std::size_t at = 8 + rng.below(200);
        const std::uint64_t lie = rng.next();
        std::memcpy(bytes.data() + at, &lie, 1 + rng.below(8));
        std::uint64_t length;
        std::memcpy(&length, bytes.data() + 24, sizeof length);
        if (length >= 48 && length <= bytes.size()) {
            const std::uint32_t crc =
                crc32c(as_bytes(std::string_view(bytes).substr(8, length - 8)));
            std::memcpy(bytes.data() + 4, &crc, sizeof crc);
        }
        const auto n = decode_notes(bytes, kFolder);
        if (n.ok()) EXPECT_EQ(encode_notes(*n, kFolder), bytes);
    }
}

}  // namespace
}  // namespace nereid::kv::ssd
