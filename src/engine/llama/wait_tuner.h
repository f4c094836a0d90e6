// WaitTuner: should ggml's threads spin or sleep while they wait for one another? Pure.
//
// A step has about a thousand barriers. On free cores spinning is twice as fast as sleeping; once
// other processes want the cores it is up to thirty times slower, since the thread that is waited
// for does not run (README, "Measured"). So the tuner tries the other way now and then for a few
// decode steps and keeps the faster one:
//   - steps are compared by time, only when they have the same number of rows, by the best of a
//   few;
//   - the trial comes after `interval` steps, which doubles each time it changes nothing (16 to
//   1024), and early when three
//     steps in a row took three times what they should;
//   - a trial that is clearly worse ends with its first step.
// It starts with sleeping, whose worst case is mild.
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace nereid::engine::llama {

class WaitTuner {
  public:
    // How the threads should wait during the next decode step.
    bool spin() const { return spin_; }
    // A decode step of `rows` rows took this long while waiting as spin() said.
    void observe(std::uint32_t rows, Duration took);
    std::uint64_t switches() const { return switches_; }

  private:
    static constexpr std::uint32_t kSamples = 3;
    static constexpr std::uint32_t kFirstInterval = 3;
    static constexpr std::uint32_t kMinInterval = 16;
    static constexpr std::uint32_t kMaxInterval = 1024;
    static constexpr std::uint32_t kSlowSteps = 3;
    struct Best {  // of the latest kSamples steps with the same number of rows
        std::uint32_t rows = 0;
        std::uint32_t count = 0;
        std::array<Duration, kSamples> took{};
        void add(std::uint32_t rows, Duration t);
        bool full() const { return count >= kSamples; }
        Duration value() const;
    };
    void begin_trial();
    void end_trial(bool keep);

    bool spin_ = false;
    bool trial_ = false;
    Best settled_;
    Best tried_;
    std::uint32_t since_trial_ = 0;
    std::uint32_t slow_ = 0;  // in a row
    std::uint32_t interval_ = kFirstInterval;
    std::uint64_t switches_ = 0;
};

}  // namespace nereid::engine::llama
