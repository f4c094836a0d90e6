#include "engine/llama/wait_tuner.h"

#include <algorithm>

namespace nereid::engine::llama {

void WaitTuner::Best::add(std::uint32_t new_rows, Duration t) {
    if (new_rows != rows) {
        rows = new_rows;
        count = 0;
    }
    took[count % kSamples] = t;
    ++count;
}

Duration WaitTuner::Best::value() const {
    return *std::min_element(took.begin(), took.begin() + std::min(count, kSamples));
}

void WaitTuner::begin_trial() {
    trial_ = true;
    spin_ = !spin_;
    tried_ = {};
}

void WaitTuner::end_trial(bool keep) {
    trial_ = false;
    since_trial_ = 0;
    if (keep) {
        ++switches_;
        settled_ = tried_;
        interval_ = kMinInterval;
    } else {
        spin_ = !spin_;
        interval_ = std::clamp(interval_ * 2, kMinInterval, kMaxInterval);
    }
}

void WaitTuner::observe(std::uint32_t rows, Duration took) {
    if (trial_) {
        if (rows != settled_.rows) {  // no longer comparable
            trial_ = false;
            spin_ = !spin_;
            return;
        }
        tried_.add(rows, took);
        const Duration mark = settled_.value();
        if (tried_.value() > mark * 3 / 2) return end_trial(false);
        if (tried_.full()) end_trial(tried_.value() < mark * 9 / 10);
        return;
    }
    const bool comparable = settled_.rows == rows && settled_.full();
    ++since_trial_;
    if (comparable && took > settled_.value() * 3 && ++slow_ < kSlowSteps)
        return;  // one may be an accident
    if (slow_ >= kSlowSteps && since_trial_ >= kMinInterval / 2) {
        settled_.count = 0;  // compared with what is slow now, not with better days
        settled_.add(rows, took);
        slow_ = 0;
        return begin_trial();
    }
    slow_ = 0;
    settled_.add(rows, took);
    if (since_trial_ >= interval_ && settled_.full()) begin_trial();
}

}  // namespace nereid::engine::llama
