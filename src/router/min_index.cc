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

std::size_t MinIndex::least(std::size_t first, std::size_t last, std::uint64_t salt) const {
    // Whole blocks by their minima, the ends one by one.
    float lowest = kClosed;
    for (std::size_t i = first; i < last;) {
        if (i % kBlock == 0 && i + kBlock <= last) {
            lowest = std::min(lowest, minima_[i / kBlock]);
            i += kBlock;
        } else {
            lowest = std::min(lowest, scores_[i]);
            ++i;
        }
    }
    if (lowest == kClosed) return kNone;
    const std::size_t start = first + salt % (last - first);
    // [start, last), then [first, start): blocks that have nothing as low are skipped.
    const auto search = [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to;) {
            if (minima_[i / kBlock] > lowest) {
                i = (i / kBlock + 1) * kBlock;
            } else if (scores_[i] == lowest) {
                return i;
            } else {
                ++i;
            }
        }
        return kNone;
    };
    const std::size_t found = search(start, last);
    return found != kNone ? found : search(first, start);
}

}  // namespace nereid::router
