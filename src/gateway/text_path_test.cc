// Requests on a text engine: status or frame, silence, disconnects.
#include <gmock/gmock.h>

#include "gateway/gateway_fixture.h"

namespace nereid::gateway {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

class TextPath : public GatewayTest {
  protected:
    std::unique_ptr<Client> ask(bool stream) {
        auto c = client();
        c->post("/v1/chat/completions",
                fmt::format(
                    R"({{"model":"t","stream":{},"messages":[{{"role":"user","content":"Hi"}}]}})",
                    stream));
        loop.settle();
        return c;
    }
    static std::vector<model::Event> text(std::string s) {
        std::vector<model::Event> out;
        out.emplace_back(model::TextDelta{.choice = 0, .text = std::move(s)});
        return out;
    }
    static std::vector<model::Event> end() {
        std::vector<model::Event> out;
        out.emplace_back(model::ChoiceEnd{.choice = 0});
        out.emplace_back(
            model::Done{{.prompt_tokens = 5, .cached_tokens = 4, .completion_tokens = 2}});
        return out;
    }
    static std::vector<model::Event> failed(Code code, std::string message) {
        std::vector<model::Event> out;
        out.emplace_back(model::Failed{{code, std::move(message)}});
        return out;
    }
    static std::vector<model::Event> started() {
        std::vector<model::Event> out;
        out.emplace_back(model::Start{});
        return out;
    }
    static std::vector<model::Event> wait() { return {}; }
    void release() {
        const auto waiting = backend.waiting;
        for (io::Signal* s : waiting) s->notify();
        loop.settle();
    }
};

// Agents go by the reason; only a call that was forced by name ends with "stop" (A97).
TEST_F(TextPath, CallsEndAsCallsWhateverTheServerSays_A11) {
    std::vector<model::Event> call;
    call.emplace_back(model::ToolCallDelta{.index = 0, .id = "c", .name = "f", .arguments = "{}"});
    backend.script = {started(), call, end()};
    start();
    for (const auto& [choice, reason] :
         {std::pair(R"("auto")", "tool_calls"), std::pair(R"("required")", "tool_calls"),
          std::pair(R"({"type":"function","function":{"name":"f"}})", "stop")}) {
        for (const bool stream : {false, true}) {
            auto c = client();
            c->post(
                "/v1/chat/completions",
                fmt::format(
                    R"({{"model":"t","stream":{},"tool_choice":{},"tools":[{{"type":"function","function":{{"name":"f"}}}}],"messages":[{{"role":"user","content":"Hi"}}]}})",
                    stream, choice));
            loop.settle();
            EXPECT_THAT(c->body(), HasSubstr(fmt::format(R"("finish_reason":"{}")", reason)));
        }
    }
}

// A61: Claude Code asks for 32,000 tokens whatever the model.
TEST_F(TextPath, MessagesTakesTheRoomThatTheServerNames_A61) {
    constexpr std::string_view kRefusal =
        "This model's maximum context length is 4096 tokens. However, you requested 32100 tokens "
        "(100 in the messages, 32000 in the completion).";
    backend.script = {started(), text("Hello"), end()};
    backend.first = {failed(Code::kContextLength, std::string(kRefusal))};
    start();
    const auto message = [&](int tokens) {
        auto c = client();
        c->post(
            "/v1/messages",
            fmt::format(
                R"({{"model":"t","max_tokens":{},"messages":[{{"role":"user","content":"Hi"}}]}})",
                tokens));
        loop.settle();
        return c;
    };
    auto c = message(32000);
    EXPECT_EQ(c->status(), 200) << c->raw;
    EXPECT_THAT(c->body(), HasSubstr("Hello"));
    EXPECT_EQ(backend.runs, 2);
    EXPECT_EQ(backend.last.max_output_tokens, 3996u);
    EXPECT_THAT(c->body(), HasSubstr(R"("stop_reason":"end_turn")"));
    backend.script = {started(),
                      text("Hello"),
                      {model::ChoiceEnd{.reason = model::FinishReason::kLength},
                       model::Done{.usage = {.prompt_tokens = 100, .completion_tokens = 3996}}}};
    backend.runs = 0;
    EXPECT_THAT(message(32000)->body(),
                HasSubstr(R"("stop_reason":"model_context_window_exceeded")"));
    backend.runs = 1;  // the server takes as much as is asked for
    EXPECT_THAT(message(10)->body(), HasSubstr(R"("stop_reason":"max_tokens")"));
    backend.runs = 2;
    // A refusal that is none of the answer's length, or that comes again, is the caller's.
    backend.script = {failed(Code::kContextLength, std::string(kRefusal))};
    auto again = message(32000);
    EXPECT_EQ(again->status(), 400);
    EXPECT_THAT(again->body(), HasSubstr("prompt is too long: 32100 tokens > 4096 maximum"));
    EXPECT_EQ(backend.runs, 4);
    EXPECT_EQ(message(10)->status(), 400);
    EXPECT_EQ(backend.runs, 5);
    EXPECT_EQ(ask(false)->status(), 400);  // Chat's clients are told
    EXPECT_EQ(backend.runs, 6);
}

TEST_F(TextPath, SaltGoesOnAndPriorityOnlyWhereItMay) {
    backend.script = {started(), text("x"), end()};
    start();
    const auto chat_with = [&] {
        auto c = client();
        c->post("/v1/chat/completions", R"({"model":"t","cache_salt":"s","priority":-4,)"
                                        R"("messages":[{"role":"user","content":"Hi"}]})");
        loop.settle();
        return c;
    };
    EXPECT_EQ(chat_with()->status(), 200);
    EXPECT_EQ(backend.last.cache_salt, "s");
    EXPECT_EQ(backend.last.priority, std::nullopt);
    options.pass_priority = true;
    ASSERT_TRUE(gateway->reload(options).ok());
    EXPECT_EQ(chat_with()->status(), 200);
    EXPECT_EQ(backend.last.priority, -4);
}

TEST_F(TextPath, StreamAndWhole) {
    backend.script = {started(), text("Hel"), text("lo"), end()};
    start();
    auto s = ask(true);
    EXPECT_THAT(s->body(), HasSubstr(R"("content":"Hel")"));
    EXPECT_THAT(s->body(), EndsWith("data: [DONE]\n\n"));
    EXPECT_TRUE(s->last_chunk_seen());
    auto w = ask(false);
    EXPECT_EQ(at(w->json(), "choices.0.message.content"), Json("Hello"));
    EXPECT_EQ(at(w->json(), "usage.prompt_tokens_details.cached_tokens"), Json(4));
    const auto line = access_lines().at(0);
    EXPECT_EQ(at(line, "worker"), Json("http://upstream"));
    EXPECT_EQ(at(line, "in_tokens"), Json(5));
}

TEST_F(TextPath, FailureBeforeTheFirstByteIsAStatusEvenForAStream_A31) {
    backend.script = {failed(Code::kUnavailable, "cannot be reached")};
    start();
    for (const bool stream : {true, false}) {
        auto c = ask(stream);
        EXPECT_EQ(c->status(), 503);
        EXPECT_EQ(c->header("x-should-retry"), "true");
        EXPECT_THAT(c->raw, Not(HasSubstr("event-stream")));
    }
}

TEST_F(TextPath, FailureAfterOutputIsAFrame) {
    backend.script = {text("Hel"), failed(Code::kWorkerLost, "cut")};
    start();
    auto c = ask(true);
    EXPECT_EQ(c->status(), 200);
    EXPECT_THAT(c->body(), HasSubstr(R"({"error":{"message":"cut")"));
    EXPECT_THAT(c->body(), Not(HasSubstr("[DONE]")));
    EXPECT_TRUE(c->last_chunk_seen());
    auto whole = ask(false);
    EXPECT_EQ(whole->status(), 500);
}

TEST_F(TextPath, SilenceOpensTheStreamAndKeepsItAlive_A57) {
    backend.script = {wait(), failed(Code::kUnavailable, "too late for a status")};
    start();
    auto c = ask(true);
    loop.advance(9s);
    EXPECT_EQ(c->raw, "");
    loop.advance(11s);
    EXPECT_EQ(c->status(), 200);
    EXPECT_EQ(c->body(), ": keep-alive\n\n: keep-alive\n\n");
    release();
    EXPECT_THAT(c->body(), HasSubstr("too late for a status"));
}

TEST_F(TextPath, DisconnectEndsTheUpstreamRequestOnce_A54) {
    backend.script = {wait(), text("a"), wait(), end()};
    start();
    for (const bool stream : {true, false}) {
        for (const int releases : {0, 1}) {
            const int before = backend.cut;
            auto c = ask(stream);
            for (int i = 0; i < releases; ++i) release();
            EXPECT_EQ(backend.running, 1);
            c->hang_up();
            loop.settle();
            EXPECT_EQ(backend.running, 0);
            EXPECT_EQ(backend.cut, before + 1);
            EXPECT_EQ(at(access_lines().back(), "end"), Json("client_gone"));
        }
    }
    EXPECT_EQ(metric(R"(nereid_gateway_disconnects_total)"), 4);
}

TEST_F(TextPath, PathsWithoutV1) {
    backend.script = {text("x"), end()};
    start();
    auto c = client();
    c->post("/chat/completions", R"({"model":"t","messages":[{"role":"user","content":"Hi"}]})");
    loop.settle();
    EXPECT_EQ(c->status(), 200);
}

}  // namespace
}  // namespace nereid::gateway
