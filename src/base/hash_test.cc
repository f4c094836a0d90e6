#include "base/hash.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace nereid {
namespace {

std::string hex(const Digest256& d) { return to_hex(d); }

std::string from_hex_string(std::string_view h) {
    std::string out(h.size() / 2, '\0');
    EXPECT_TRUE(from_hex(h, {reinterpret_cast<std::uint8_t*>(out.data()), out.size()}));
    return out;
}

std::string random_bytes(Prng& prng, std::size_t n) {
    std::string s(n, '\0');
    for (char& c : s) c = static_cast<char>(prng.next());
    return s;
}

// FIPS 180-4's examples.
TEST(Sha256, KnownAnswers) {
    EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hex(sha256(as_bytes("abc"))),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hex(sha256(as_bytes(std::string(1'000'000, 'a')))),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesEqualTheWholeAndTheObjectIsReusable) {
    Prng prng(1);
    Sha256 hasher;
    for (int round = 0; round < 50; ++round) {
        const std::string data = random_bytes(prng, prng.below(500));
        for (std::size_t at = 0; at < data.size();) {
            const std::size_t n = std::min(data.size() - at, prng.below(100) + 1);
            hasher.update(as_bytes(std::string_view(data).substr(at, n)));
            at += n;
        }
        EXPECT_EQ(hasher.finish(), sha256(as_bytes(data)));
    }
    Sha256 moved = std::move(hasher);
    EXPECT_EQ(moved.update(as_bytes("abc")).finish(), sha256(as_bytes("abc")));
}

// RFC 4231, cases 1-4, 6 and 7 (5 is about truncation).
TEST(Hmac, Rfc4231) {
    const struct {
        std::string key, data, want;
    } cases[] = {
        {std::string(20, '\x0b'), "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {std::string(20, '\xaa'), std::string(50, '\xdd'),
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {from_hex_string("0102030405060708090a0b0c0d0e0f10111213141516171819"),
         std::string(50, '\xcd'),
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {std::string(131, '\xaa'),
         "This is a test using a larger than block-size key and a larger than block-size data. The "
         "key needs to be "
         "hashed before being used by the HMAC algorithm.",
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };
    for (const auto& c : cases)
        EXPECT_EQ(hex(hmac_sha256(as_bytes(c.key), as_bytes(c.data))), c.want);
}

TEST(Hmac, OneKeyManyMessages) {
    Prng prng(2);
    for (const std::size_t key_size : {0u, 1u, 32u, 63u, 64u, 65u, 200u}) {
        const std::string key = random_bytes(prng, key_size);
        HmacSha256 mac(as_bytes(key));
        for (int i = 0; i < 5; ++i) {
            const std::string a = random_bytes(prng, prng.below(100));
            const std::string b = random_bytes(prng, prng.below(100));
            EXPECT_EQ(mac.update(as_bytes(a)).update(as_bytes(b)).finish(),
                      hmac_sha256(as_bytes(key), as_bytes(a + b)));
        }
    }
}

// "123456789" is the catalogue's check value; the 32-byte ones are RFC 3720 B.4's.
TEST(Crc32c, KnownAnswers) {
    std::string ascending(32, '\0');
    for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
    const struct {
        std::string data;
        std::uint32_t want;
    } cases[] = {
        {"", 0},
        {"123456789", 0xE3069283},
        {std::string(32, '\0'), 0x8A9136AA},
        {std::string(32, '\xff'), 0x62A8AB43},
        {ascending, 0x46DD794E},
    };
    for (const auto& c : cases) {
        EXPECT_EQ(crc32c(as_bytes(c.data)), c.want);
        EXPECT_EQ(crc32c_portable(as_bytes(c.data)), c.want);
    }
}

TEST(Crc32c, HardwareEqualsTablesAtEveryLengthAndOffset) {
    Prng prng(3);
    const std::string data = random_bytes(prng, 300);
    for (std::size_t offset = 0; offset < 8; ++offset) {
        for (std::size_t n = 0; n + offset <= data.size(); ++n) {
            const auto piece = as_bytes(std::string_view(data).substr(offset, n));
            const auto seed = static_cast<std::uint32_t>(prng.next());
            ASSERT_EQ(crc32c(piece, seed), crc32c_portable(piece, seed)) << offset << " " << n;
        }
    }
}

TEST(Crc32c, SeedChains) {
    const auto ab = as_bytes("hello, world");
    EXPECT_EQ(crc32c(ab.subspan(5), crc32c(ab.first(5))), crc32c(ab));
    EXPECT_EQ(crc32c_portable(ab.subspan(5), crc32c_portable(ab.first(5))), crc32c(ab));
}

TEST(ConstantTime, Equality) {
    EXPECT_TRUE(equal_constant_time(as_bytes("secret"), as_bytes("secret")));
    EXPECT_FALSE(equal_constant_time(as_bytes("secret"), as_bytes("secreT")));
    EXPECT_FALSE(equal_constant_time(as_bytes("secret"), as_bytes("secret2")));
    EXPECT_TRUE(equal_constant_time({}, {}));
}

}  // namespace
}  // namespace nereid
