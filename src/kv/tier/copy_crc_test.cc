#include "kv/tier/copy_crc.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"

namespace nereid::kv {
namespace {

TEST(CopyCrc, EqualsMemcpyAndCrc32cAtEveryLengthAndOffset) {
    Prng rng(1);
    std::vector<std::uint8_t> from(600'000);
    for (auto& b : from) b = static_cast<std::uint8_t>(rng.next());
    std::vector<std::size_t> lengths;
    for (std::size_t n = 0; n < 900; ++n) lengths.push_back(n);
    for (const std::size_t n : std::initializer_list<std::size_t>{
             4095, 4096, 12287, 12288, 12289, 13000, 114048, 262143, 262144, 262151, 500'003}) {
        lengths.push_back(n);
    }
    for (const std::size_t n : lengths) {
        const std::size_t in = rng.below(16);
        const std::size_t out = rng.below(16);
        const auto seed = static_cast<std::uint32_t>(rng.below(2) == 0 ? 0 : rng.next());
        std::vector<std::uint8_t> to(n + 32, 0xa5);
        const std::span source(from.data() + in, n);
        ASSERT_EQ(copy_crc32c({to.data() + out, n}, source, seed), crc32c(source, seed)) << n;
        ASSERT_TRUE(std::equal(source.begin(), source.end(), to.begin() + static_cast<long>(out)));
        for (std::size_t i = 0; i < out; ++i) ASSERT_EQ(to[i], 0xa5);
        for (std::size_t i = out + n; i < to.size(); ++i) ASSERT_EQ(to[i], 0xa5);
    }
}

}  // namespace
}  // namespace nereid::kv
