#include "engine/llama/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/prng.h"

namespace nereid::engine::llama {
namespace {

using model::SamplingParams;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(Prng& prng, std::size_t n, bool with_ties) {
    std::vector<float> out(n);
    for (auto& v : out) {
        v = static_cast<float>(prng.uniform() * 24 - 12);
        if (with_ties) v = std::round(v);
    }
    return out;
}

// The definition in the header, written out: full sorts, double precision, libm.
struct Naive {
    SamplingParams p;
    std::map<TokenId, std::uint32_t> output = {};
    std::vector<TokenId> prompt = {};

    std::vector<double> adjusted(std::span<const float> logits) const {
        std::vector<double> v(logits.begin(), logits.end());
        std::map<TokenId, std::uint32_t> seen = output;
        for (const TokenId t : prompt) seen.try_emplace(t, 0);
        for (const auto& [t, n] : seen) {
            auto& x = v[static_cast<std::size_t>(t)];
            const double r = p.repetition_penalty.value_or(1.0);
            x = x > 0 ? x / r : x * r;
            if (n > 0)
                x -= n * p.frequency_penalty.value_or(0.0) + p.presence_penalty.value_or(0.0);
        }
        for (const auto& [t, b] : p.logit_bias)
            v[static_cast<std::size_t>(t)] += static_cast<double>(b);
        return v;
    }
    // (token, probability) of what may be sampled, most probable first.
    std::vector<std::pair<TokenId, double>> kept(std::span<const float> logits) const {
        const auto v = adjusted(logits);
        std::vector<std::pair<TokenId, double>> all;
        const double max = *std::max_element(v.begin(), v.end());
        for (std::size_t i = 0; i < v.size(); ++i) {
            const double w = std::exp((v[i] - max) / *p.temperature);
            if (w >= p.min_p.value_or(0.0)) all.emplace_back(static_cast<TokenId>(i), w);
        }
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
        if (p.top_k.value_or(0) > 0)
            all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(*p.top_k)));
        double sum = 0;
        for (const auto& a : all) sum += a.second;
        double mass = 0;
        std::size_t keep = 0;
        while (keep < all.size()) {
            mass += all[keep++].second;
            if (p.top_p.has_value() && mass >= *p.top_p * sum) break;
        }
        all.resize(keep);
        for (auto& a : all) a.second /= mass;
        return all;
    }
};

SamplingParams random_params(Prng& prng, std::size_t vocab) {
    SamplingParams p;
    p.temperature = 0.3 + prng.uniform() * 1.5;
    if (prng.chance(0.5)) p.top_k = static_cast<std::int32_t>(1 + prng.below(vocab + 5));
    if (prng.chance(0.5)) p.top_p = 0.05 + 0.9 * prng.uniform();
    if (prng.chance(0.3)) p.min_p = prng.uniform() * 0.3;
    if (prng.chance(0.3)) p.frequency_penalty = prng.uniform() * 2 - 1;
    if (prng.chance(0.3)) p.presence_penalty = prng.uniform() * 2 - 1;
    if (prng.chance(0.3)) p.repetition_penalty = 0.7 + prng.uniform();
    for (int i = 0; i < 3 && prng.chance(0.3); ++i) {
        p.logit_bias.emplace_back(static_cast<TokenId>(prng.below(vocab)),
                                  static_cast<float>(prng.uniform() * 8 - 4));
    }
    return p;
}

TEST(Sampler, GreedyIsTheLowestIdOfTheGreatest) {
    Prng prng(1);
    for (int round = 0; round < 300; ++round) {
        const auto logits = random_logits(prng, 1 + prng.below(100), true);
        const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
        EXPECT_EQ(argmax(logits), expected);
        SamplingParams p;
        p.temperature = 0;
        EXPECT_EQ(Sampler(p, 1, {}, static_cast<std::uint32_t>(logits.size())).sample(logits, 0),
                  expected);
    }
}

TEST(Sampler, OddRowsDoNotBreakIt) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(argmax({}), 0);
    EXPECT_EQ(argmax(std::vector<float>{nan, -1, nan, 3}), 3);
    EXPECT_EQ(argmax(std::vector<float>(40, nan)), 0);
    EXPECT_EQ(argmax(std::vector<float>(40, -kInf)), 0);
    SamplingParams p;
    p.temperature = 1;
    for (const std::vector<float>& row :
         {std::vector<float>(40, nan), std::vector<float>(40, -kInf),
          std::vector<float>{nan, 2, -kInf}}) {
        for (const bool filtered : {false, true}) {
            if (filtered) p.top_p = 0.9;
            const TokenId t =
                Sampler(p, 1, {}, static_cast<std::uint32_t>(row.size())).sample(row, 0);
            EXPECT_TRUE(row.size() == 3 ? t == 1 : t == 0);
        }
        p.top_p.reset();
    }
}

