// Distinct integer ids: a RequestId cannot be passed where a StepId is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace nereid {

template <class Tag>
struct Id {
    std::uint64_t value = 0;
    auto operator<=>(const Id&) const = default;
};

using RequestId =
    Id<struct RequestIdTag>;          // unique within one engine link; the API's own id is a string
using StepId = Id<struct StepIdTag>;  // number of an engine step since its start

}  // namespace nereid

template <class Tag>
struct std::hash<nereid::Id<Tag>> {
    std::size_t operator()(const nereid::Id<Tag>& id) const noexcept {
        return std::hash<std::uint64_t>{}(id.value);
    }
};
