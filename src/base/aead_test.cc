#include "base/aead.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid {
namespace {

Digest256 secret(std::uint8_t fill) {
    Digest256 out;
    out.fill(fill);
    return out;
}

TEST(Aead, WhatWasSealedOpens) {
    const Aead aead(secret(1));
    Prng prng(7);
    for (std::size_t size : {0u, 1u, 15u, 16u, 17u, 1000u, 100'000u}) {
        std::string plain(size, '\0');
        for (char& c : plain) c = static_cast<char>(prng.next());
        const std::string sealed = aead.seal(plain, "who");
        EXPECT_EQ(sealed.size(), size + 17);
        EXPECT_EQ(aead.open(sealed, "who"), plain);
        EXPECT_EQ(aead.open(aead.seal(plain, ""), ""), plain);
    }
}

TEST(Aead, NeitherAnotherKeyNorAnotherContextOpensIt) {
    const Aead aead(secret(1));
    const std::string sealed = aead.seal("thought", "tenant a");
    EXPECT_FALSE(Aead(secret(2)).open(sealed, "tenant a"));
    EXPECT_FALSE(aead.open(sealed, "tenant b"));
    EXPECT_FALSE(aead.open(sealed, ""));
}

TEST(Aead, EveryChangedByteAndEveryCutIsSeen) {
    const Aead aead(secret(3));
    const std::string sealed = aead.seal("a thought", "c");
    for (std::size_t i = 0; i < sealed.size(); ++i) {
        std::string changed = sealed;
        changed[i] = static_cast<char>(changed[i] ^ 0x40);
        EXPECT_FALSE(aead.open(changed, "c")) << i;
        EXPECT_FALSE(aead.open(sealed.substr(0, i), "c")) << i;
    }
    EXPECT_FALSE(aead.open(sealed + "x", "c"));
}

TEST(Aead, TheSealedBytesDoNotShowThePlainOnes) {
    const Aead aead(secret(4));
    const std::string plain(200, 'a');
    EXPECT_EQ(aead.seal(plain, "c").find("aaaa"), std::string::npos);
}

}  // namespace
}  // namespace nereid
