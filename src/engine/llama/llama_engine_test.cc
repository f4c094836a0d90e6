#include "engine/llama/llama_engine.h"

#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gguf.h>
#include <llama.h>
#include "engine/llama/model_file.h"
#include "engine/llama/test_engine.h"

namespace nereid::engine::llama {
namespace {

using namespace testing;
using model::AddMode;
using model::EndReason;

struct TemporaryFile {
    std::string path = (std::filesystem::temp_directory_path() / "nereid-engine-XXXXXX").string();
    TemporaryFile() {
        const int fd = ::mkstemp(path.data());
        CHECK(fd >= 0);
        ::close(fd);
    }
    ~TemporaryFile() { std::filesystem::remove(path); }
};

std::string piece(const LlamaEngine& e, TokenId token) {
    char text[128];
    const int n = llama_token_to_piece(e.runtime().vocab(), token, text, sizeof text, 0, true);
    return {text, static_cast<std::size_t>(std::max(n, 0))};
}

// One engine for the tests that leave it as they found it.
Harness& shared() {
    static Harness harness(small_options());
    harness.answers.clear();
    harness.ready.clear();
    harness.failed.clear();
    return harness;
}

// ---------------------------------------------------------------- opening

void expect_refused(const std::string& path, std::string_view part) {
    LlamaOptions o;
    o.model_path = path;
    const auto engine = LlamaEngine::open(o);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.code(), Code::kConfig);
    EXPECT_NE(engine.error().message.find(path), std::string::npos) << engine.error().message;
    EXPECT_NE(engine.error().message.find(part), std::string::npos) << engine.error().message;
    EXPECT_NE(engine.error().message.find("Mend:"), std::string::npos) << engine.error().message;
}

TEST(LlamaOpen, BadFilesAreRefusedWithPathAndMend) {
    expect_refused("/nonexistent/model.gguf", "No such file");
    expect_refused("/tmp", "not a regular file");
    const TemporaryFile file;
    std::ofstream(file.path) << "hello, I am a text";
    expect_refused(file.path, "is not a GGUF file");
    std::ofstream(file.path) << "GGUF\x03";
    expect_refused(file.path, "damaged or cut short");

    std::ifstream in(test_model(), std::ios::binary);
    std::string head(6u << 20, '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    std::ofstream(file.path, std::ios::binary) << head;
    expect_refused(file.path, "cut short");

    gguf_context* g = gguf_init_empty();
    ASSERT_TRUE(gguf_write_to_file(g, file.path.c_str(), true));
    expect_refused(file.path, "names no architecture");
    gguf_set_val_str(g, "general.architecture", "llama");
    ASSERT_TRUE(gguf_write_to_file(g, file.path.c_str(), true));
    expect_refused(file.path, "holds no vocabulary");
    const char* tokens[] = {"a", "b"};
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, 2);
    ASSERT_TRUE(gguf_write_to_file(g, file.path.c_str(), true));
    expect_refused(file.path, "llama.cpp does not load it");
    gguf_free(g);
}

TEST(LlamaOpen, BadOptionsNameTheKey) {
    const auto expect_key = [](auto change, std::string_view key) {
        LlamaOptions o = small_options();
        change(o);
        const auto engine = LlamaEngine::open(o);
        ASSERT_FALSE(engine.ok()) << key;
        EXPECT_EQ(engine.code(), Code::kConfig);
        EXPECT_NE(engine.error().message.find(key), std::string::npos) << engine.error().message;
    };
    expect_key([](LlamaOptions& o) { o.parallel = 0; }, "engine.parallel");
    expect_key([](LlamaOptions& o) { o.parallel = 63; }, "engine.parallel");
    expect_key([](LlamaOptions& o) { o.ubatch = 100; }, "engine.ubatch");
    expect_key([](LlamaOptions& o) { o.context_tokens = 10; }, "engine.context_tokens");
    expect_key([](LlamaOptions& o) { o.kv_tokens = 100; }, "engine.kv_tokens");
    expect_key(
        [](LlamaOptions& o) {
            o.flash_attention = false;
            o.kv_type = KvType::kQ8_0;
        },
        "engine.kv_type");
}

TEST(LlamaOpen, InfoIsTrue) {
    const auto& info = shared().engine->info();
    EXPECT_EQ(info.engine, "llama.cpp");
    EXPECT_EQ(info.model_id, "test");
    EXPECT_EQ(info.vocab_size, 49152u);
    EXPECT_EQ(info.context_tokens, 512u);
    EXPECT_EQ(info.max_running, 3u);
    EXPECT_EQ(info.max_queued, 8u);
    EXPECT_EQ(info.kv_capacity_tokens, 3u * 512u);
    EXPECT_EQ(info.layout.block_tokens, 64u);
    EXPECT_EQ(info.layout.slices.size(), 60u);
    EXPECT_EQ(info.layout.slices.back().offset + info.layout.slices.back().length,
              info.layout.block_bytes);
    EXPECT_TRUE(info.deterministic);
    EXPECT_EQ(info.replay, model::ReplayClass::kExact);
    EXPECT_FALSE(info.eos_ids.empty());
    EXPECT_EQ(to_hex(info.model_digest).substr(0, 12), "b179c9523d0e");
}

// ---------------------------------------------------------------- requests

TEST(LlamaEngine, StreamsTokensAndCountsThem) {
    Harness& h = shared();
    const Answer a = h.ask(request(1, words(70, 1), 6));
    ASSERT_TRUE(a.finished.has_value());
    EXPECT_EQ(a.finished->reason, EndReason::kLength);
    EXPECT_EQ(a.tokens.size(), 6u);
    EXPECT_EQ(a.finished->prompt_tokens, 70u);
    EXPECT_EQ(a.finished->output_tokens, 6u);
    EXPECT_GT(a.finished->prefill_time, 0ns);
    EXPECT_GT(a.finished->decode_time, 0ns);
    ASSERT_TRUE(a.started.has_value());
    for (const float l : a.logprobs) EXPECT_LE(l, 0.0f);
    EXPECT_EQ(h.load.running, 0u);
    EXPECT_GT(h.load.last_step, 0ns);
}

TEST(LlamaEngine, SecondRequestReusesWholeBlocksAndComputes64RowsOrMore) {
    Harness& h = shared();
    const auto before = h.load.prefix_hit_tokens;
    h.ask(request(1, words(128, 2), 1));
    Answer again = h.ask(request(2, words(128, 2), 1));
    EXPECT_EQ(again.finished->cached_tokens, 64u);
    EXPECT_EQ(again.started->cached_tokens, 64u);
    EXPECT_EQ(h.load.prefix_hit_tokens - before, 64u);
    auto other = request(3, words(128, 2), 1);
    other.kv_namespace = name_space("another tenant");
    EXPECT_EQ(h.ask(other).finished->cached_tokens, 0u);
}

TEST(LlamaEngine, WhatItCannotDoIsRefusedWithACode) {
    Harness& h = shared();
    const auto refused = [&](auto change, Code code) {
        auto r = request(1, words(5, 1), 3);
        change(r);
        const Answer a = h.ask(r);
        ASSERT_TRUE(a.finished.has_value());
        ASSERT_EQ(a.finished->reason, EndReason::kFailed);
        EXPECT_EQ(a.finished->error->code, code) << a.finished->error->message;
        EXPECT_TRUE(a.tokens.empty());
    };
    refused([](auto& r) { r.prompt.clear(); }, Code::kInvalidArgument);
    refused([](auto& r) { r.prompt[2] = -1; }, Code::kInvalidArgument);
    refused([](auto& r) { r.prompt[2] = 49152; }, Code::kInvalidArgument);
    refused([](auto& r) { r.prompt.assign(512, 5); }, Code::kContextLength);
    refused([](auto& r) { r.max_tokens = 0; }, Code::kInvalidArgument);
    refused([](auto& r) { r.generated = 5; }, Code::kInvalidArgument);
    refused([](auto& r) { r.images.push_back({}); }, Code::kUnsupported);
    refused([](auto& r) { r.adapter = "x"; }, Code::kUnsupported);
    refused([](auto& r) { r.grammar_kind = model::GrammarKind::kJsonSchema; },
            Code::kInvalidArgument);
    refused(
        [](auto& r) {
            r.grammar_kind = model::GrammarKind::kJsonSchema;
            r.grammar = R"({"type":"array","uniqueItems":true})";
        },
        Code::kUnsupported);
    refused([](auto& r) { r.top_logprobs = 21; }, Code::kInvalidArgument);
    refused([](auto& r) { r.sampling.temperature = std::nan(""); }, Code::kInvalidArgument);
    refused([](auto& r) { r.sampling.top_p = 0.0; }, Code::kInvalidArgument);
    refused([](auto& r) { r.sampling.logit_bias = {{49152, 1.0f}}; }, Code::kInvalidArgument);
    for (const char* bad : {"", "root ::= (", "no root here", "toor ::= \"a\""}) {
        refused(
            [&](auto& r) {
                r.grammar_kind = model::GrammarKind::kGbnf;
                r.grammar = bad;
            },
            Code::kInvalidArgument);
    }
    refused(
        [](auto& r) {
            r.grammar_kind = model::GrammarKind::kGbnf;
            r.grammar = "root ::= " + std::string(5000, '(');
        },
        Code::kInvalidArgument);
}

TEST(LlamaEngine, StopIdsEosAndFullContextEndIt) {
    Harness& h = shared();
    const Answer free = h.ask(request(1, words(20, 4), 4));
    auto r = request(2, words(20, 4), 50);
    r.stop_ids = {free.tokens[2]};
    const Answer stopped = h.ask(r);
    EXPECT_EQ(stopped.finished->reason, EndReason::kStop);
    EXPECT_EQ(stopped.tokens.back(), free.tokens[2]);

    auto eos = request(3, words(20, 4), 50);
    eos.ignore_eos = false;
    eos.sampling.logit_bias = {{h.engine->info().eos_ids.front(), 1e6f}};
    const Answer ended = h.ask(eos);
    EXPECT_EQ(ended.finished->reason, EndReason::kStop);
    EXPECT_EQ(ended.tokens.size(), 1u);

    const Answer full = h.ask(request(4, words(508, 4), 1000));
    EXPECT_EQ(full.finished->reason, EndReason::kLength);
    EXPECT_EQ(full.tokens.size(), 4u);  // prompt and output together fill the context
}

TEST(LlamaEngine, TopLogprobsAreSortedAndHoldTheGreedyToken) {
    Harness& h = shared();
    auto r = request(1, words(10, 5), 2);
    r.top_logprobs = 5;
    h.submit(r);
    std::vector<model::TokenOut> tokens;
    while (h.engine->has_work()) {
        auto frame = h.engine->step(h.now);
        ASSERT_TRUE(frame.ok());
        for (auto& t : frame->tokens) tokens.push_back(t);
    }
    for (const auto& t : tokens) {
        ASSERT_EQ(t.top.size(), 5u);
        EXPECT_EQ(t.top[0].id, t.token);
        EXPECT_EQ(t.top[0].logprob, t.logprob);
        for (std::size_t i = 1; i < 5; ++i) EXPECT_GE(t.top[i - 1].logprob, t.top[i].logprob);
    }
}

TEST(LlamaEngine, GrammarIsObeyedAlsoAfterATrigger) {
    Harness& h = shared();
    auto r = request(1, words(10, 6), 20);
    r.ignore_eos = false;
    r.sampling.temperature = 1.0;
    r.sampling.seed = 4;
    r.grammar_kind = model::GrammarKind::kGbnf;
    r.grammar = "root ::= \"yes\" | \"no\"";
    const Answer a = h.ask(r);
    ASSERT_EQ(a.finished->reason, EndReason::kStop);
    std::string text;
    for (const TokenId t : a.tokens) {
        const auto& ends = h.engine->info().eos_ids;
        if (std::ranges::find(ends, t) == ends.end()) text += piece(*h.engine, t);
    }
    EXPECT_TRUE(text == "yes" || text == "no") << text;
    EXPECT_GT(h.engine->counters().masked_tokens, 0u);

    const Answer free = h.ask(request(2, words(10, 6), 3));
    auto lazy = r;
    lazy.id = {3};
    lazy.sampling.temperature = 0;
    lazy.grammar_trigger = {free.tokens[0], free.tokens[1]};
    const Answer b = h.ask(lazy);
    ASSERT_GT(b.tokens.size(), 2u);
    EXPECT_EQ(b.tokens[1], free.tokens[1]);
    const std::string after = piece(*h.engine, b.tokens[2]);
    EXPECT_TRUE(std::string("yes").starts_with(after) || std::string("no").starts_with(after))
        << after;
}

TEST(LlamaEngine, ScoreGivesTheLogprobsOfThePrompt) {
    Harness& h = shared();
    const Answer a = h.ask(request(1, words(70, 7), 5));
    auto r = request(2, words(70, 7), 0);
    r.prompt.insert(r.prompt.end(), a.tokens.begin(), a.tokens.end());
    r.mode = AddMode::kScore;
    r.prompt_logprobs = true;
    const Answer scored = h.ask(r);
    EXPECT_EQ(scored.finished->reason, EndReason::kPrefilled);
    EXPECT_TRUE(scored.tokens.empty());
    ASSERT_EQ(scored.prompt_logprobs.size(), 75u);
    EXPECT_EQ(scored.prompt_logprobs[0], 0.0f);
    for (std::size_t i = 0; i < 5;
         ++i) {  // prefill and decode are different kernels: close, not equal
        EXPECT_NEAR(scored.prompt_logprobs[70 + i], a.logprobs[i], 0.3f);
    }
}

TEST(LlamaEngine, EmbeddingsAreUnitVectorsAndDoNotDependOnTheBatch) {
    Harness& h = shared();
    const auto embed = [&](std::uint64_t id, std::vector<TokenId> prompt) {
        auto r = request(id, std::move(prompt), 0);
        r.mode = AddMode::kEmbed;
        return r;
    };
    const Answer one = h.ask(embed(1, words(300, 8)));  // two chunks
    ASSERT_EQ(one.embedding.size(), h.engine->info().embedding_width);
    double square = 0;
    for (const float v : one.embedding) square += static_cast<double>(v) * static_cast<double>(v);
    EXPECT_NEAR(square, 1.0, 1e-4);
    h.submit(request(2, words(30, 9), 5));
    h.submit(embed(3, words(300, 8)));
    h.submit(embed(4, words(12, 9)));
    h.run();
    EXPECT_EQ(h.answers[3].embedding, one.embedding);
    EXPECT_NE(h.answers[4].embedding, one.embedding);
    EXPECT_EQ(h.answers[2].tokens.size(), 5u);
}

// ---------------------------------------------------------------- scheduling

TEST(LlamaEngine, QueueIsBounded) {
    Harness& h = shared();
    for (std::uint64_t id = 1; id <= 12; ++id)
        h.submit(request(id, words(3, id), 2));  // 3 streams + 8 queued
    h.run();
    for (std::uint64_t id = 1; id <= 11; ++id) EXPECT_EQ(h.answers[id].tokens.size(), 2u) << id;
    EXPECT_EQ(h.answers[12].finished->error->code, Code::kOverloaded);
}

TEST(LlamaEngine, LowerPriorityNumberGoesFirst) {
    Harness& h = shared();
    for (std::uint64_t id = 1; id <= 6; ++id) {
        auto r = request(id, words(3, id), 3);
        r.priority = id == 6 ? 0 : 1;
        h.submit(r);
    }
    ASSERT_TRUE(h.step().ok());
    EXPECT_TRUE(h.answers[6].started.has_value());
    h.run();
}

TEST(LlamaEngine, AbortWorksInEveryPhaseAndFreesTheStream) {
    Harness& h = shared();
    // Decoding (1), prefilling (2, 3), queued (4), held (5), embedding (6), unknown (7).
    h.submit(request(1, words(5, 1), 400));
    ASSERT_TRUE(h.step().ok());
    ASSERT_TRUE(h.step().ok());
    ASSERT_FALSE(h.answers[1].tokens.empty());
    h.submit(request(2, words(400, 2), 400));
    h.submit(request(3, words(400, 3), 400));
    h.submit(request(4, words(5, 4), 400));
    auto embed = request(6, words(400, 5), 0);
    embed.mode = AddMode::kEmbed;
    h.submit(embed);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(h.step().ok());
    ASSERT_FALSE(h.answers[3].started.has_value() && !h.answers[3].tokens.empty());
    ASSERT_FALSE(h.answers[4].started.has_value());
    for (const std::uint64_t id : {1u, 2u, 3u, 4u, 6u, 7u}) h.submit(model::AbortRequest{{id}});
    EXPECT_TRUE(h.engine->has_output());
    ASSERT_TRUE(h.step().ok());  // within one step
    for (const std::uint64_t id : {1u, 2u, 3u, 4u, 6u}) {
        ASSERT_TRUE(h.answers[id].finished.has_value()) << id;
        EXPECT_EQ(h.answers[id].finished->reason, EndReason::kAborted) << id;
    }
    EXPECT_FALSE(h.answers[7].finished.has_value());
    EXPECT_EQ(h.load.running, 0u);
    EXPECT_FALSE(h.engine->has_work());
    EXPECT_EQ(h.ask(request(8, words(5, 1), 3)).tokens.size(), 3u);
}

TEST(LlamaEngine, IdAddedTwiceEndsOnce) {
    Harness& h = shared();
    h.submit(request(1, words(5, 1), 50));
    h.submit(request(1, words(5, 1), 50));
    h.run();
    EXPECT_EQ(h.answers[1].finished->error->code, Code::kConflict);
}

TEST(LlamaEngine, HeldKvLivesUntilReleaseOrLease) {
    Harness& h = shared();
    auto r = request(1, words(70, 3), 1);
    r.mode = AddMode::kPrefillOnly;
    const Answer a = h.ask(r);
    EXPECT_EQ(a.finished->reason, EndReason::kPrefilled);
    EXPECT_EQ(a.tokens.size(), 1u);
    EXPECT_EQ(h.load.running, 1u);
    EXPECT_FALSE(h.engine->has_work());
    EXPECT_EQ(h.engine->wake_at(), h.now + 30s);
    h.submit(model::Pin{{1}, 60s});
    EXPECT_EQ(h.engine->wake_at(), h.now + 60s);
    h.submit(model::AbortRequest{{1}});  // it has finished: nothing to abort
    h.now = h.now + 59s;
    ASSERT_TRUE(h.step().ok());
    EXPECT_EQ(h.load.running, 1u);
    h.now = h.now + 1s;
    ASSERT_TRUE(h.step().ok());
    EXPECT_EQ(h.load.running, 0u);
    EXPECT_GT(h.engine->counters().expired_leases, 0u);
    h.submit(model::Pin{{1}, 60s});
    h.run();
    ASSERT_EQ(h.failed.size(), 1u);
    EXPECT_EQ(h.failed[0].error.code, Code::kNotFound);

    r.id = {2};
    h.ask(r);
    h.submit(model::Release{{2}});
    ASSERT_TRUE(h.step().ok());
    EXPECT_EQ(h.load.running, 0u);
}

TEST(LlamaEngine, DrainFinishesWhatRunsAndRefusesWhatComes) {
    LlamaOptions o = small_options();
    o.parallel = 1;
    Harness h(o);
    h.submit(request(1, words(3, 1), 3));
    h.submit(request(2, words(3, 1), 3));
    h.submit(model::Drain{});
    h.submit(request(3, words(3, 1), 3));
    h.run();
    EXPECT_EQ(h.answers[1].tokens.size(), 3u);
    EXPECT_EQ(h.answers[2].tokens.size(), 3u);
    EXPECT_EQ(h.answers[3].finished->error->code, Code::kOverloaded);
}

// ---------------------------------------------------------------- KV

TEST(LlamaEngine, DamagedBlockIsAMissAndCounted) {
    LlamaOptions o = small_options();
    o.parallel = 1;
    Harness h(o);
    const auto prompt = words(200, 12);
    const Answer good = h.ask(request(1, prompt, 4));
    h.ask(request(2, words(70, 13), 1));  // takes the stream, so that the store is asked
    const auto chain = model::block_chain(name_space("tenant"), prompt, kBlockTokens);
    const std::string* block = h.engine->prefix_store().find(chain[1]);
    ASSERT_NE(block, nullptr);
    const_cast<char&>((*block)[5000]) ^= 1;
    const Answer again = h.ask(request(3, prompt, 4));
    EXPECT_EQ(again.finished->cached_tokens, 64u);  // the block before it is good
    EXPECT_EQ(h.engine->counters().corrupt_blocks, 1u);
    expect_same(good, again, "recomputed");
    h.ask(request(4, words(70, 13), 1));
    EXPECT_EQ(h.ask(request(5, prompt, 4)).finished->cached_tokens, 192u);  // and stored anew
}

TEST(LlamaEngine, DeterminismOffSharesWhatDecodeWrote) {
    LlamaOptions o = small_options();
    o.determinism = false;
    Harness h(o);
    EXPECT_FALSE(h.engine->info().deterministic);
    const auto prompt = words(60, 14);
    const Answer a = h.ask(request(1, prompt, 80));
    auto longer = prompt;
    longer.insert(longer.end(), a.tokens.begin(), a.tokens.end());
    EXPECT_EQ(h.ask(request(2, longer, 2)).finished->cached_tokens, 128u);
    EXPECT_EQ(h.engine->counters().padding_rows,
              4u + 52u);  // the prefills of 60 and of 12 behind the hit; none to decode
}

struct Transfer {
    static constexpr std::size_t kSize = 8u << 20;
    TemporaryFile file;
    Harness& h;
    ByteCount block;
    model::AddRequest request_;
    std::vector<model::BlockKey> keys;
    std::string good;

