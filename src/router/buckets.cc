#include "router/buckets.h"

#include <algorithm>
#include <bit>

namespace nereid::router {

// 8 bins per doubling: the top three bits after the leading one.
std::size_t Buckets::bin_of(TokenCount tokens) {
    if (tokens < 8) return 0;
    const auto log = static_cast<std::size_t>(std::bit_width(tokens)) - 1;
    return std::min((log - 3) * 8 + ((tokens >> (log - 3)) & 7u), kBins - 1);
}
TokenCount Buckets::bin_start(std::size_t bin) {
    const std::size_t log = bin / 8 + 3;
    if (log >= 32) return std::numeric_limits<TokenCount>::max();
    return static_cast<TokenCount>((8 + bin % 8) << (log - 3));
}

void Buckets::set_units(std::uint32_t units) {
    units = std::max(units, 1u);
    if (units == units_) return;
    units_ = units;
    borders_ = fair_borders(std::min(units_, std::max(options_.max_buckets, 1u)));
}

void Buckets::add(TokenCount tokens, double ms, TimePoint now) {
    if (!started_) {
        started_ = true;
        next_refit_ = now + options_.refit_every;
    }
    cost_[bin_of(tokens)] += ms;
    ++samples_;
}

// Borders at whole bins so that each bucket has its fair part of the cost. Without any cost: even
// in bins from 256 tokens to 128 k, until the first refit.
std::vector<TokenCount> Buckets::fair_borders(std::uint32_t buckets) const {
    std::vector<TokenCount> borders;
    double total = 0;
    for (const double c : cost_) total += c;
    if (total <= 0) {
        const std::size_t low = bin_of(256);
        const std::size_t high = bin_of(131'072);
        for (std::uint32_t b = 1; b < buckets; ++b) {
            borders.push_back(bin_start(low + (high - low) * b / buckets));
        }
        return borders;
    }
    double sum = 0;
    std::size_t bin = 0;
    for (std::uint32_t b = 1; b < buckets; ++b) {
        const double target = total * b / buckets;
        while (bin < kBins - 1 && sum + cost_[bin] / 2 < target) sum += cost_[bin++];
        borders.push_back(bin_start(bin));
    }
    return borders;
}

// The heaviest bucket's cost over the fair part, minus one.
double Buckets::worst_part(const std::vector<TokenCount>& borders) const {
    const double buckets = static_cast<double>(borders.size()) + 1;
    double total = 0;
    double part = 0;
    double worst = 0;
    std::size_t border = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
        while (border < borders.size() && bin_start(bin) >= borders[border]) {
            worst = std::max(worst, part);
            part = 0;
            ++border;
        }
        part += cost_[bin];
        total += cost_[bin];
    }
    worst = std::max(worst, part);
    return total <= 0 ? 0 : worst * buckets / total - 1;
}

bool Buckets::refit(TimePoint now) {
    if (!started_ || now < next_refit_ || samples_ < options_.min_samples) return false;
    next_refit_ = now + options_.refit_every;
    bool moved = false;
    const std::uint32_t buckets = std::min(units_, std::max(options_.max_buckets, 1u));
    if (buckets > 1 &&
        (worst_part(borders_) > options_.hysteresis || borders_.size() + 1 != buckets)) {
        auto borders = fair_borders(buckets);
        // Lengths are lumpy: borders that are no better than the present ones stay.
        if (worst_part(borders) < worst_part(borders_) && borders != borders_) {
            borders_ = std::move(borders);
            ++moves_;
            moved = true;
        }
    }
    for (double& c : cost_) c *= options_.forget;
    samples_ = static_cast<std::uint64_t>(static_cast<double>(samples_) * options_.forget);
    return moved;
}

std::uint32_t Buckets::bucket_of(TokenCount tokens) const {
    return static_cast<std::uint32_t>(std::upper_bound(borders_.begin(), borders_.end(), tokens) -
                                      borders_.begin());
}

Buckets::Range Buckets::units_of(std::uint32_t bucket) const {
    const std::uint64_t n = count();
    return {static_cast<std::uint32_t>(bucket * std::uint64_t{units_} / n),
            static_cast<std::uint32_t>((bucket + std::uint64_t{1}) * units_ / n)};
}

}  // namespace nereid::router
