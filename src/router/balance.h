// Balance efficiency, the number that balancers are judged by (DESIGN §8): Σ T_balanced / Σ
// T_actual over busy steps. Exported by gateways and by the simulator alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "router/ids.h"

namespace nereid::router {

// Units with a barrier: each busy step's predicted time at the mean load, and at the heaviest
// rank's.
class StepBalance {
  public:
    void step(double balanced_ms, double actual_ms) {
        balanced_ += balanced_ms;
        actual_ += actual_ms;
    }
    double efficiency() const { return actual_ <= 0 ? 1.0 : balanced_ / actual_; }
    double actual_ms() const { return actual_; }

  private:
    double balanced_ = 0, actual_ = 0;
};

// Backends without a barrier: mean/max over ranks of the predicted ms given to each, over a window
// of one to two times `half`.
class WindowBalance {
  public:
    explicit WindowBalance(Duration half = 10s) : half_(half) {}
    void add(RankSlot slot, double ms, TimePoint now) {
        turn(now);
        if (slot >= now_.size()) {
            now_.resize(slot + 1);
            before_.resize(slot + 1);
        }
        now_[slot] += ms;
    }
    // Over the ranks that could have been chosen; 1 when nothing was given.
    double efficiency(std::span<const RankSlot> ranks, TimePoint now) {
        turn(now);
        double sum = 0;
        double most = 0;
        for (const RankSlot slot : ranks) {
            const double ms = slot < now_.size() ? now_[slot] + before_[slot] : 0;
            sum += ms;
            most = std::max(most, ms);
        }
        return most <= 0 ? 1.0 : sum / (most * static_cast<double>(ranks.size()));
    }

  private:
    void turn(TimePoint now) {
        if (now < until_) return;
        const bool idle = now >= until_ + half_;
        before_.swap(now_);
        std::fill(now_.begin(), now_.end(), 0.0);
        if (idle) std::fill(before_.begin(), before_.end(), 0.0);
        until_ = now + half_;
    }
    Duration half_;
    TimePoint until_{};
    std::vector<double> now_, before_;
};

}  // namespace nereid::router
