#include "dialect/messages/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "dialect/chat/random_chat.h"
#include "dialect/chat/transcript.h"
#include "dialect/overflow.h"

namespace nereid::dialect::messages {
namespace {

using testing::HasSubstr;

Aead aead() {
    Digest256 secret;
    secret.fill(7);
    return Aead(secret);
}

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path << ": run from the root of the repository";
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class MessagesTest : public testing::Test {
  protected:
    Result<Create> parse(std::string_view body) {
        const auto json = Json::parse(body);
        EXPECT_TRUE(json.ok()) << json.error().message << "\n" << body;
        return json.ok() ? parse_create(*json, seal_) : Result<Create>(json.error());
    }
    std::string stream_of(const std::vector<model::Event>& events, ResponseMeta meta) {
        const auto encoder = make_encoder(std::move(meta), seal_);
        std::string out;
        for (const auto& event : events) encoder->on(event, out);
        return out;
    }
    Result<std::string> body_of(const std::vector<model::Event>& events, ResponseMeta meta) {
        const auto whole = make_whole(std::move(meta), seal_);
        for (const auto& event : events) whole->on(event);
        return whole->body();
    }
    Aead aead_ = aead();
    Seal seal_{aead_, "tenant"};
};

// What a client puts together from the frames: the message, or the error object.
Json assembled(const std::string& stream) {
    Json message;
    Json::Array content;
    std::vector<std::string> inputs;
    std::size_t open = 0;
    for (std::size_t at = 0; at < stream.size();) {
        const auto end = stream.find("\n\n", at);
        EXPECT_NE(end, std::string::npos);
        const std::string frame = stream.substr(at, end - at);
        at = end + 2;
        const auto data = frame.find("\ndata: ");
        const auto json = Json::parse(frame.substr(data + 7));
        EXPECT_TRUE(json.ok()) << frame;
        const std::string type = json->find("type")->as_string();
        EXPECT_EQ(frame.substr(0, data), "event: " + type);
        if (type == "error") return *json;
        if (type == "message_start") message = *json->find("message");
        if (type == "content_block_start") {
            EXPECT_EQ(open, 0u) << "one block at a time";
            ++open;
            EXPECT_EQ(json->find("index")->as_int(), static_cast<std::int64_t>(content.size()));
            content.push_back(*json->find("content_block"));
            inputs.emplace_back();
        }
        if (type == "content_block_delta") {
            const Json& delta = *json->find("delta");
            const std::string kind = delta.find("type")->as_string();
            const auto append = [&](const char* name) {
                content.back().set(
                    name, content.back().find(name)->as_string() + delta.find(name)->as_string());
            };
            if (kind == "text_delta") append("text");
            if (kind == "thinking_delta") append("thinking");
            if (kind == "signature_delta") append("signature");
            if (kind == "input_json_delta")
                inputs.back() += delta.find("partial_json")->as_string();
        }
        if (type == "content_block_stop") {
            --open;
            if (*content.back().find("type") == Json("tool_use")) {
                EXPECT_FALSE(inputs.back().empty()) << "A9";
                const auto input = Json::parse(inputs.back());
                content.back().set("input", input.ok() && input->is_object()
                                                ? *input
                                                : Json(Json::Object{{"input", inputs.back()}}));
            }
        }
        if (type == "message_delta") {
            for (const auto& [name, value] : json->find("delta")->as_object())
                message.set(name, value);
            message.set("usage", *json->find("usage"));
        }
    }
    message.set("content", Json(std::move(content)));
    return message;
}

TEST_F(MessagesTest, Golden) {
    const auto files = chat::files_in("tests/golden/messages", ".events");
    ASSERT_GE(files.size(), 4u);
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        const auto sections = chat::read_sections(file);
        const chat::Script script = chat::read_script(sections[0].text);
        const ResponseMeta meta{.id = script.meta.id, .model = script.meta.model};
        for (const auto& section : sections) {
            std::string text = section.text;
            while (text.ends_with('\n')) text.pop_back();
            if (section.name == "stream") EXPECT_EQ(stream_of(script.events, meta), text + "\n\n");
            const auto body = body_of(script.events, meta);
            if (section.name == "body") EXPECT_EQ(body.ok() ? *body : body.error().message, text);
        }
    }
}

TEST_F(MessagesTest, PrefillIsRefusedNotMisread) {
    constexpr std::string_view kBody =
        R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},)"
        R"({"role":"assistant","content":"{"}]})";
    const auto create = parse(kBody);
    ASSERT_FALSE(create.ok());
    EXPECT_EQ(create.code(), Code::kUnsupported);
    EXPECT_THAT(create.error().message, HasSubstr("must end with a user message"));
    EXPECT_TRUE(parse_count(*Json::parse(kBody), seal_).ok());
}

