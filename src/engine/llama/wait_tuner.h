// WaitTuner: should ggml's threads spin or sleep while they wait for one another? Pure.
//
// A step has about a thousand barriers. On free cores spinning is twice as fast as sleeping; once
// other processes want the cores it is up to thirty times slower, since the thread that is waited
// for does not run (README, "Measured"). So the tuner tries the other way now and then for a few
// decode steps and keeps the faster one:
//   - a step is compared with the best of the latest few that had as many rows;
//   - the trial comes after `interval` steps, which doubles each time it changes nothing (16 to
//     1024), and early when three steps in a row took three times what they should;
//   - a trial that is clearly worse ends with its first step.
// It starts with spinning: that is right on a machine of its own, where prompts may come long
// before the first decode steps, and is given up within a few steps elsewhere.
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace nereid::engine::llama {

class WaitTuner {
  public:
    // How the threads should wait during the next step.
    bool spin() const { return spin_; }
    // A decode step of `rows` rows took this long while waiting as spin() said.
    void observe(std::uint32_t rows, Duration took);
    std::uint64_t switches() const { return switches_; }

  private:
    static constexpr std::uint32_t kRows = 64;  // steps of more rows are taken as this many
    static constexpr std::uint32_t kSamples = 3;
    static constexpr std::uint32_t kFirstInterval = 3;
    static constexpr std::uint32_t kMinInterval = 16;
    static constexpr std::uint32_t kMaxInterval = 1024;
    static constexpr std::uint32_t kSlowSteps = 3;
    static constexpr std::uint32_t kLongestTrial = 16;
    struct Latest {
        std::uint32_t count = 0;
        std::array<Duration, kSamples> took{};
        void add(Duration t) { took[count++ % kSamples] = t; }
        bool full() const { return count >= kSamples; }
        Duration best() const;
    };
    void observe_trial(const Latest& known, Duration took);
    void begin_trial();
    void end_trial(bool keep);

    bool spin_ = true;
    std::array<Latest, kRows> settled_;  // of the way of waiting in use, by rows
    std::uint32_t since_trial_ = 0;
    std::uint32_t slow_ = 0;  // in a row
    std::uint32_t interval_ = kFirstInterval;
    std::uint64_t switches_ = 0;

    bool trial_ = false;
    std::uint32_t trial_steps_ = 0;
    std::uint32_t compared_ = 0;  // of trial_steps_
    double tried_ = 0;            // the trial's best step, as a multiple of the settled way's
};

}  // namespace nereid::engine::llama
