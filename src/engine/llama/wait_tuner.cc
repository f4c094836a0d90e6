#include "engine/llama/wait_tuner.h"

#include <algorithm>
#include <limits>

namespace nereid::engine::llama {

Duration WaitTuner::Latest::best() const {
    return *std::min_element(took.begin(), took.begin() + std::min(count, kSamples));
}

void WaitTuner::begin_trial() {
    trial_ = true;
    spin_ = !spin_;
    trial_steps_ = 0;
    compared_ = 0;
    tried_ = std::numeric_limits<double>::infinity();
}

void WaitTuner::end_trial(bool keep) {
    trial_ = false;
    since_trial_ = 0;
    if (keep) {
        ++switches_;
        settled_ = {};
        interval_ = kMinInterval;
    } else {
        spin_ = !spin_;
        interval_ = std::clamp(interval_ * 2, kMinInterval, kMaxInterval);
    }
}

void WaitTuner::observe_trial(const Latest& known, Duration took) {
    ++trial_steps_;
    if (known.count > 0) {
        ++compared_;
        tried_ =
            std::min(tried_, static_cast<double>(took.count()) /
                                 static_cast<double>(std::max(known.best(), Duration{1}).count()));
        if (tried_ > 1.5) return end_trial(false);
    }
    if (compared_ == kSamples || trial_steps_ == kLongestTrial)
        end_trial(compared_ > 0 && tried_ < 0.9);
}

void WaitTuner::observe(std::uint32_t rows, Duration took) {
    Latest& known = settled_[std::min(rows, kRows - 1)];
    if (trial_) return observe_trial(known, took);
    ++since_trial_;
    if (known.full() && took > known.best() * 3 && ++slow_ < kSlowSteps)
        return;  // one may be an accident
    if (slow_ >= kSlowSteps && since_trial_ >= kMinInterval / 2) {
        settled_ = {};  // compared with what is slow now, not with better days
        known.add(took);
        slow_ = 0;
        return begin_trial();
    }
    slow_ = 0;
    known.add(took);
    if (since_trial_ >= interval_ && known.full()) begin_trial();
}

}  // namespace nereid::engine::llama