TEST_F(MessagesTest, AToolThatFailedIsSaid) {
    const auto result = [&](std::string_view members) {
        auto create = parse(
            fmt::format(R"({{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":[{{)"
                        R"("type":"tool_result","tool_use_id":"c",{}}}]}}]}})",
                        members));
        EXPECT_TRUE(create.ok()) << create.error().message;
        std::string text;
        for (const model::Part& part : create->request.messages.at(0).parts)
            text += std::get<model::TextPart>(part).text;
        return text;
    };
    EXPECT_EQ(result(R"("content":"no such file","is_error":true)"),
              "[The tool failed.]\nno such file");
    EXPECT_EQ(result(R"("content":"ok","is_error":false)"), "ok");
    EXPECT_EQ(result(R"("is_error":true)"), "[The tool failed.]\n");
    EXPECT_FALSE(parse(R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":[)"
                       R"({"type":"tool_result","tool_use_id":"c","is_error":"yes"}]}]})")
                     .ok());
}

TEST_F(MessagesTest, ARefusalBesideACallIsACall) {
    const std::vector<model::Event> events{
        model::Start{}, model::TextDelta{.text = "No", .refusal = true},
        model::ToolCallDelta{.id = "c", .name = "f", .arguments = "{}"}, model::ChoiceEnd{},
        model::Done{}};
    EXPECT_THAT(*body_of(events, {.id = "m", .model = "m"}),
                HasSubstr(R"("stop_reason":"tool_use")"));
    EXPECT_THAT(stream_of(events, {.id = "m", .model = "m"}),
                HasSubstr(R"("stop_reason":"tool_use")"));
}

// Streaming and not give the same message, whatever an engine does: A7, A9, A11, A14, A35.
TEST_F(MessagesTest, StreamIsTheWholeAnswer) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(seed);
        chat::RandomChat random(seed);
        const auto events = random.answer(false, true);
        for (const bool omit : {false, true}) {
            const ResponseMeta meta{.id = "msg_1", .model = "m", .omit_thinking = omit};
            const Json streamed = assembled(stream_of(events, meta));
            const auto whole = body_of(events, meta);
            if (*streamed.find("type") == Json("error")) {
                EXPECT_FALSE(whole.ok());
                continue;
            }
            ASSERT_TRUE(whole.ok()) << whole.error().message;
            EXPECT_EQ(streamed.dump(), Json::parse(*whole)->dump());
        }
    }
}

// Calls whose fragments an engine interleaves come out whole and in order (A6, A10, A18).
TEST_F(MessagesTest, InterleavedCallsAreWhole_A6_A10) {
    const auto call = [](std::uint32_t index, std::string name, std::string arguments) {
        return model::ToolCallDelta{.choice = 0,
                                    .index = index,
                                    .name = std::move(name),
                                    .arguments = std::move(arguments)};
    };
    const std::vector<model::Event> events{
        model::Start{},     call(0, "f", ""),          call(1, "g", R"({"a")"), call(2, "h", ""),
        call(1, "", ":1}"), call(2, "", R"({"b":2})"), model::ChoiceEnd{},      model::Done{}};
    const Json message = assembled(stream_of(events, {.id = "msg_1", .model = "m"}));
    const auto& content = message.find("content")->as_array();
    ASSERT_EQ(content.size(), 3u);
    EXPECT_EQ(content[0].find("input")->dump(), "{}");
    EXPECT_EQ(content[1].find("input")->dump(), R"({"a":1})");
    EXPECT_EQ(content[2].find("input")->dump(), R"({"b":2})");
    EXPECT_EQ(*message.find("stop_reason"),
              Json("tool_use"));  // though the engine said "stop": A11
}

