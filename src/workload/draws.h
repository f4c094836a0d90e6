// Internal: whole numbers of tokens from a LengthSpec.
#pragma once

#include <cmath>

#include "base/result.h"
#include "workload/generators.h"

namespace nereid::workload {

// Also: max fits a TokenCount.
Result<void> validate_tokens(const LengthSpec& spec);

inline TokenCount draw_tokens(const LengthSpec& spec, Prng& prng) {
    return static_cast<TokenCount>(std::llround(draw(spec, prng)));
}

}  // namespace nereid::workload
