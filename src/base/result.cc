#include "base/result.h"

#include <array>
#include <cstddef>

#include "base/check.h"

namespace nereid {
namespace {

constexpr std::size_t kCodeCount = static_cast<std::size_t>(Code::kInternal) + 1;

// In the order of Code; result_test.cc checks that nothing is missing or out of place.
constexpr std::array<CodeInfo, kCodeCount> kCodes{{
    {"invalid_argument", 400, false, "caller"},
    {"unsupported", 400, false, "caller"},
    {"context_length", 400, false, "caller"},
    {"unauthenticated", 401, false, "caller"},
    {"permission_denied", 403, false, "caller"},
    {"not_found", 404, false, "caller"},
    {"conflict", 409, false, "caller"},
    {"too_large", 413, false, "caller"},
    {"rate_limited", 429, true, "caller"},
    {"overloaded", 503, true, "operator"},
    {"unavailable", 503, true, "operator"},
    {"worker_lost", 500, true, "operator"},
    {"cancelled", 499, false, "nobody"},
    {"deadline_exceeded", 504, true, "operator"},
    {"corrupt", 500, false, "operator"},
    {"no_space", 507, true, "operator"},
    {"io", 500, true, "operator"},
    {"config", 500, false, "operator"},
    {"internal", 500, false, "operator"},
}};

}  // namespace

const CodeInfo& code_info(Code code) {
    const auto i = static_cast<std::size_t>(code);
    CHECK_MSG(i < kCodeCount, "not a Code");
    return kCodes[i];
}

Code code_from_name(std::string_view name) {
    for (std::size_t i = 0; i < kCodeCount; ++i) {
        if (kCodes[i].name == name) return static_cast<Code>(i);
    }
    return Code::kInternal;
}

}  // namespace nereid
