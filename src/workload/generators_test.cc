#include "workload/generators.h"

#include <gtest/gtest.h>

#include <cmath>

#include "workload/trace.h"

namespace nereid::workload {
namespace {

using Kind = ArrivalSpec::Kind;

struct Stream {
    double rate, cv;  // of the gaps
    std::vector<double> per_bin;
};

Stream observe(const ArrivalSpec& spec, double seconds, double bin) {
    auto arrivals = Arrivals::make(spec, Prng(5));
    EXPECT_TRUE(arrivals.ok());
    Stream s{.rate = 0,
             .cv = 0,
             .per_bin = std::vector<double>(static_cast<std::size_t>(seconds / bin))};
    double before = 0, sum = 0, squares = 0, n = 0;
    while (true) {
        const double at = to_seconds(arrivals->next());
        EXPECT_GE(at, before);
        if (at >= seconds) break;
        ++s.per_bin[std::min(static_cast<std::size_t>(at / bin), s.per_bin.size() - 1)];
        sum += at - before;
        squares += (at - before) * (at - before);
        before = at;
        ++n;
    }
    s.rate = n / seconds;
    s.cv = std::sqrt(std::max(0.0, squares / n - (sum / n) * (sum / n))) / (sum / n);
    return s;
}

TEST(Arrivals, HaveTheirRateAndTheirBurstiness) {
    EXPECT_NEAR(observe({.kind = Kind::kConstant, .per_second = 20}, 500, 10).cv, 0, 1e-3);
    const Stream poisson = observe({.kind = Kind::kPoisson, .per_second = 20}, 2000, 10);
    EXPECT_NEAR(poisson.rate, 20, 0.5);
    EXPECT_NEAR(poisson.cv, 1, 0.05);
    const Stream gamma = observe({.kind = Kind::kGamma, .per_second = 20, .cv = 4}, 5000, 10);
    EXPECT_NEAR(gamma.rate, 20, 2);
    EXPECT_NEAR(gamma.cv, 4, 0.6);
    const Stream mmpp =
        observe({.kind = Kind::kMmpp, .per_second = 20, .burst_factor = 10}, 20'000, 5);
    EXPECT_NEAR(mmpp.rate, 20, 1.5);
    EXPECT_GT(mmpp.cv, 1.3);
    const double busiest = *std::ranges::max_element(mmpp.per_bin) / 5;
    EXPECT_GT(busiest, 60);  // calm is 12.6/s, a burst 126/s
}

TEST(Arrivals, ADayHasItsTroughAndItsPeak) {
    const Stream day =
        observe({.kind = Kind::kDiurnal, .per_second = 0.5, .swing = 0.6}, 86'400, 3600);
    EXPECT_NEAR(day.rate, 0.5, 0.02);
    EXPECT_NEAR(day.per_bin[0] / 3600, 0.2, 0.05);
    EXPECT_NEAR(day.per_bin[12] / 3600, 0.8, 0.07);
}

TEST(Arrivals, RefuseValuesOutOfRange) {
    const std::pair<ArrivalSpec, const char*> rows[] = {
        {{.per_second = 0}, "per_second"},
        {{.per_second = std::nan("")}, "per_second"},
        {{.kind = Kind::kGamma, .cv = 0}, "cv"},
        {{.kind = Kind::kMmpp, .burst_factor = 0.5}, "burst_factor"},
        {{.kind = Kind::kMmpp, .burst_length = 0s}, "burst_length"},
        {{.kind = Kind::kDiurnal, .swing = 1}, "swing"},
        {{.kind = Kind::kDiurnal, .period = -1s}, "period"},
    };
    for (const auto& [spec, field] : rows) {
        const auto made = Arrivals::make(spec, Prng(1));
        ASSERT_FALSE(made.ok()) << field;
        EXPECT_EQ(made.error().param, field);
    }
}

double mean_of(const LengthSpec& spec) {
    Prng prng(6);
    double sum = 0;
    for (int i = 0; i < 40'000; ++i) {
        const double v = draw(spec, prng);
        EXPECT_GE(v, spec.min);
        EXPECT_LE(v, spec.max);
        sum += v;
    }
    return sum / 40'000;
}

TEST(Lengths, HaveTheirMean) {
    using L = LengthSpec::Kind;
    EXPECT_EQ(mean_of({.kind = L::kConstant, .mean = 70}), 70);
    EXPECT_NEAR(mean_of({.kind = L::kUniform, .min = 10, .max = 30}), 20, 0.2);
    EXPECT_NEAR(mean_of({.kind = L::kLogNormal, .mean = 1000, .sigma = 0.8, .max = 1e9}), 1000, 25);
    EXPECT_NEAR(mean_of({.kind = L::kPareto, .mean = 100, .alpha = 3, .min = 0, .max = 1e9}), 100,
                5);
    EXPECT_NEAR(mean_of({.kind = L::kEmpirical, .values = {1, 2, 6}}), 3, 0.05);
}

TEST(Lengths, RefuseValuesOutOfRange) {
    using L = LengthSpec::Kind;
    EXPECT_EQ(validate({.min = 5, .max = 4}).error().param, "min");
    EXPECT_EQ(validate({.mean = -1}).error().param, "mean");
    EXPECT_EQ(validate({.sigma = std::nan("")}).error().param, "sigma");
    EXPECT_EQ(validate({.kind = L::kPareto, .alpha = 1}).error().param, "alpha");
    EXPECT_EQ(validate({.kind = L::kEmpirical}).error().param, "values");
    EXPECT_EQ(synthetic({.output = {.max = 1e11}}).error().param, "max");
}

Trace collect(Source& source, std::size_t most) {
    Trace trace(source.block_tokens());
    Request r;
    Duration before{0};
    while (trace.size() < most && source.next_arrival() != Source::kNever) {
        const Duration expected = source.next_arrival();
        source.take(r);
        EXPECT_EQ(r.arrival, expected);
        EXPECT_GE(r.arrival, before);
        before = r.arrival;
        EXPECT_EQ(r.blocks.size(), (r.input_tokens - 1) / source.block_tokens() + 1);
        trace.add(r.arrival, r.input_tokens, r.output_tokens, r.blocks, r.session, r.turn);
        source.finished(r, r.arrival + 2s);
    }
    return trace;
}

TEST(Synthetic, SharesItsPrefixesAndNothingElse) {
    auto alone = synthetic({.requests = 500});
    ASSERT_TRUE(alone.ok());
    const Trace without = collect(**alone, 1000);
    EXPECT_EQ(without.size(), 500U);
    EXPECT_TRUE((*alone)->exhausted());
    EXPECT_EQ(summarize(without).hit_share, 0);

    auto shared = synthetic({.input = {.mean = 500, .sigma = 0.3},
                             .prefixes = 10,
                             .prefix_length = {.kind = LengthSpec::Kind::kConstant, .mean = 1500},
                             .requests = 2000});
    ASSERT_TRUE(shared.ok());
    const Trace with = collect(**shared, 5000);
    // 23 whole blocks of 64 in 1,500 tokens; all but the first use of each prefix hit.
    EXPECT_NEAR(summarize(with).hit_share, 23.0 * 64 / 2000, 0.02);
}

TEST(Synthetic, HasImages) {
    auto source =
        synthetic({.image_share = 0.5, .images_mean = 2, .image_repeat = 0.3, .requests = 3000});
    ASSERT_TRUE(source.ok());
    Request r;
    std::set<std::uint64_t> distinct;
    double images = 0, with = 0;
    while (!(*source)->exhausted()) {
        (*source)->take(r);
        with += r.images.empty() ? 0 : 1;
        for (const Image& i : r.images) {
            ++images;
            distinct.insert(i.digest);
            EXPECT_GE(i.patches, 64U);
        }
    }
    EXPECT_NEAR(with / 3000, 0.5, 0.04);
    EXPECT_NEAR(images / with, 2, 0.1);
    EXPECT_NEAR(static_cast<double>(distinct.size()) / images, 0.7, 0.04);
}

// DualPath's published agent workload: 157 turns on average, at least 95 % hits, short appends.
TEST(Agents, LookLikeThePublishedOnes) {
    auto source = agents({.arrivals = {.per_second = 0.2}, .sessions = 60});
    ASSERT_TRUE(source.ok());
    const Trace trace = collect(**source, 100'000);
    EXPECT_TRUE((*source)->exhausted());
    const TraceSummary s = summarize(trace);
    EXPECT_EQ(s.sessions, 60U);
    EXPECT_NEAR(static_cast<double>(s.requests) / 60, 157, 25);
    EXPECT_GT(s.hit_share, 0.95);
    EXPECT_LE(s.input_max, 128'000);
    EXPECT_GT(s.input_p50, 30'000);
}

TEST(Agents, AreAClosedLoop) {
    auto source = agents({.arrivals = {.kind = Kind::kConstant, .per_second = 1},
                          .turns = {.kind = LengthSpec::Kind::kConstant, .mean = 3},
                          .tool_ms = {.kind = LengthSpec::Kind::kConstant, .mean = 500},
                          .sessions = 1});
    ASSERT_TRUE(source.ok());
    Source& s = **source;
    Request r;
    s.take(r);
    EXPECT_EQ(r.arrival, 1s);
    EXPECT_EQ(r.turn, 0U);
    EXPECT_EQ(r.ttl, TtlClass::kAgent);
    EXPECT_EQ(s.next_arrival(), Source::kNever);
    EXPECT_FALSE(s.exhausted());
    s.finished(r, 7s);
    EXPECT_EQ(s.next_arrival(), 7500ms);
    const auto before = r.blocks;
    const TokenCount whole = r.input_tokens / s.block_tokens();
    s.take(r);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + whole, r.blocks.begin()));
    s.finished(r, 9s);
    s.take(r);
    EXPECT_TRUE(r.last_turn);
    s.finished(r, 10s);
    EXPECT_TRUE(s.exhausted());
}

TEST(Agents, CompactAtTheContextLimit) {
    auto source =
        agents({.turns = {.kind = LengthSpec::Kind::kConstant, .mean = 40},
                .append = {.kind = LengthSpec::Kind::kConstant, .mean = 2000, .max = 2000},
                .system_tokens = 1000,
                .max_context = 20'000,
                .compacted_tokens = 5000,
                .sessions = 1});
    ASSERT_TRUE(source.ok());
    Request r;
    TokenCount before = 0;
    int compactions = 0;
    while (!(*source)->exhausted()) {
        (*source)->take(r);
        EXPECT_LE(r.input_tokens, 20'000U);
        if (r.input_tokens < before) {
            ++compactions;
            EXPECT_EQ(r.input_tokens, 6000U);
        }
        before = r.input_tokens;
        (*source)->finished(r, r.arrival + 1s);
    }
    EXPECT_GE(compactions, 4);
}

TEST(Agents, RefuseAContextThatHoldsNothing) {
    EXPECT_EQ(agents({.max_context = 20'000}).error().param, "max_context");
    EXPECT_EQ(agents({.block_tokens = 0}).error().param, "block_tokens");
}

TEST(Mix, RoutesEndsToTheRightPartAndKeepsPrefixesApart) {
    const auto part = [](std::uint64_t seed) {
        return *agents({.arrivals = {.per_second = 1},
                        .turns = {.kind = LengthSpec::Kind::kConstant, .mean = 5},
                        .sessions = 4,
                        .seed = seed});
    };
    std::vector<std::unique_ptr<Source>> inner;
    inner.push_back(part(1));
    inner.push_back(part(1));
    std::vector<std::unique_ptr<Source>> outer;
    outer.push_back(*mix(std::move(inner)));
    outer.push_back(part(1));
    outer.push_back(*synthetic({.requests = 7}));
    auto source = mix(std::move(outer));
    ASSERT_TRUE(source.ok());
    const Trace all = collect(**source, 1000);
    EXPECT_TRUE((*source)->exhausted());
    EXPECT_EQ(all.size(), 3U * 4 * 5 + 7);
    const TraceSummary s = summarize(all);
    EXPECT_EQ(s.sessions, 12U);  // the same seed thrice: distinct all the same
    auto one = part(1);
    const double hit = summarize(collect(*one, 1000)).hit_share;
    EXPECT_NEAR(s.hit_share, hit, 0.02);
}

TEST(Mix, RefusesDifferentBlocks) {
    std::vector<std::unique_ptr<Source>> parts;
    parts.push_back(*synthetic({.block_tokens = 64}));
    parts.push_back(*synthetic({.block_tokens = 512}));
    EXPECT_EQ(mix(std::move(parts)).error().param, "block_tokens");
    EXPECT_FALSE(mix({}).ok());
}

// Studies quote seeds: the same seed gives the same workload, in every build.
TEST(Generators, AreFrozen) {
    const auto hash = [](Source& source) {
        std::uint64_t h = 0;
        Request r;
        for (int i = 0; i < 200 && source.next_arrival() != Source::kNever; ++i) {
            source.take(r);
            source.finished(r, r.arrival + 100ms);
            for (const std::uint64_t v :
                 {static_cast<std::uint64_t>(r.arrival.count() / 1000),
                  std::uint64_t{r.input_tokens}, std::uint64_t{r.output_tokens}, r.session,
                  r.blocks.back()})
                h = keyed_u64(h, v);
        }
        return h;
    };
    auto a = agents({.arrivals = {.kind = Kind::kGamma}, .seed = 3});
    auto s = synthetic(
        {.arrivals = {.kind = Kind::kMmpp}, .prefixes = 5, .image_share = 0.2, .seed = 3});
    EXPECT_EQ(hash(**a), 9780897659735481169U);
    EXPECT_EQ(hash(**s), 15698346577084686444U);
}

}  // namespace
}  // namespace nereid::workload
