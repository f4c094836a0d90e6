// The determinism rule as a whole: the same request gives the same tokens with the same logprobs,
// bit for bit, whoever shares the batch, however the prefix came into the cache, with any number of
// threads.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/llama/test_engine.h"

namespace nereid::engine::llama {
namespace {

using namespace testing;

// Answers of a cold engine that serves one request at a time: nothing is shared, nothing was
// cached.
Answer alone(model::AddRequest r, std::uint32_t threads = 1) {
    static std::map<std::uint32_t, std::unique_ptr<Harness>> harnesses;
    static std::uint64_t salt = 0;
    auto& harness = harnesses[threads];
    if (harness == nullptr) {
        LlamaOptions o = small_options();
        o.prefix_store_bytes = 0;
        o.parallel = 1;
        o.threads = threads;
        harness = std::make_unique<Harness>(o);
    }
    r.kv_namespace = name_space("alone" + std::to_string(++salt));
    Answer a = harness->ask(std::move(r));
    EXPECT_EQ(a.finished->cached_tokens, 0u);
    return a;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

TEST(Determinism, RandomMixOfRequestsEqualsEachAlone) {
    LlamaOptions options = small_options();
    options.decode_gap = 30ms;  // many switches between prefill and decode
    Harness h(options);
    Prng prng(7);
    const auto common = words(70, 99);
    std::vector<model::AddRequest> requests;
    for (std::uint64_t id = 1; id <= 9; ++id) {
        constexpr std::size_t kLengths[] = {1, 5, 63, 64, 65, 128};
        auto prompt = words(kLengths[prng.below(std::size(kLengths))], id);
        if (prng.chance(0.4)) prompt = joined(common, prompt);
        auto r = request(id, std::move(prompt), static_cast<TokenCount>(4 + prng.below(10)));
        r.sampling.seed = id;
        if (prng.chance(0.6)) r.sampling.temperature = 0.9;
        if (prng.chance(0.3)) r.sampling.top_p = 0.8;
        if (prng.chance(0.3)) r.sampling.top_k = 20;
        if (prng.chance(0.3)) r.sampling.frequency_penalty = 0.7;
        r.priority = static_cast<std::uint32_t>(prng.below(2));
        requests.push_back(std::move(r));
    }
    std::size_t next = 0;
    std::vector<std::uint64_t> aborted;
    for (int i = 0; next < requests.size() || h.engine->has_work() || h.engine->has_output(); ++i) {
        ASSERT_LT(i, 5000);
        while (next < requests.size() && (prng.chance(0.3) || !h.engine->has_work()))
            h.submit(requests[next++]);
        if (i % 9 == 8 && aborted.size() < 3) {
            aborted.push_back(1 + prng.below(next));
            h.submit(model::AbortRequest{{aborted.back()}});
        }
        ASSERT_TRUE(h.step().ok());
    }
    EXPECT_GT(h.engine->counters().resident_hit_tokens + h.engine->counters().restored_tokens, 0u);
    for (const auto& r : requests) {
        const Answer& got = h.answers[r.id.value];
        ASSERT_TRUE(got.finished.has_value()) << r.id.value;
        Answer expected = alone(r);
        if (got.finished->reason == model::EndReason::kAborted) {  // what it had said until then
            ASSERT_LE(got.tokens.size(), expected.tokens.size());
            expected.tokens.resize(got.tokens.size());
            expected.logprobs.resize(got.logprobs.size());
        }
        expect_same(expected, got, "request " + std::to_string(r.id.value));
    }
}

// A lone row over >= 512 cells takes another kernel of ggml, whose result depends on the number of
// threads, unless it is given company (plan_step.h). Red without the pairing.
TEST(Determinism, LoneRowOverALongContextDoesNotDependOnThreads) {
    auto r = request(1, words(270, 5), 4);
    r.sampling.temperature = 1.0;
    r.sampling.seed = 3;
    expect_same(alone(r, 1), alone(r, 2), "1 and 2 threads");
    r.prompt = words(257, 6);
    expect_same(alone(r, 1), alone(r, 2), "1 and 2 threads, an odd prompt");
}

TEST(Determinism, TurnsOfAChatEqualColdOnes) {
    Harness h(small_options());
    std::vector<TokenId> prompt = words(90, 1);
    for (std::uint64_t turn = 0; turn < 3; ++turn) {
        auto r = request(turn + 1, prompt, 20);
        r.sampling.temperature = 0.8;
        r.sampling.seed = 11;
        const Answer warm = h.ask(r);
        expect_same(alone(r), warm, "turn " + std::to_string(turn));
        if (turn > 0) EXPECT_GE(warm.finished->cached_tokens, 64u);
        // What decode wrote is prefilled again: a hit ends where the last prompt ended.
        prompt = joined(joined(prompt, warm.tokens), words(30, 50 + turn));
    }
    EXPECT_GT(h.engine->counters().resident_hit_tokens, 0u);
}

TEST(Determinism, HowAPromptIsCutDoesNotMatter) {
    LlamaOptions wide = small_options();  // pieces of 128
    wide.ubatch = 512;
    Harness h(wide);
    std::uint64_t id = 1;
    for (const std::size_t length : {100u, 130u, 190u, 301u, 480u}) {
        const auto r = request(id++, words(length, length), 6);
        expect_same(alone(r), h.ask(r), std::to_string(length));
    }
    EXPECT_EQ(h.engine->counters().prefill_steps, 5u);  // each in one piece
}

// Prompts of a burst share calls, padded to one length, beside streams that already hold more.
TEST(Determinism, BurstOfPromptsEqualsEachAlone) {
    LlamaOptions options = small_options();
    options.parallel = 8;
    options.ubatch = 512;
    options.decode_gap = 10s;
    Harness h(options);
    const auto old = words(130, 77);
    h.ask(request(100, joined(old, words(64, 78)), 1));  // two blocks for the store
    std::vector<model::AddRequest> requests;
    const std::size_t lengths[] = {18, 20, 21, 17, 45, 70, 64, 52};
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
        auto prompt = words(lengths[i], 200 + i);
        if (i == 5) prompt = joined(old, prompt);
        auto r = request(i + 1, std::move(prompt), 5);
        r.sampling.temperature = 1.0;
        r.sampling.seed = i;
        requests.push_back(std::move(r));
    }
    const auto before = h.engine->counters();
    for (const auto& r : requests) h.submit(r);
    h.run();
    const auto after = h.engine->counters();
    EXPECT_EQ(after.prefill_steps - before.prefill_steps, 3u)
        << "the short ones, the long ones, and the one whose blocks lie in a stream apart";
    EXPECT_GT(after.padding_rows, before.padding_rows);
    for (const auto& r : requests) {
        expect_same(alone(r), h.answers[r.id.value], "request " + std::to_string(r.id.value));
    }
    EXPECT_EQ(h.answers[6].finished->cached_tokens, 128u);
}

TEST(Determinism, RestoredFromTheStoreEqualsCold) {
    LlamaOptions options = small_options();
    options.parallel = 1;
    Harness h(options);
    for (const std::size_t length : {65u, 128u, 200u}) {  // hits that leave 1, 64 and 8 tokens
        auto r = request(1, words(length, length), 8);
        h.ask(r);
        h.ask(request(2, words(70, 3), 1));  // takes the stream
        const Answer warm = h.ask(r);
        EXPECT_EQ(warm.finished->cached_tokens, (length - 1) / 64 * 64);
        expect_same(alone(r), warm, std::to_string(length));
    }
    EXPECT_GT(h.engine->counters().restored_tokens, 0u);
}

// A stream that is continued elsewhere: the generated tokens are replayed by decode, the
// continuation is the same.
TEST(Determinism, ContinuedStreamEqualsTheUnbrokenOne) {
    auto r = request(1, words(140, 8), 16);
    r.sampling.temperature = 1.0;
    r.sampling.frequency_penalty = 0.5;
    r.sampling.seed = 21;
    const Answer whole = alone(r);
    Harness h(small_options());
    for (const std::size_t cut : {1u, 7u, 15u}) {
        auto rest = r;
        rest.id = {cut + 10};
        rest.prompt.insert(rest.prompt.end(), whole.tokens.begin(),
                           whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
        rest.generated = static_cast<TokenCount>(cut);
        rest.sample_position = cut;
        rest.max_tokens = static_cast<TokenCount>(16 - cut);
        const Answer got = h.ask(rest);
        Answer expected;
        expected.tokens.assign(whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut),
                               whole.tokens.end());
        expected.logprobs.assign(whole.logprobs.begin() + static_cast<std::ptrdiff_t>(cut),
                                 whole.logprobs.end());
        expect_same(expected, got, "cut at " + std::to_string(cut));
    }
}

// A file that both sides map.
struct SharedFile {
    std::string path = (std::filesystem::temp_directory_path() / "nereid-kv-XXXXXX").string();
    explicit SharedFile(std::size_t size) {
        const int fd = ::mkstemp(path.data());
        CHECK(fd >= 0);
        ::close(fd);
        std::filesystem::resize_file(path, size);
    }
    ~SharedFile() { std::filesystem::remove(path); }
};

TEST(Determinism, ImportedPrefixAndTransferredStateEqualCold) {
    constexpr std::size_t kRegion = 16u << 20;
    const SharedFile file(kRegion);
    auto r = request(1, words(150, 31), 10);
    r.sampling.temperature = 0.9;
    r.sampling.seed = 5;
    const Answer cold = alone(r);

    Harness from(small_options());
    from.submit(model::MapRegion{file.path, kRegion});
    auto prefill = r;
    prefill.mode = model::AddMode::kPrefillOnly;
    const Answer first = from.ask(prefill);
    ASSERT_EQ(first.finished->reason, model::EndReason::kPrefilled);
    ASSERT_EQ(first.tokens.size(), 1u);
    EXPECT_EQ(first.tokens[0], cold.tokens[0]);
    from.submit(model::ExportBlocks{{1}, 0, 3, 0, kRegion});  // 64 + 64 + 22 tokens
    from.run();
    ASSERT_EQ(from.ready.size(), 1u);
    const ByteCount length = from.ready[0].length;

    Harness to(small_options());
    to.submit(model::MapRegion{file.path, kRegion});
    to.submit(model::AdmitDecode{r, first.tokens[0], 0, length});
    to.run();
    Answer got = to.answers[1];
    ASSERT_TRUE(got.finished.has_value());
    ASSERT_EQ(got.finished->reason, model::EndReason::kLength) << got.finished->error->message;
    EXPECT_EQ(got.finished->cached_tokens, 150u);
    got.tokens.insert(got.tokens.begin(), first.tokens[0]);
    got.logprobs.insert(got.logprobs.begin(), first.logprobs[0]);
    expect_same(cold, got, "transferred");

    Harness third(small_options());
    third.submit(model::MapRegion{file.path, kRegion});
    auto chain = model::block_chain(r.kv_namespace, r.prompt, kBlockTokens);
    ASSERT_EQ(chain.size(), 2u);
    third.submit(
        model::ImportPrefix{{1}, 0, chain, 0, 2 * third.engine->info().layout.block_bytes});
    const Answer imported = third.ask(r);
    ASSERT_EQ(third.failed.size(), 0u) << third.failed[0].error.message;
    EXPECT_EQ(third.ready.size(), 1u);
    EXPECT_EQ(imported.finished->cached_tokens, 128u);  // 22 tokens are left, in 64 rows
    expect_same(cold, imported, "imported");
}

}  // namespace
}  // namespace nereid::engine::llama
