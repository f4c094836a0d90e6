#include "dialect/seal.h"

#include "base/base64.h"
#include "base/hash.h"

namespace nereid::dialect {
namespace {

constexpr char kHidden = 'h';
constexpr char kSigned = 's';

std::string digest_of(std::string_view text) {
    const Digest256 digest = sha256(as_bytes(text));
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::string Seal::hide(std::string_view text) const {
    return base64_encode(aead_.seal(std::string(1, kHidden).append(text), context_));
}

std::string Seal::sign(std::string_view text) const {
    return base64_encode(aead_.seal(std::string(1, kSigned).append(digest_of(text)), context_));
}

std::optional<std::string> Seal::open(std::string_view blob, std::string_view beside) const {
    const auto sealed = base64_decode(blob);
    if (!sealed) return std::nullopt;
    auto plain = aead_.open(*sealed, context_);
    if (!plain || plain->empty()) return std::nullopt;
    const std::string_view held = std::string_view(*plain).substr(1);
    if ((*plain)[0] == kHidden) return std::string(held);
    if ((*plain)[0] == kSigned && held == digest_of(beside)) return std::string(beside);
    return std::nullopt;
}

}  // namespace nereid::dialect