    explicit Transfer(Harness& harness) : h(harness), block(h.engine->info().layout.block_bytes) {
        std::filesystem::resize_file(file.path, kSize);
        h.submit(model::MapRegion{file.path, kSize});
        request_ = request(100, words(140, 40), 3);
        auto prefill = request_;
        prefill.mode = AddMode::kPrefillOnly;
        h.ask(prefill);
        h.submit(model::ExportBlocks{{100}, 0, 3, 0, kSize});
        h.submit(model::Release{{100}});
        h.run();
        CHECK(h.ready.size() == 1);
        keys = model::block_chain(request_.kv_namespace, request_.prompt, kBlockTokens);
        std::ifstream in(file.path, std::ios::binary);
        good.assign(std::istreambuf_iterator<char>(in), {});
        h.ready.clear();
    }
    void write(const std::string& bytes) {
        std::fstream out(file.path, std::ios::binary | std::ios::in | std::ios::out);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
};

TEST(LlamaEngine, BadImportsFailAndNothingWrongIsServed) {
    LlamaOptions o = small_options();
    o.prefix_store_bytes = 4u << 20;  // two blocks
    Harness h(o);
    Transfer t(h);
    const std::uint64_t no_blocks = h.engine->prefix_store().stats().inserted;
    const auto fails = [&](model::ImportPrefix c, Code code) {
        c.id = {7};
        h.failed.clear();
        h.submit(c);
        h.run();
        ASSERT_EQ(h.failed.size(), 1u);
        EXPECT_EQ(h.failed[0].error.code, code) << h.failed[0].error.message;
    };
    fails({{7}, 0, t.keys, t.kSize - 10, 100}, Code::kInvalidArgument);  // outside the region
    fails({{7}, 0, t.keys, ~0ull - 5, 100}, Code::kInvalidArgument);     // wraps around
    fails({{7}, 0, t.keys, 0, 100}, Code::kCorrupt);                     // too short
    fails({{7}, 0, {t.keys[1], t.keys[0]}, 0, 2 * t.block},
          Code::kCorrupt);  // other blocks than announced
    fails({{7}, 1, {t.keys[1]}, t.block, t.block}, Code::kInvalidArgument);  // its head is missing
    fails({{7}, 0, {}, 0, t.block}, Code::kInvalidArgument);
    std::string bad = t.good;
    bad[kBlockHeaderBytes + 777] ^= 4;
    t.write(bad);
    fails({{7}, 0, t.keys, 0, 2 * t.block}, Code::kCorrupt);
    EXPECT_EQ(h.engine->prefix_store().stats().inserted, no_blocks);
}

TEST(LlamaEngine, BadTransfersAndExportsFail) {
    Harness h(small_options());
    {
        Harness& unmapped = h;
        unmapped.submit(model::MapRegion{"/nonexistent", 10});
        unmapped.submit(model::AdmitDecode{request(1, words(70, 1), 5), 3, 0, 1000});
        unmapped.submit(model::ExportBlocks{{9}, 0, 1, 0, 1000});
        unmapped.run();
        EXPECT_EQ(h.answers[1].finished->error->code, Code::kConflict);
        EXPECT_EQ(h.failed.size(), 2u);
    }
    Transfer t(h);
    const ByteCount length = 2 * t.block + h.engine->runtime().geometry().block_bytes(12);
    std::uint64_t id = 10;
    const auto admit = [&](const std::string& bytes, ByteCount n) {
        t.write(bytes);
        auto r = t.request_;
        r.id = {++id};
        h.submit(model::AdmitDecode{r, 5, 0, n});
        h.run();
        return h.answers[id];
    };
    EXPECT_EQ(admit(t.good, length).tokens.size(), 2u);
    for (const ByteCount n : {ByteCount{0}, t.block - 1, length - 1}) {
        EXPECT_EQ(admit(t.good, n).finished->error->code, Code::kCorrupt) << n;
    }
    Prng prng(3);
    for (int i = 0; i < 10; ++i) {
        std::string bad = t.good;
        bad[prng.below(length)] ^= static_cast<char>(1 << prng.below(8));
        const Answer a = admit(bad, length);
        ASSERT_TRUE(a.finished->error.has_value());
        EXPECT_EQ(a.finished->error->code, Code::kCorrupt);
    }
    auto other = t.request_;  // good bytes of another prompt
    other.id = {1000};
    other.prompt[3] += 1;
    t.write(t.good);
    h.submit(model::AdmitDecode{other, 5, 0, length});
    h.run();
    EXPECT_EQ(h.answers[1000].finished->error->code, Code::kCorrupt);

    h.failed.clear();
    auto held = t.request_;
    held.id = {2000};
    held.mode = AddMode::kPrefillOnly;
    h.ask(held);
    h.submit(model::ExportBlocks{{2000}, 0, 4, 0, t.kSize});  // more than the prompt has
    h.submit(model::ExportBlocks{{2000}, 0, 0, 0, t.kSize});
    h.submit(model::ExportBlocks{{2000}, 0, 1, 0, 100});                  // no room
    h.submit(model::ExportBlocks{{2000}, 0, 1, t.kSize - 100, t.kSize});  // outside the region
    h.run();
    ASSERT_EQ(h.failed.size(), 4u);
    EXPECT_EQ(h.failed[2].error.code, Code::kTooLarge);
    EXPECT_EQ(h.failed[3].error.code, Code::kInvalidArgument);
}

// ---------------------------------------------------------------- a runtime that fails

class FaultyRuntime final : public Runtime {
  public:
    explicit FaultyRuntime(std::unique_ptr<Runtime> inner) : inner_(std::move(inner)) {}
    std::vector<DecodeStatus> failures;  // of the next decodes
    bool refuse_restore = false;

