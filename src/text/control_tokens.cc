#include "text/control_tokens.h"

#include <algorithm>
#include <utility>

namespace nereid::text {

void ControlTokens::add(ControlToken token) {
    if (token.text.empty()) return;
    by_first_[static_cast<unsigned char>(token.text[0])].push_back(std::move(token));
}

void ControlTokens::sort() {
    for (auto& from : by_first_) {
        std::ranges::sort(from, [](const ControlToken& a, const ControlToken& b) {
            return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
        });
    }
}

const ControlToken* ControlTokens::at(std::string_view text, std::size_t at) const {
    for (const ControlToken& token : by_first_[static_cast<unsigned char>(text[at])]) {
        if (text.substr(at).starts_with(token.text)) return &token;
    }
    return nullptr;
}

}  // namespace nereid::text
