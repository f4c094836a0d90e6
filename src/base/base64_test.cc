#include "base/base64.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid {
namespace {

TEST(Base64, Rfc4648Section10) {
    const std::pair<std::string_view, std::string_view> cases[] = {{"", ""},
                                                                   {"f", "Zg=="},
                                                                   {"fo", "Zm8="},
                                                                   {"foo", "Zm9v"},
                                                                   {"foob", "Zm9vYg=="},
                                                                   {"fooba", "Zm9vYmE="},
                                                                   {"foobar", "Zm9vYmFy"}};
    for (const auto& [plain, encoded] : cases) {
        EXPECT_EQ(base64_encode(plain), encoded);
        EXPECT_EQ(base64_decode(encoded), std::string(plain));
    }
}

TEST(Base64, DecodesWhatClientsSend) {
    EXPECT_EQ(base64_decode("Zm9vYg"), "foob");            // no padding
    EXPECT_EQ(base64_decode("Zm9v\r\nYmFy\n"), "foobar");  // wrapped
    EXPECT_EQ(base64_decode("-_-_"), base64_decode("+/+/"));
}

TEST(Base64, RefusesWhatNoEncoderMakes) {
    for (const char* text :
         {"Z", "Zm9vY", "Zg=", "Zg===", "Zg==Zg==", "Zm9v=", "Zm 9*", "====", "\x80\x80\x80\x80"}) {
        EXPECT_EQ(base64_decode(text), std::nullopt) << text;
    }
}

TEST(Base64, RoundTripsRandomBytes) {
    Prng rng(7);
    for (int i = 0; i < 2000; ++i) {
        std::string bytes(rng.below(64), '\0');
        for (char& c : bytes) c = static_cast<char>(rng.below(256));
        EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
    }
}

}  // namespace
}  // namespace nereid
