#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid {
namespace {

constexpr std::string_view kMark = "\xef\xbf\xbd";

std::string encode(std::uint32_t c) {
    std::string s;
    const auto put = [&s](std::uint32_t b) { s.push_back(static_cast<char>(b)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xc0 | (c >> 6));
        put(0x80 | (c & 63));
    } else if (c < 0x10000) {
        put(0xe0 | (c >> 12));
        put(0x80 | ((c >> 6) & 63));
        put(0x80 | (c & 63));
    } else {
        put(0xf0 | (c >> 18));
        put(0x80 | ((c >> 12) & 63));
        put(0x80 | ((c >> 6) & 63));
        put(0x80 | (c & 63));
    }
    return s;
}

TEST(Utf8, EveryCodePointButSurrogatesIsValid) {
    for (std::uint32_t c = 0; c <= 0x10ffff; ++c) {
        const bool surrogate = c >= 0xd800 && c <= 0xdfff;
        ASSERT_EQ(is_valid_utf8(encode(c)), !surrogate) << std::hex << c;
        if (surrogate) continue;
        std::string ours = "x";
        append_utf8(ours, c);
        ASSERT_EQ(ours, "x" + encode(c)) << std::hex << c;
    }
    EXPECT_FALSE(is_valid_utf8(encode(0x110000)));
}

TEST(Utf8, Refused) {
    for (const std::string_view s :
         {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x80\x80", "\xe0\x9f\xbf",
          "\xe2\x82", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
          "\xf5\x80\x80\x80", "\xff", "a\xffz", "\xc2z"}) {
        EXPECT_FALSE(is_valid_utf8(s));
        EXPECT_TRUE(is_valid_utf8(replace_invalid_utf8(s)));
    }
    EXPECT_EQ(valid_utf8_prefix("abc\xc2\xa9\xe2\x82"), 5u);
    EXPECT_EQ(valid_utf8_prefix(""), 0u);
}

// Tables 3-8 to 3-11 of the Unicode Standard 15, section 3.9.
TEST(Utf8, MaximalSubpartsAreReplacedAsUnicodeShows) {
    const auto marks = [](std::size_t n) {
        std::string s;
        while (n-- > 0) s.append(kMark);
        return s;
    };
    EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), marks(8) + "A");
    EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), marks(8) + "A");
    EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
              marks(5) + "A" + marks(2) + "B");
    EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), marks(4) + "A");
    EXPECT_EQ(replace_invalid_utf8("plain \xe2\x82\xac text of some length"),
              "plain \xe2\x82\xac text of some length");
}

TEST(Utf8, PrefixHoldsBackOnlyAnUnfinishedCharacter) {
    EXPECT_EQ(complete_utf8_prefix(""), 0u);
    EXPECT_EQ(complete_utf8_prefix("abc"), 3u);
    EXPECT_EQ(complete_utf8_prefix("ab\xe2"), 2u);
    EXPECT_EQ(complete_utf8_prefix("ab\xe2\x82"), 2u);
    EXPECT_EQ(complete_utf8_prefix("ab\xe2\x82\xac"), 5u);
    EXPECT_EQ(complete_utf8_prefix("\xf0\x9f\x98"), 0u);
    EXPECT_EQ(complete_utf8_prefix("ab\xff"), 3u);
    EXPECT_EQ(complete_utf8_prefix("ab\x80\x80\x80"), 5u);
    EXPECT_EQ(complete_utf8_prefix("\xed\xa0"), 2u);  // can never become valid
    EXPECT_EQ(complete_utf8_prefix("\xf0\x80"), 2u);
}

// Streaming through complete_utf8_prefix gives the same text as replacing at once, whatever the
// chunks.
TEST(Utf8, StreamingEqualsWhole) {
    Prng prng(4);
    for (int round = 0; round < 2000; ++round) {
        std::string data;
        while (data.size() < 40) {
            if (prng.chance(0.3))
                data.push_back(static_cast<char>(prng.next()));
            else
                data.append(encode(static_cast<std::uint32_t>(prng.below(0x11000))));
        }
        std::string held;
        std::string out;
        for (std::size_t at = 0; at < data.size();) {
            const std::size_t n = std::min(data.size() - at, prng.below(5) + 1);
            held.append(data, at, n);
            at += n;
            const std::size_t whole = complete_utf8_prefix(held);
            ASSERT_LE(held.size() - whole, 3u);
            out.append(replace_invalid_utf8(std::string_view(held).substr(0, whole)));
            held.erase(0, whole);
        }
        out.append(replace_invalid_utf8(held));
        ASSERT_EQ(out, replace_invalid_utf8(data));
        ASSERT_TRUE(is_valid_utf8(out));
    }
}

}  // namespace
}  // namespace nereid