    const ModelFacts& facts() const override { return inner_->facts(); }
    const llama_vocab* vocab() const override { return inner_->vocab(); }
    llama_model* model() const override { return inner_->model(); }
    TokenCount stream_capacity() const override { return inner_->stream_capacity(); }
    std::uint32_t streams() const override { return inner_->streams(); }
    DecodeStatus decode(std::span<const Row> rows) override {
        if (failures.empty()) return inner_->decode(rows);
        const DecodeStatus status = failures.front();
        failures.erase(failures.begin());
        return status;
    }
    std::span<const float> logits(std::size_t index) override {
        if (!spoil) return inner_->logits(index);
        spoiled_.assign(inner_->logits(index).size(), std::nanf(""));
        return spoiled_;
    }
    void truncate(std::uint32_t stream, TokenCount from) override {
        inner_->truncate(stream, from);
    }
    TokenCount length(std::uint32_t stream) const override { return inner_->length(stream); }
    void wait_by_spinning(bool spin) override { inner_->wait_by_spinning(spin); }
    bool blocks() const override { return inner_->blocks(); }
    const KvGeometry& geometry() const override { return inner_->geometry(); }
    void read_rows(std::uint32_t s, TokenCount first, TokenCount n,
                   std::span<std::uint8_t> out) const override {
        inner_->read_rows(s, first, n, out);
    }
    bool restore(std::uint32_t s, std::span<const BlockView> b) override {
        return !refuse_restore && inner_->restore(s, b);
    }
    bool spoil = false;

