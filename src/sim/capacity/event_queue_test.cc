#include "sim/capacity/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace nereid::sim {
namespace {

// Against a stable sort: equal times leave in the order in which they came.
TEST(EventQueue, IsAStableOrderUnderRandomPushesAndPops) {
    Prng prng(1);
    EventQueue<int> queue;
    std::vector<std::pair<Nanos, int>> model;  // sorted by (time, order)
    Nanos now = 0;
    for (int i = 0; i < 20'000; ++i) {
        if (model.empty() || prng.chance(0.52)) {
            const Nanos at = now + static_cast<Nanos>(prng.below(50));
            queue.push(at, i);
            const auto after = [&](const auto& e) { return e.first > at; };
            model.insert(std::ranges::find_if(model, after), {at, i});
        } else {
            const auto entry = queue.pop();
            ASSERT_EQ(entry.at, model.front().first);
            ASSERT_EQ(entry.payload, model.front().second);
            now = entry.at;
            model.erase(model.begin());
        }
    }
    EXPECT_EQ(queue.size(), model.size());
}

}  // namespace
}  // namespace nereid::sim
