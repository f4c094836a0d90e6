// Reasoning in a form that a client keeps and gives back: the `signature` of a thinking block, the
// `encrypted_content` of a reasoning item. Sealed for one tenant by base/aead.h; base64 on the
// wire.
//
// Two kinds: `hide` contains the text; `sign` only proves that a text standing beside it is ours. A
// blob of somebody else's (another server, another tenant, another key) opens to nothing: callers
// then leave the reasoning out, and never refuse the request for it (A90).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/aead.h"

namespace nereid::dialect {

class Seal {
  public:
    // `tenant` is part of what is authenticated.
    Seal(const Aead& aead, std::string_view tenant)
        : aead_(aead), context_("reasoning of " + std::string(tenant)) {}

    std::string hide(std::string_view text) const;
    std::string sign(std::string_view text) const;
    // The text that the blob holds, or `beside` when the blob signs that; nullopt for what is not
    // ours.
    std::optional<std::string> open(std::string_view blob, std::string_view beside) const;

  private:
    const Aead& aead_;
    std::string context_;
};

}  // namespace nereid::dialect