  private:
    std::unique_ptr<Runtime> inner_;
    std::vector<float> spoiled_;
};

TEST(LlamaEngine, FailedStepsEndTheirRequestsAndSeveralInARowTheEngine) {
    LlamaOptions o = small_options();
    auto inner = Runtime::open(o, 3, o.context_tokens);
    ASSERT_TRUE(inner.ok());
    auto faulty = std::make_unique<FaultyRuntime>(std::move(*inner));
    FaultyRuntime& faults = *faulty;
    Harness h(std::make_unique<LlamaEngine>(o, std::move(faulty), Digest256{}));

    const auto prompt = words(140, 1);
    const Answer good = h.ask(request(1, prompt, 5));
    faults.failures = {DecodeStatus::kFailed};
    EXPECT_EQ(h.ask(request(2, words(9, 2), 5)).finished->error->code, Code::kInternal);
    // During decode, two at once; the next one is served, from scratch where the stream was spoilt.
    h.submit(request(3, prompt, 50));
    h.submit(request(4, words(5, 3), 50));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(h.step().ok());
    faults.failures = {DecodeStatus::kNoSlot};
    h.run();
    EXPECT_EQ(h.answers[3].finished->error->code, Code::kInternal);
    EXPECT_EQ(h.answers[4].finished->error->code, Code::kInternal);
    expect_same(good, h.ask(request(5, prompt, 5)), "after failures");

    faults.refuse_restore = true;  // llama.cpp refuses a state: recomputed
    h.submit(request(6, words(5, 1), 3));
    h.submit(request(7, words(5, 2), 3));
    h.submit(request(8, prompt, 5));
    h.run();
    expect_same(good, h.answers[8], "without a restore");

    faults.spoil = true;
    EXPECT_EQ(h.ask(request(9, words(5, 5), 3)).finished->error->code, Code::kInternal);
    faults.spoil = false;

    faults.failures = {DecodeStatus::kFailed, DecodeStatus::kFailed, DecodeStatus::kFailed};
    for (std::uint64_t id = 10; id < 13; ++id) {  // one by one: together they would share a call
        h.submit(request(id, words(5, id), 3));
        EXPECT_EQ(h.step().ok(), id < 12);
    }
}

}  // namespace
}  // namespace nereid::engine::llama