// However a server interleaves what it says: each call whole, in the order in which they began, and
// what is said between the pieces of one comes after it.
TEST_F(MessagesTest, NothingIsLostBetweenThePiecesOfACall_A6_A10) {
    const auto call = [](std::uint32_t index, std::string name, std::string arguments) {
        return model::ToolCallDelta{.choice = 0,
                                    .index = index,
                                    .name = std::move(name),
                                    .arguments = std::move(arguments)};
    };
    const auto said = [&](std::vector<model::Event> pieces) {
        std::vector<model::Event> events{model::Start{}};
        for (auto& piece : pieces) events.push_back(std::move(piece));
        events.push_back(model::ChoiceEnd{});
        events.push_back(model::Done{});
        const Json message = assembled(stream_of(events, {.id = "msg_1", .model = "m"}));
        std::string out;
        for (const Json& block : message.find("content")->as_array()) {
            if (!out.empty()) out += " ";
            if (*block.find("type") == Json("tool_use"))
                out += block.find("name")->as_string() + block.find("input")->dump();
            else
                out += (*block.find("type") == Json("text") ? block.find("text")
                                                            : block.find("thinking"))
                           ->as_string();
        }
        return out;
    };
    const std::string both = R"(f{"a":1} g{"b":2})";
    EXPECT_EQ(said({call(0, "f", ""), call(1, "g", ""), call(0, "", R"({"a":1})"),
                    call(1, "", R"({"b":2})")}),
              both);
    EXPECT_EQ(said({call(0, "f", R"({"a":)"), call(1, "g", R"({"b":)"), call(0, "", "1}"),
                    call(1, "", "2}")}),
              both);
    EXPECT_EQ(said({call(0, "f", ""), call(1, "g", R"({"b":)"), call(1, "", "2}"),
                    call(0, "", R"({"a":1})")}),
              both);
    EXPECT_EQ(
        said({call(0, "f", R"({"a":)"), model::TextDelta{.text = "\n"},
              model::ReasoningDelta{.text = "hm"}, call(0, "", "1}"), call(1, "g", R"({"b":2})")}),
        "f{\"a\":1} \n hm g{\"b\":2}");
    EXPECT_EQ(said({call(0, "f", R"({"a":"}]\"{)"), call(1, "g", "{}"), call(0, "", R"("})")}),
              R"(f{"a":"}]\"{"} g{})");
    // Nested as deep as it goes, in time that grows with its length.
    std::vector<model::Event> nested;
    constexpr std::uint32_t kCalls = 500;
    for (std::uint32_t i = 0; i < kCalls; ++i) nested.push_back(call(i, "f", "{"));
    for (std::uint32_t i = kCalls; i-- > 0;) nested.push_back(call(i, "", "}"));
    std::string expected = "f{}";
    for (std::uint32_t i = 1; i < kCalls; ++i) expected += " f{}";
    EXPECT_EQ(said(std::move(nested)), expected);
}

TEST_F(MessagesTest, RealClientsRequests) {
    for (const char* name : {"client_claude_tool_loop", "client_claude_continue",
                             "client_claude_new", "client_claude_image"}) {
        SCOPED_TRACE(name);
        const auto create = parse(read(std::string("tests/golden/messages/") + name + ".json"));
        ASSERT_TRUE(create.ok()) << create.error().message;
        const model::Request& r = create->request;
        EXPECT_TRUE(r.stream);
        EXPECT_EQ(r.max_output_tokens, 32000u);
        EXPECT_FALSE(r.tools.empty());
        EXPECT_EQ(r.messages[0].role, model::Role::kSystem);
        const auto* first = std::get_if<model::TextPart>(&r.messages[0].parts[0]);
        ASSERT_NE(first, nullptr);
        EXPECT_FALSE(first->text.starts_with("x-anthropic-billing-header"));  // A75
        EXPECT_EQ(r.messages[1].role, model::Role::kUser);
    }
}

