#include "router/min_index.h"

#include <algorithm>

namespace nereid::router {

void MinIndex::resize(std::size_t n) {
    scores_.resize(n, kClosed);
    minima_.assign((n + kBlock - 1) / kBlock, kClosed);
    for (std::size_t i = 0; i < n; ++i) {
        minima_[i / kBlock] = std::min(minima_[i / kBlock], scores_[i]);
    }
}

void MinIndex::set(std::size_t i, float score) {
    const float old = scores_[i];
    scores_[i] = score;
    float& minimum = minima_[i / kBlock];
    if (score <= minimum) {
        minimum = score;
    } else if (old == minimum) {  // the block's least may have risen
        const std::size_t first = i / kBlock * kBlock;
        const std::size_t last = std::min(first + kBlock, scores_.size());
        minimum = *std::min_element(scores_.begin() + static_cast<std::ptrdiff_t>(first),
                                    scores_.begin() + static_cast<std::ptrdiff_t>(last));
    }
}

float MinIndex::minimum() const {
    float least = kClosed;
    for (const float m : minima_) least = std::min(least, m);
    return least;
}

std::size_t MinIndex::least(std::uint64_t salt) const {
    const float minimum_score = minimum();
    if (minimum_score == kClosed) return kNone;
    const std::size_t n = scores_.size();
    const std::size_t start = salt % n;
    // [start, end), then [0, start): whole blocks without the minimum are skipped.
    const auto search = [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last;) {
            if (minima_[i / kBlock] != minimum_score) {
                i = (i / kBlock + 1) * kBlock;
            } else if (scores_[i] == minimum_score) {
                return i;
            } else {
                ++i;
            }
        }
        return kNone;
    };
    const std::size_t found = search(start, n);
    return found != kNone ? found : search(0, start);
}

}  // namespace nereid::router
