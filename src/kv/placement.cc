#include "kv/placement.h"

#include <cstring>

#include "base/check.h"
#include "base/prng.h"

namespace nereid::kv {

std::size_t group_home(const model::BlockKey& first_of_group, std::span<const NodeId> nodes) {
    CHECK(!nodes.empty());
    std::uint64_t word;
    std::memcpy(&word, first_of_group.bytes.data() + 8, 8);
    std::size_t best = 0;
    std::uint64_t best_score = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::uint64_t score = keyed_u64(word, nodes[i].value);
        // Ties go to the lower id, so that the order of the list does not matter.
        if (i == 0 || score > best_score ||
            (score == best_score && nodes[i].value < nodes[best].value)) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

std::vector<ChainPart> place_chain(std::span<const model::BlockKey> chain,
                                   std::span<const NodeId> nodes) {
    std::vector<ChainPart> parts;
    for (std::uint32_t b = 0; b < chain.size(); b += kGroupBlocks) {
        const auto blocks =
            std::min<std::uint32_t>(kGroupBlocks, static_cast<std::uint32_t>(chain.size()) - b);
        const std::size_t home = group_home(chain[b], nodes);
        if (!parts.empty() && parts.back().node == home) {
            parts.back().blocks += blocks;
        } else {
            parts.push_back({b, blocks, home});
        }
    }
    return parts;
}

}  // namespace nereid::kv