TEST_F(MessagesTest, SystemMessagesKeepTheirPlace_A73_A74) {
    const auto create = parse(
        R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"system","content":[{"type":"text","text":"b"}]},{"role":"user","content":"c"}]})");
    ASSERT_TRUE(create.ok());
    ASSERT_EQ(create->request.messages.size(), 3u);
    EXPECT_EQ(create->request.messages[1].role, model::Role::kSystem);
}

TEST_F(MessagesTest, ThinkingComesBack_A90_A91) {
    const auto with = [&](const std::string& thinking, const std::string& signature) {
        Json block(Json::Object{{"type", "thinking"}, {"thinking", thinking}});
        block.set("signature", signature);
        const auto create = parse(
            R"({"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[)" +
            block.dump() + R"(,{"type":"text","text":"t"}]},{"role":"user","content":"u"}]})");
        EXPECT_TRUE(create.ok());
        return create->request.messages[0].reasoning;
    };
    EXPECT_EQ(with("shown", seal_.sign("shown")), "shown");
    EXPECT_EQ(with("", seal_.hide("hidden")), "hidden");
    EXPECT_EQ(with("changed", seal_.sign("shown")), "");
    EXPECT_EQ(with("theirs", "EqQBCg=="), "");
    EXPECT_EQ(with("x", Seal(aead_, "another tenant").sign("x")), "");
    const auto redacted = parse(
        R"({"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":")" +
        seal_.hide("deep") + R"("}]},{"role":"user","content":"u"}]})");
    ASSERT_TRUE(redacted.ok());
    EXPECT_EQ(redacted->request.messages[0].reasoning, "deep");
}

TEST_F(MessagesTest, ToolResultsComeFirstAndCarryImages) {
    const auto create = parse(
        R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}},{"type":"tool_reference","tool_name":"x"}]},{"type":"tool_result","tool_use_id":"t2"}]}]})");
    ASSERT_TRUE(create.ok()) << create.error().message;
    const auto& m = create->request.messages;
    ASSERT_EQ(m.size(), 3u);
    EXPECT_EQ(m[0].tool_call_id, "t1");
    ASSERT_EQ(m[0].parts.size(), 3u);
    EXPECT_EQ(std::get<model::ImagePart>(m[0].parts[1]).media_type, "image/png");
    EXPECT_EQ(m[1].tool_call_id, "t2");
    EXPECT_EQ(m[2].role, model::Role::kUser);
}

TEST_F(MessagesTest, BrokenInputIsKept_A101) {
    const auto create = parse(
        R"({"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":"{\"cmd\": "}]},{"role":"user","content":"x"}]})");
    ASSERT_TRUE(create.ok());
    EXPECT_EQ(create->request.messages[0].tool_calls[0].arguments, R"({"cmd": )");
}

