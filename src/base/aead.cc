#include "base/aead.h"

#include <openssl/evp.h>

#include <array>

#include "base/check.h"
#include "base/hash.h"

namespace nereid {
namespace {

constexpr std::size_t kTag = 16;
// Goes before plaintext and context: OpenSSL 3.0 skips empty associated data (CVE-2023-2975) and
// mistreats empty plaintext, so neither is ever empty.
constexpr char kVersion = 1;

const EVP_CIPHER* method() {
    static const EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-SIV", nullptr);
    CHECK_MSG(cipher != nullptr, "OpenSSL has no AES-256-SIV");
    return cipher;
}

struct Free {
    void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, Free>;

const unsigned char* bytes_of(std::string_view s) {
    return reinterpret_cast<const unsigned char*>(s.data());
}

Digest256 derive(const Digest256& secret, std::string_view what) {
    return hmac_sha256(secret, as_bytes(what));
}

}  // namespace

Aead::Aead(const Digest256& secret)
    : mac_key_(derive(secret, "nereid aead mac")),
      cipher_key_(derive(secret, "nereid aead cipher")) {}

std::string Aead::seal(std::string_view plain, std::string_view context) const {
    std::array<unsigned char, 64> key;
    std::memcpy(key.data(), mac_key_.data(), 32);
    std::memcpy(key.data() + 32, cipher_key_.data(), 32);
    const std::string text = std::string(1, kVersion).append(plain);
    const std::string about = std::string(1, kVersion).append(context);
    const Context c(EVP_CIPHER_CTX_new());
    CHECK(c != nullptr);
    CHECK(EVP_EncryptInit_ex2(c.get(), method(), key.data(), nullptr, nullptr) == 1);
    int n = 0;
    CHECK(EVP_EncryptUpdate(c.get(), nullptr, &n, bytes_of(about),
                            static_cast<int>(about.size())) == 1);
    std::string out(kTag + text.size(), '\0');
    auto* const at = reinterpret_cast<unsigned char*>(out.data());
    CHECK(EVP_EncryptUpdate(c.get(), at + kTag, &n, bytes_of(text),
                            static_cast<int>(text.size())) == 1);
    int rest = 0;
    CHECK(EVP_EncryptFinal_ex(c.get(), at + kTag + n, &rest) == 1);
    CHECK(EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kTag), at) == 1);
    return out;
}

std::optional<std::string> Aead::open(std::string_view sealed, std::string_view context) const {
    constexpr std::size_t kMax = std::size_t{1} << 30;  // OpenSSL counts in int
    if (sealed.size() <= kTag || sealed.size() > kMax) return std::nullopt;
    std::array<unsigned char, 64> key;
    std::memcpy(key.data(), mac_key_.data(), 32);
    std::memcpy(key.data() + 32, cipher_key_.data(), 32);
    const std::string about = std::string(1, kVersion).append(context);
    const Context c(EVP_CIPHER_CTX_new());
    CHECK(c != nullptr);
    CHECK(EVP_DecryptInit_ex2(c.get(), method(), key.data(), nullptr, nullptr) == 1);
    std::array<unsigned char, kTag> tag;
    std::memcpy(tag.data(), sealed.data(), kTag);
    CHECK(EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kTag), tag.data()) ==
          1);
    int n = 0;
    CHECK(EVP_DecryptUpdate(c.get(), nullptr, &n, bytes_of(about),
                            static_cast<int>(about.size())) == 1);
    const std::string_view body = sealed.substr(kTag);
    std::string out(body.size(), '\0');
    auto* const at = reinterpret_cast<unsigned char*>(out.data());
    if (EVP_DecryptUpdate(c.get(), at, &n, bytes_of(body), static_cast<int>(body.size())) != 1)
        return std::nullopt;
    int rest = 0;
    if (EVP_DecryptFinal_ex(c.get(), at + n, &rest) != 1) return std::nullopt;
    if (out[0] != kVersion) return std::nullopt;
    return out.substr(1);
}

}  // namespace nereid
