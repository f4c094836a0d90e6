#include "base/bytes.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid {
namespace {

TEST(Hex, BothWays) {
    const std::array<std::uint8_t, 4> raw{0x00, 0x7f, 0xab, 0xff};
    EXPECT_EQ(to_hex(raw), "007fabff");
    std::array<std::uint8_t, 4> back{};
    EXPECT_TRUE(from_hex("007FabfF", back));
    EXPECT_EQ(back, raw);
    EXPECT_FALSE(from_hex("007fab", back));
    EXPECT_FALSE(from_hex("007fabff0", back));
    EXPECT_FALSE(from_hex("007fabfg", back));
    EXPECT_FALSE(from_hex("007fab f", back));
    EXPECT_TRUE(from_hex("", {}));
}

enum class Colour : std::uint16_t { kRed = 7 };

std::string sample() {
    std::string out;
    ByteWriter w(out);
    w.put(std::uint8_t{1});
    w.put(Colour::kRed);
    w.put(-2.5);
    w.put_string("abc");
    w.put_vector(std::vector<std::int32_t>{-1, 2});
    w.put_bytes(as_bytes("xy"));
    return out;
}

TEST(Bytes, LittleEndianLayout) {
    std::string out;
    ByteWriter(out).put(std::uint32_t{0x01020304});
    EXPECT_EQ(out, std::string("\x04\x03\x02\x01", 4));
}

TEST(Bytes, RoundTrip) {
    const std::string in = sample();
    ByteReader r(in);
    EXPECT_EQ(r.get<std::uint8_t>(), 1);
    EXPECT_EQ(r.get<Colour>(), Colour::kRed);
    EXPECT_EQ(r.get<double>(), -2.5);
    EXPECT_EQ(r.get_string(), "abc");
    EXPECT_EQ(r.get_vector<std::int32_t>(), (std::vector<std::int32_t>{-1, 2}));
    std::array<std::uint8_t, 2> xy{};
    EXPECT_FALSE(r.at_end());
    EXPECT_TRUE(r.get_bytes(xy));
    EXPECT_EQ(xy[0], 'x');
    EXPECT_TRUE(r.at_end());
}

TEST(Bytes, EveryTruncationIsBadAndStaysBad) {
    const std::string whole = sample();
    for (std::size_t n = 0; n < whole.size(); ++n) {
        ByteReader r(std::string_view(whole).substr(0, n));
        (void)r.get<std::uint8_t>();
        (void)r.get<Colour>();
        (void)r.get<double>();
        (void)r.get_string();
        (void)r.get_vector<std::int32_t>();
        std::array<std::uint8_t, 2> xy{};
        EXPECT_FALSE(r.get_bytes(xy));
        EXPECT_TRUE(r.bad()) << n;
        EXPECT_FALSE(r.at_end());
        EXPECT_EQ(r.get<std::uint64_t>(), 0u);
        EXPECT_EQ(r.get_string(), "");
    }
}

// A length that lies must not allocate: 2^32 - 1 elements of 8 bytes would be 32 GiB.
TEST(Bytes, LyingCountsAreBadBeforeAnythingIsAllocated) {
    const std::string lie(
        "\xff\xff\xff\xff"
        "12345678",
        12);
    ByteReader vector(lie);
    EXPECT_TRUE(vector.get_vector<std::uint64_t>().empty());
    EXPECT_TRUE(vector.bad());
    ByteReader string(lie);
    EXPECT_EQ(string.get_string(), "");
    EXPECT_TRUE(string.bad());
    ByteReader count(lie);
    EXPECT_EQ(count.get_count(1), 0u);
    EXPECT_TRUE(count.bad());

    const std::string two(
        "\x02\0\0\0"
        "12345678",
        12);
    EXPECT_EQ(ByteReader(two).get_count(4), 2u);
    ByteReader too_big(two);
    EXPECT_EQ(too_big.get_count(5), 0u);
    EXPECT_TRUE(too_big.bad());
}

}  // namespace
}  // namespace nereid
