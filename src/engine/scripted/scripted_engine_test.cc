#include "engine/scripted/scripted_engine.h"

#include <gtest/gtest.h>

#include <map>

namespace nereid::engine::scripted {
namespace {

using model::AddRequest;
using model::EndReason;

AddRequest ask(std::uint64_t id, std::string_view prompt, TokenCount max_tokens = 100) {
    AddRequest r;
    r.id = {id};
    for (const char c : prompt) r.prompt.push_back(static_cast<unsigned char>(c));
    r.max_tokens = max_tokens;
    return r;
}

Script script_of(std::string_view toml) {
    auto script = parse_script(toml, "test.toml");
    EXPECT_TRUE(script.ok()) << (script.ok() ? "" : script.error().message);
    return script.ok() ? *script : Script{};
}

struct Outcome {
    std::string text;
    std::optional<model::Finished> finished;
    std::vector<TimePoint> at;
};

// Steps through simulated time until nothing more can happen.
struct Driver {
    ScriptedEngine engine;
    TimePoint now{};
    std::map<std::uint64_t, Outcome> out = {};
    std::optional<Error> error = {};

    void run(TimePoint until = TimePoint::never()) {
        while (!error.has_value()) {
            if (!engine.has_work() && !engine.has_output()) {
                const TimePoint at = engine.wake_at();
                if (at == TimePoint::never() || at > until) return;
                now = std::max(now, at);
            }
            auto frame = engine.step(now);
            if (!frame.ok()) {
                error = frame.error();
                return;
            }
            for (const auto& t : frame->tokens) {
                if (t.token < 256) out[t.id.value].text.push_back(static_cast<char>(t.token));
                out[t.id.value].at.push_back(now);
            }
            for (const auto& f : frame->finished) out[f.id.value].finished = f;
        }
    }
};

TEST(ScriptedEngine, AnswersByTheFirstRuleThatMatches) {
    Driver d{ScriptedEngine(script_of(R"(
[[rule]]
contains = "weather"
text = "It rains."
[[rule]]
text = "ab"
repeat = 2
)"))};
    d.engine.submit(ask(1, "the weather?"), d.now);
    d.engine.submit(ask(2, "anything"), d.now);
    d.run();
    EXPECT_EQ(d.out[1].text, "It rains.");
    EXPECT_EQ(d.out[1].finished->reason, EndReason::kStop);
    EXPECT_EQ(d.out[1].finished->output_tokens, 10u);  // with the end token
    EXPECT_EQ(d.out[2].text, "abab");
}

TEST(ScriptedEngine, LastResortGoesOnUntilMaxTokens) {
    Driver d{ScriptedEngine({})};
    d.engine.submit(ask(1, "x", 70), d.now);
    d.run();
    EXPECT_EQ(d.out[1].text.size(), 70u);
    EXPECT_EQ(d.out[1].finished->reason, EndReason::kLength);
}

TEST(ScriptedEngine, TokensComeAtTheScriptsTimes) {
    Driver d{ScriptedEngine(script_of("[[rule]]\ntext = \"abc\"\nttft_ms = 20\nitl_ms = 5\n"))};
    d.now = TimePoint{1s};
    d.engine.submit(ask(1, "x"), d.now);
    d.run();
    const std::vector<TimePoint> expected{{1020ms}, {1025ms}, {1030ms}, {1035ms}};
    EXPECT_EQ(d.out[1].at, expected);
}

TEST(ScriptedEngine, RefusesFailsAndDiesWhereTheScriptSaysSo) {
    Driver d{ScriptedEngine(script_of(R"(
[[rule]]
contains = "refuse"
refuse = "overloaded"
[[rule]]
contains = "fail"
text = "abcdef"
fail_at = 3
[[rule]]
contains = "die"
text = "abcdef"
die_at = 2
)"))};
    d.engine.submit(ask(1, "refuse"), d.now);
    d.engine.submit(ask(2, "fail"), d.now);
    d.run();
    EXPECT_EQ(d.out[1].finished->error->code, Code::kOverloaded);
    EXPECT_EQ(d.out[2].text, "abc");
    EXPECT_EQ(d.out[2].finished->error->code, Code::kInternal);
    d.engine.submit(ask(3, "die"), d.now);
    d.run();
    EXPECT_EQ(d.out[3].text, "ab");
    ASSERT_TRUE(d.error.has_value());
    EXPECT_FALSE(d.engine.step(d.now).ok());  // it stays dead
}

TEST(ScriptedEngine, StallsUntilAborted) {
    Driver d{ScriptedEngine(script_of("[[rule]]\ntext = \"abcdef\"\nstall_at = 2\n"))};
    d.engine.submit(ask(1, "x"), d.now);
    d.run();
    EXPECT_EQ(d.out[1].text, "ab");
    EXPECT_FALSE(d.out[1].finished.has_value());
    EXPECT_FALSE(d.engine.has_work());
    d.engine.submit(model::AbortRequest{{1}}, d.now);
    d.run();
    EXPECT_EQ(d.out[1].finished->reason, EndReason::kAborted);
    d.engine.submit(model::AbortRequest{{1}}, d.now);  // idempotent
    EXPECT_FALSE(d.engine.has_output());
}

TEST(ScriptedEngine, QueueIsBoundedAndOrderedByPriority) {
    Driver d{ScriptedEngine(
        script_of("parallel = 1\nmax_queued = 2\n[[rule]]\ntext = \"a\"\nitl_ms = 1\n"))};
    auto first = ask(1, "x");
    d.engine.submit(first, d.now);
    ASSERT_TRUE(d.engine.step(d.now).ok());  // 1 runs
    auto late = ask(2, "x");
    late.priority = 5;
    d.engine.submit(late, d.now);
    d.engine.submit(ask(3, "x"), d.now);
    d.engine.submit(ask(4, "x"), d.now);
    auto frame = d.engine.step(d.now);
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->finished.size(), 1u);
    EXPECT_EQ(frame->finished[0].id.value, 4u);
    EXPECT_EQ(frame->finished[0].error->code, Code::kOverloaded);
    EXPECT_EQ(frame->load.running, 1u);
    EXPECT_EQ(frame->load.waiting, 2u);
    d.run();
    EXPECT_LE(d.out[3].at.back(), d.out[2].at.front());
}

TEST(ScriptedEngine, DrainAndUnsupportedCommands) {
    Driver d{ScriptedEngine({})};
    d.engine.submit(model::ExportBlocks{{7}, 0, 1, 0, 10}, d.now);
    auto embed = ask(1, "x");
    embed.mode = model::AddMode::kEmbed;
    d.engine.submit(embed, d.now);
    d.engine.submit(model::Drain{}, d.now);
    d.engine.submit(ask(2, "x"), d.now);
    auto frame = d.engine.step(d.now);
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->kv_failed.size(), 1u);
    ASSERT_EQ(frame->finished.size(), 2u);
    EXPECT_EQ(frame->finished[0].error->code, Code::kUnsupported);
    EXPECT_EQ(frame->finished[1].error->code, Code::kOverloaded);
}

TEST(ScriptedEngine, LogprobStubsHaveTheAskedShape) {
    Driver d{ScriptedEngine({})};
    auto r = ask(1, "x", 1);
    r.logprobs = true;
    r.top_logprobs = 3;
    d.engine.submit(r, d.now);
    auto frame = d.engine.step(d.now);
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->tokens.size(), 1u);
    EXPECT_EQ(frame->tokens[0].top.size(), 3u);
    EXPECT_EQ(frame->tokens[0].top[0].id, frame->tokens[0].token);
}

TEST(Script, FaultsNameTheLineAndTheKey) {
    for (const auto& [toml, part] : std::map<std::string, std::string>{
             {"modle = \"x\"", "test.toml:1: modle: unknown key"},
             {"\n[[rule]]\ntext = 3", "test.toml:3: text: must be a string"},
             {"[[rule]]\nttft_ms = -1", "ttft_ms: must be milliseconds"},
             {"[[rule]]\nrefuse = \"no_such\"", "refuse: is no error code"},
             {"[[rule]]\nrepeat = 0", "repeat: 0 needs a text"},
             {"parallel = 0", "parallel 1 or more"},
             {"a = [", "test.toml:1"}}) {
        const auto script = parse_script(toml, "test.toml");
        ASSERT_FALSE(script.ok()) << toml;
        EXPECT_EQ(script.code(), Code::kConfig);
        EXPECT_NE(script.error().message.find(part), std::string::npos) << script.error().message;
    }
}

}  // namespace
}  // namespace nereid::engine::scripted
