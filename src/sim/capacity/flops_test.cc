#include "sim/capacity/flops.h"

#include <gtest/gtest.h>

namespace nereid::sim {
namespace {

// Chunks add up to the whole, but for the one output-head row that each chunk has.
TEST(FlopsV41, ChunksAddUpWithoutTruncation) {
    const FlopsV41 flops(ArchitectureV41{}, 0);
    const std::int64_t head = 4ll * 5120 * 129'280;
    const auto whole = flops.prefill(0, 8192, 8192).total;
    std::int64_t sum = 0;
    for (std::int64_t at = 0; at < 8192; at += 1024) sum += flops.prefill(at, 1024, 8192).total;
    EXPECT_EQ(sum - 7 * head, whole);
}

TEST(FlopsV41, TruncationHalvesPrefillAndKeepsTheLastRows) {
    const FlopsV41 full(ArchitectureV41{}, 0), compact(ArchitectureV41{}, 140);
    const auto a = full.prefill(0, 65'536, 65'536).total,
               b = compact.prefill(0, 65'536, 65'536).total;
    EXPECT_LT(static_cast<double>(b), 0.62 * static_cast<double>(a));
    EXPECT_GT(static_cast<double>(b), 0.40 * static_cast<double>(a));
    // Shorter than what is kept: nothing is left out.
    EXPECT_NEAR(static_cast<double>(compact.prefill(0, 128, 128).total),
                static_cast<double>(full.prefill(0, 128, 128).total),
                1e-6 * static_cast<double>(a));
}

// Values of DeepInfer 0.1.0's own FlopsEstimator (csrc/engine/flops_estimator.hpp, unchanged,
// compiled with stand-ins for pybind11 and the metadata of V4.1-Flash's config.json).
TEST(FlopsV41, CountsAsDeepInferDoes) {
    struct Case {
        int compact;
        std::int64_t q, k;
        int prompt;
        std::int64_t full, attention, total;
    };
    const Case cases[] = {
        {0, 1, 1, 1, 1, 10308685824, 34111688704},
        {0, 100, 100, 1, 100, 1120609001472, 3238791503872},
        {0, 4096, 4096, 1, 4096, 66761651126272, 153416606154752},
        {0, 1024, 9216, 1, 20000, 17373883006976, 39039607504896},
        {0, 2048, 60000, 1, 60000, 36059610087424, 79388411428864},
        {0, 777, 777, 1, 1000, 11075027111936, 27515380535296},
        {0, 6, 4096, 0, -1, 101065777152, 243883794432},
        {0, 1, 100000, 0, -1, 18027708416, 41830711296},
        {0, 6, 130, 0, -1, 75576328192, 218394345472},
        {1, 1, 1, 1, 1, 10308685824, 34111688704},
        {1, 100, 100, 1, 100, 1120609001472, 3238791503872},
        {1, 4096, 4096, 1, 4096, 33756831277056, 79827160784896},
        {1, 1024, 9216, 1, 20000, 8520081735680, 19690843668480},
        {1, 2048, 60000, 1, 60000, 18872686075904, 42627305037824},
        {1, 777, 777, 1, 1000, 5219405811712, 13698771013632},
        {1, 6, 4096, 0, -1, 101065777152, 243883794432},
        {1, 1, 100000, 0, -1, 18027708416, 41830711296},
        {1, 6, 130, 0, -1, 75576328192, 218394345472},
    };
    const FlopsV41 models[] = {{ArchitectureV41{}, 0}, {ArchitectureV41{}, 140}};
    for (const Case& c : cases) {
        const FlopsV41& m = models[c.compact];
        const auto got = c.prompt != 0 ? m.prefill(c.k - c.q, c.q, c.full) : m.decode(c.k, c.q);
        EXPECT_EQ(got.attention, c.attention) << c.compact << " " << c.q << " " << c.k;
        EXPECT_EQ(got.total, c.total) << c.compact << " " << c.q << " " << c.k;
    }
}

}  // namespace
}  // namespace nereid::sim
