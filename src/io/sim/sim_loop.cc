#include "io/sim_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nereid::io {

namespace {
// A program that keeps itself ready for ever never lets the clock move.
constexpr std::uint64_t kMaxStepsAtOneTime = 50'000'000;
constexpr Duration kWallOrigin = std::chrono::seconds(1'767'225'600);  // 2026-01-01T00:00:00Z
}  // namespace

SimScheduler::SimScheduler(std::uint64_t seed) : rng_(seed) {}
SimScheduler::~SimScheduler() { CHECK_MSG(lanes_.empty(), "a SimLoop outlives its scheduler"); }

std::uint64_t SimScheduler::add_lane() {
    lanes_.try_emplace(next_lane_);
    return next_lane_++;
}

void SimScheduler::remove_lane(std::uint64_t id) {
    // What is dropped may own things that post and arm again.
    for (;;) {
        timers_.cancel_all(id);
        auto doomed = std::exchange(lanes_.at(id).ready, {});
        if (doomed.empty()) break;
    }
    lanes_.erase(id);
    std::erase(ready_lanes_, id);
}

void SimScheduler::post(std::uint64_t id, Loop::Fn fn) {
    auto& lane = lanes_.at(id);
    if (lane.ready.empty() && std::ranges::find(ready_lanes_, id) == ready_lanes_.end())
        ready_lanes_.push_back(id);
    lane.ready.push_back(std::move(fn));
}

void SimScheduler::at(std::uint64_t loop_id, TimePoint when, Loop::Fn fn) {
    if (!lanes_.contains(loop_id)) return;
    timers_.arm(std::max(when, now_), std::move(fn), rng_.next(), loop_id);
}

void SimScheduler::mix(std::uint64_t v) {
    trace_ = (trace_ ^ v) * 0x9E3779B97F4A7C15ULL;
    trace_ ^= trace_ >> 29;
}

void SimScheduler::note(std::string_view what) {
    mix(what.size());
    for (const char c : what) mix(static_cast<unsigned char>(c));
}

void SimScheduler::run(std::uint64_t id, Loop::Fn& fn, char kind) {
    ++steps_;
    CHECK_MSG(++steps_at_this_time_ < kMaxStepsAtOneTime, "livelock: virtual time stands still");
    mix(static_cast<std::uint64_t>(now_.since_origin.count()));
    mix(id * 2 + (kind == 'T' ? 1 : 0));
    running_ = id;
    fn();
    fn = {};  // what it captured goes while its loop still counts as running
    running_ = 0;
}

bool SimScheduler::step() {
    CHECK_MSG(running_ == 0, "the scheduler is run from inside a callback");
    const bool due = timers_.next_at() <= now_ && !timers_.empty();
    const std::uint64_t choices = ready_lanes_.size() + (due ? 1 : 0);
    if (choices == 0) {
        if (timers_.empty()) return false;
        now_ = timers_.next_at();
        steps_at_this_time_ = 0;
        return true;
    }
    const std::uint64_t choice = choices == 1 ? 0 : rng_.below(choices);
    if (choice == ready_lanes_.size()) {
        const auto id = timers_.next_tag();
        auto fn = timers_.pop();
        run(id, fn, 'T');
        return true;
    }
    const std::uint64_t id = ready_lanes_[choice];
    auto& queue = lanes_.at(id).ready;
    auto fn = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) {
        ready_lanes_[choice] = ready_lanes_.back();
        ready_lanes_.pop_back();
    }
    run(id, fn, 'P');
    return true;
}

SimEnd SimScheduler::run_until(const std::function<bool()>& done, Duration limit) {
    const TimePoint end = now_ + limit;
    for (;;) {
        if (done()) return SimEnd::kDone;
        // The clock must not jump over the end.
        if (ready_lanes_.empty() && !timers_.empty() && timers_.next_at() > end) {
            now_ = end;
            return SimEnd::kLimit;
        }
        if (!step()) return SimEnd::kStalled;
    }
}

SimEnd SimScheduler::run_until_idle(Duration limit) {
    return run_until([] { return false; }, limit);
}

void SimScheduler::run_for(Duration d) {
    const TimePoint end = now_ + d;
    run_until([] { return false; }, d);
    now_ = end;
}

SimLoop::SimLoop(SimScheduler& scheduler) : scheduler_(scheduler), id_(scheduler.add_lane()) {}

SimLoop::~SimLoop() {
    CHECK_MSG(scheduler_.running_ != id_, "a SimLoop is destroyed by one of its own callbacks");
    run_as([this] {
        destroy_tasks();
        scheduler_.remove_lane(id_);
    });
}

void SimLoop::run_as(const std::function<void()>& fn) {
    const auto before = std::exchange(scheduler_.running_, id_);
    fn();
    scheduler_.running_ = before;
}

WallTime SimLoop::wall_now() const { return {kWallOrigin + now().since_origin}; }

Loop::TimerId SimLoop::arm(TimePoint at, Fn fn) {
    CHECK(on_loop_thread());
    return scheduler_.timers_.arm(at, std::move(fn), scheduler_.rng_.next(), id_);
}

}  // namespace nereid::io
