// For tests: opens the engine on the test model and runs requests to their end on a fake clock.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "engine/llama/llama_engine.h"

namespace nereid::engine::llama::testing {

// NEREID_MODEL (set by ctest), else the place where ./dev setup puts it. Missing is a failure, not
// a skip.
inline std::string test_model() {
    const char* given =
        std::getenv("NEREID_MODEL");  // tidy: allow env because ctest names the test model this way
    const char* home =
        std::getenv("HOME");  // tidy: allow env because this is the default of the line above
    std::string path = given != nullptr
                           ? given
                           : std::string(home != nullptr ? home : "") +
                                 "/.cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    CHECK_MSG(std::filesystem::exists(path),
              "the test model is missing at " + path + ". Mend: ./dev setup, or set NEREID_MODEL");
    return path;
}

// Small, and with one thread: with more, ggml's threads wait for one another actively, which is
// very slow while other processes use the cores. Where the number of threads matters a test sets
// it.
inline LlamaOptions small_options() {
    LlamaOptions o;
    o.model_path = test_model();
    o.model_id = "test";
    o.context_tokens = 512;
    o.parallel = 3;
    o.ubatch = 128;
    o.threads = 1;
    o.prefix_store_bytes = 64u << 20;
    o.max_queued = 8;
    o.seed = 1;
    return o;
}

inline std::unique_ptr<LlamaEngine> open_engine(const LlamaOptions& options) {
    auto engine = LlamaEngine::open(options);
    CHECK_MSG(engine.ok(), engine.ok() ? "" : engine.error().message);
    return std::move(*engine);
}

// Ids that are ordinary words of the test model, the same for the same salt.
inline std::vector<TokenId> words(std::size_t n, std::uint64_t salt) {
    Prng prng(salt + 1);
    std::vector<TokenId> out(n);
    for (auto& t : out) t = static_cast<TokenId>(1000 + prng.below(40000));
    return out;
}

inline model::Namespace name_space(std::string_view salt) {
    model::NamespaceParts parts;
    parts.salt = salt;
    return model::make_namespace(parts);
}

inline model::AddRequest request(std::uint64_t id, std::vector<TokenId> prompt,
                                 TokenCount max_tokens) {
    model::AddRequest r;
    r.id = {id};
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    r.logprobs = true;
    r.kv_namespace = name_space("tenant");
    return r;
}

struct Answer {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    std::optional<model::Finished> finished;
    std::optional<model::Started> started;
    std::vector<float> embedding;
    std::vector<float> prompt_logprobs;
};

struct Harness {
    explicit Harness(const LlamaOptions& options) : engine(open_engine(options)) {}
    explicit Harness(std::unique_ptr<LlamaEngine> e) : engine(std::move(e)) {}

    std::unique_ptr<LlamaEngine> engine;
    TimePoint now{1s};
    std::map<std::uint64_t, Answer> answers;
    std::vector<model::KvReady> ready;
    std::vector<model::KvFailed> failed;
    model::Load load;

    void submit(model::Command command) { engine->submit(std::move(command), now); }
    Result<void> step() {
        now = now + 1ms;
        TRY(model::StepFrame frame, engine->step(now));
        for (const auto& s : frame.started) answers[s.id.value].started = s;
        for (const auto& t : frame.tokens) {
            EXPECT_FALSE(answers[t.id.value].finished.has_value()) << "a token after the end";
            answers[t.id.value].tokens.push_back(t.token);
            answers[t.id.value].logprobs.push_back(t.logprob);
        }
        for (auto& e : frame.embeddings) answers[e.id.value].embedding = std::move(e.values);
        for (auto& p : frame.prompt_logprobs)
            answers[p.id.value].prompt_logprobs = std::move(p.logprobs);
        for (const auto& f : frame.finished) {
            EXPECT_FALSE(answers[f.id.value].finished.has_value()) << "two ends";
            answers[f.id.value].finished = f;
        }
        ready.insert(ready.end(), frame.kv_ready.begin(), frame.kv_ready.end());
        failed.insert(failed.end(), frame.kv_failed.begin(), frame.kv_failed.end());
        load = frame.load;
        return {};
    }
    // Until nothing is left to do. Bounded, so that a scheduler that turns in place fails the test.
    void run() {
        for (int i = 0; engine->has_work() || engine->has_output() || engine->compiling();) {
            if (engine->compiling())
                std::this_thread::yield();  // its worker runs in real time
            else
                ++i;
            ASSERT_LT(i, 20'000);
            const auto stepped = step();
            ASSERT_TRUE(stepped.ok()) << stepped.error().message;
        }
    }
    Answer ask(model::AddRequest r) {
        const std::uint64_t id = r.id.value;
        answers.erase(id);
        submit(std::move(r));
        run();
        return answers[id];
    }
};

// The same tokens with the same logprobs, bit for bit.
inline void expect_same(const Answer& a, const Answer& b, std::string_view what) {
    EXPECT_EQ(a.tokens, b.tokens) << what;
    EXPECT_EQ(a.logprobs, b.logprobs) << what;
}

}  // namespace nereid::engine::llama::testing