TEST_F(MessagesTest, EffortAndThinking) {
    const auto effort = [&](std::string_view fields) {
        const auto create = parse(fmt::format(
            R"({{"model":"m","max_tokens":5,"messages":[{{"role":"user","content":"a"}}]{}}})",
            fields));
        EXPECT_TRUE(create.ok());
        return create->request.reasoning_effort;
    };
    EXPECT_EQ(effort(""), "");
    EXPECT_EQ(effort(R"(,"thinking":{"type":"disabled"})"), "none");
    EXPECT_EQ(effort(R"(,"thinking":{"type":"enabled","budget_tokens":1024})"), "low");
    EXPECT_EQ(effort(R"(,"thinking":{"type":"enabled","budget_tokens":32000})"), "high");
    EXPECT_EQ(effort(R"(,"thinking":{"type":"adaptive"},"output_config":{"effort":"max"})"), "max");
    EXPECT_EQ(effort(R"(,"thinking":{"type":"disabled"},"output_config":{"effort":"high"})"),
              "none");
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsWords) {
    const std::pair<Code, std::pair<int, const char*>> cases[] = {
        {Code::kInvalidArgument, {400, "invalid_request_error"}},
        {Code::kContextLength, {400, "invalid_request_error"}},
        {Code::kUnauthenticated, {401, "authentication_error"}},
        {Code::kNotFound, {404, "not_found_error"}},
        {Code::kTooLarge, {413, "request_too_large"}},
        {Code::kRateLimited, {429, "rate_limit_error"}},
        {Code::kOverloaded, {529, "overloaded_error"}},
        {Code::kUnavailable, {529, "overloaded_error"}},
        {Code::kInternal, {500, "api_error"}},
    };
    for (const auto& [code, expected] : cases) {
        const Error error{code, "m"};
        EXPECT_EQ(error_status(error), expected.first);
        EXPECT_THAT(error_body(error, "req_1"), HasSubstr(expected.second));
        EXPECT_THAT(error_body(error, "req_1"), HasSubstr(R"("request_id":"req_1")"));
    }
}

// An OpenAI-compatible server's words for an overflow become those that Claude Code knows.
TEST(MessagesErrors, A61_OverflowsAreSaidInAnthropicsWords) {
    const auto said = [](std::string message) {
        return Json::parse(error_body({Code::kContextLength, std::move(message)}, {}))
            ->find("error")
            ->find("message")
            ->as_string();
    };
    EXPECT_EQ(said("prompt is too long: 7 tokens > 5 maximum"),
              "prompt is too long: 7 tokens > 5 maximum");
    EXPECT_EQ(said("This model's maximum context length is 4096 tokens. However, your messages "
                   "resulted in 5000 tokens. Please reduce the length of the messages."),
              "prompt is too long: 5000 tokens > 4096 maximum");
    EXPECT_EQ(said("This model's maximum context length is 4096 tokens. However, you requested "
                   "32100 tokens (100 in the messages, 32000 in the completion)."),
              "prompt is too long: 32100 tokens > 4096 maximum");
    EXPECT_EQ(said("This model's maximum context length is 100 tokens. However, your request has "
                   "160 input tokens."),
              "prompt is too long: 160 tokens > 100 maximum");
    EXPECT_EQ(said("context window exceeded"), "prompt is too long: context window exceeded");
}

TEST(Overflow, WordsOfServers) {
    const auto read = [](std::string_view message) {
        const Overflow o = read_overflow(message);
        return fmt::format("{} {} {}", o.context, o.prompt, o.asked);
    };
    EXPECT_EQ(read("This model's maximum context length is 4096 tokens. However, you requested "
                   "32100 tokens (100 in the messages, 32000 in the completion)."),
              "4096 100 32100");  // OpenAI, vLLM until 0.10, Nereid
    EXPECT_EQ(read("'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's "
                   "maximum context length is 4096 tokens and your request has 100 input tokens "
                   "(32000 > 4096 - 100)."),
              "4096 100 0");  // vLLM
    EXPECT_EQ(read("Requested token count exceeds the model's maximum context length of 4096 "
                   "tokens. You requested a total of 32100 tokens: 100 tokens from the input "
                   "messages and 32000 tokens for the completion."),
              "4096 100 32100");  // SGLang
    EXPECT_EQ(read("tokens in the messages"), "0 0 0");
}

TEST(MessagesDocumentation, ListsEveryFieldWithItsPolicy) {
    const std::string text = read("docs/formats/dialect-messages.md");
    for (const FieldPolicy& field : create_fields()) {
        const char* word = field.policy == Policy::kImplement ? "implement"
                           : field.policy == Policy::kExtra   ? "extra"
                           : field.policy == Policy::kAccept  ? "accept"
                                                              : "refuse";
        EXPECT_THAT(text, HasSubstr(fmt::format("| `{}` | {} |", field.name, word)));
    }
}

}  // namespace
}  // namespace nereid::dialect::messages
