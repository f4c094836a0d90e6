#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>

#include "base/check.h"

namespace nereid {
namespace {

constexpr std::size_t kBlock = 64;  // of SHA-256's compression function

// Fetched once: in OpenSSL 3.0 every implicit fetch takes locks and costs more than a short hash.
const EVP_MD* sha256_method() {
    static const EVP_MD* const method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    CHECK_MSG(method != nullptr, "OpenSSL has no SHA256");
    return method;
}

class Context {
  public:
    Context() : raw_(EVP_MD_CTX_new()) { CHECK(raw_ != nullptr); }
    ~Context() { EVP_MD_CTX_free(raw_); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    void begin() { CHECK(EVP_DigestInit_ex2(raw_, sha256_method(), nullptr) == 1); }
    void begin_from(const Context& other) { CHECK(EVP_MD_CTX_copy_ex(raw_, other.raw_) == 1); }
    void update(std::span<const std::uint8_t> data) {
        CHECK(EVP_DigestUpdate(raw_, data.data(), data.size()) == 1);
    }
    Digest256 finish() {
        Digest256 out;
        CHECK(EVP_DigestFinal_ex(raw_, out.data(), nullptr) == 1);
        return out;
    }

  private:
    EVP_MD_CTX* raw_;
};

}  // namespace

struct Sha256::State {
    Context context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { state_->context.begin(); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(std::span<const std::uint8_t> data) {
    state_->context.update(data);
    return *this;
}

Digest256 Sha256::finish() {
    const Digest256 out = state_->context.finish();
    state_->context.begin();
    return out;
}

struct HmacSha256::State {
    Context inner;    // after key ^ ipad
    Context outer;    // after key ^ opad
    Context current;  // the message so far
    Context last;     // scratch for the outer hash
};

HmacSha256::HmacSha256(std::span<const std::uint8_t> key) : state_(std::make_unique<State>()) {
    std::array<std::uint8_t, kBlock> padded{};
    if (key.size() > kBlock) {
        const Digest256 digest = sha256(key);
        std::memcpy(padded.data(), digest.data(), digest.size());
    } else if (!key.empty()) {
        std::memcpy(padded.data(), key.data(), key.size());
    }
    for (auto& b : padded) b ^= 0x36;
    state_->inner.begin();
    state_->inner.update(padded);
    for (auto& b : padded) b ^= 0x36 ^ 0x5c;
    state_->outer.begin();
    state_->outer.update(padded);
    state_->current.begin_from(state_->inner);
    OPENSSL_cleanse(padded.data(), padded.size());
}
HmacSha256::~HmacSha256() = default;
HmacSha256::HmacSha256(HmacSha256&&) noexcept = default;
HmacSha256& HmacSha256::operator=(HmacSha256&&) noexcept = default;

HmacSha256& HmacSha256::update(std::span<const std::uint8_t> data) {
    state_->current.update(data);
    return *this;
}

Digest256 HmacSha256::finish() {
    const Digest256 inner = state_->current.finish();
    state_->last.begin_from(state_->outer);
    state_->last.update(inner);
    state_->current.begin_from(state_->inner);
    return state_->last.finish();
}

Digest256 sha256(std::span<const std::uint8_t> data) { return Sha256().update(data).finish(); }

Digest256 hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) {
    return HmacSha256(key).update(data).finish();
}

bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
    return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace nereid
