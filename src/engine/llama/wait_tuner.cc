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

Duration WaitTuner::Best::value() const { return *std::min_element(took.begin(), took.begin() + std::min(count, kSamples)); }

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
        if (rows != settled_.rows) {    // no longer comparable
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
    const bool slow = comparable && took > settled_.value() * 3;
    settled_.add(rows, took);
    ++since_trial_;
    const bool due = since_trial_ >= interval_ && settled_.full();
    const bool early = slow && since_trial_ >= kMinInterval / 2;
    if (early) {    // measured against what is slow now, not against better days
        settled_.count = 0;
        settled_.add(rows, took);
    }
    if (due || early) begin_trial();
}

}  // namespace nereid::engine::llama