// Whatever is sampled is in the naive set, and each u picks the same token as the naive cumulative
// sum in its order.
TEST(Sampler, EqualsTheNaiveDefinition) {
    Prng prng(2);
    int compared = 0;
    for (int round = 0; round < 3000; ++round) {
        const std::size_t vocab = 2 + prng.below(60);
        Naive naive{random_params(prng, vocab)};
        for (std::size_t i = prng.below(5); i > 0; --i)
            naive.prompt.push_back(static_cast<TokenId>(prng.below(vocab)));
        Sampler sampler(naive.p, static_cast<std::uint64_t>(round) + 1, naive.prompt,
                        static_cast<std::uint32_t>(vocab));
        for (std::size_t i = prng.below(5); i > 0; --i) {
            const auto t = static_cast<TokenId>(prng.below(vocab));
            ++naive.output[t];
            sampler.accept(t);
        }
        const auto logits = random_logits(prng, vocab, false);
        const auto kept = naive.kept(logits);
        const TokenId got = sampler.sample(logits, 5);
        const bool filtered = naive.p.top_k.value_or(0) > 0 || naive.p.top_p.has_value() ||
                              naive.p.min_p.value_or(0) > 0;
        auto order = kept;
        if (!filtered || naive.p.top_k.value_or(0) >= static_cast<std::int32_t>(vocab)) {
            // Without top_k, top_p and min_p the cumulative sum runs over ids.
            if (!naive.p.top_p.has_value() && naive.p.min_p.value_or(0) <= 0)
                std::sort(order.begin(), order.end());
        }
        const double u = keyed_uniform(static_cast<std::uint64_t>(round) + 1, 5);
        double mass = 0;
        TokenId expected = order.back().first;
        bool close = false;
        for (const auto& [t, w] : order) {
            mass += w;
            close = close || std::abs(mass - u) < 1e-5;  // float weights may fall on the other side
            if (mass > u) {
                expected = t;
                break;
            }
        }
        if (close) continue;
        EXPECT_EQ(got, expected) << "round " << round;
        ++compared;
    }
    EXPECT_GT(compared, 2900);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
    const std::vector<float> logits{1.0f, 2.0f, 0.0f, -1.0f, 3.0f, 2.0f};
    Naive naive;
    naive.p.temperature = 0.8;
    naive.p.top_p = 0.95;
    const auto kept = naive.kept(logits);
    Sampler sampler(naive.p, 42, {}, 6);
    constexpr int kDraws = 40'000;
    std::map<TokenId, int> count;
    for (std::uint64_t i = 0; i < kDraws; ++i) ++count[sampler.sample(logits, i)];
    double chi = 0;
    for (const auto& [t, p] : kept) {
        const double e = p * kDraws;
        chi += (count[t] - e) * (count[t] - e) / e;
    }
    EXPECT_EQ(count.size(), kept.size());
    EXPECT_LT(chi, 25.0);  // 4 degrees of freedom; the seed is fixed
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
    Prng prng(3);
    const auto logits = random_logits(prng, 500, false);
    SamplingParams p;
    p.seed = 9;
    Sampler a(p, 1, {}, 500);
    Sampler b(p, 2, {}, 500);
    (void)b.sample(logits, 17);
    std::set<TokenId> different;
    for (std::uint64_t i = 0; i < 50; ++i) {
        EXPECT_EQ(a.sample(logits, i), b.sample(logits, i));
        different.insert(a.sample(logits, i));
    }
    EXPECT_GT(different.size(), 5u);
}

TEST(Logprobs, EqualTheNaiveSoftmax) {
    Prng prng(4);
    for (int round = 0; round < 200; ++round) {
        const auto logits = random_logits(prng, 1 + prng.below(300), round % 2 == 0);
        double sum = 0;
        for (const float v : logits) sum += std::exp(static_cast<double>(v));
        const double lse = log_sum_exp(logits);
        EXPECT_NEAR(lse, std::log(sum), 1e-6);
        const auto n = static_cast<std::uint32_t>(prng.below(25));
        const auto top = top_logprobs(logits, lse, n);
        std::vector<std::pair<float, TokenId>> all;
        for (std::size_t i = 0; i < logits.size(); ++i)
            all.emplace_back(-logits[i], static_cast<TokenId>(i));
        std::sort(all.begin(), all.end());
        ASSERT_EQ(top.size(), std::min<std::size_t>(n, logits.size()));
        for (std::size_t i = 0; i < top.size(); ++i) {
            EXPECT_EQ(top[i].id, all[i].second);
            EXPECT_NEAR(static_cast<double>(top[i].logprob),
                        -static_cast<double>(all[i].first) - lse, 1e-5);
        }
    }
    EXPECT_EQ(log_sum_exp(std::vector<float>(20, -kInf)), -static_cast<double>(kInf));
}

}  // namespace
}  // namespace nereid::engine::llama
