// The compact binary form of a trace (docs/formats/trace.md), read whole.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "workload/trace.h"

namespace nereid::workload {

// Ids of all chains together: bounds what a small file can make us allocate (256 MiB).
inline constexpr std::size_t kMaxCompactIds = std::size_t{1} << 25;

// kCorrupt names the request at fault; kInvalidArgument when there is none.
Result<Trace> read_compact(std::string_view bytes);

}  // namespace nereid::workload
