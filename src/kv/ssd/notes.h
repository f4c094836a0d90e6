// The bytes of a folder's notes (docs/formats/segment.md): what has to outlive a run and is in no
// record. Which namespaces were cleared, so that their records are not found again, and which
// blocks were hit in the final quarter of their life, so that they are still copied forward.
//
// Pure; the decoder looks at bytes that may be anything and allocates nothing by a count that it
// has not checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/ssd/segment.h"

namespace nereid::kv::ssd {

inline constexpr std::size_t kMaxNotesBytes = std::size_t{64} << 20;

struct Notes {
    std::map<Digest256, std::uint64_t> clears;  // namespace digest -> how often it was cleared
    std::map<std::uint64_t, std::vector<std::uint64_t>> hits;  // segment -> one bit per page
    bool operator==(const Notes&) const = default;
};

// Whole pages.
std::string encode_notes(const Notes& notes, const FolderId& folder);
// kCorrupt.
Result<Notes> decode_notes(std::string_view bytes, const FolderId& folder);

}  // namespace nereid::kv::ssd
