#include "dialect/responses/responses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "dialect/chat/random_chat.h"
#include "dialect/chat/transcript.h"
#include "dialect/responses/tools.h"

namespace nereid::dialect::responses {
namespace {

using testing::HasSubstr;

Aead aead() {
    Digest256 secret;
    secret.fill(9);
    return Aead(secret);
}

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path << ": run from the root of the repository";
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ResponsesTest : public testing::Test {
  protected:
    Result<Create> parse(std::string_view body) {
        const auto json = Json::parse(body);
        EXPECT_TRUE(json.ok()) << json.error().message << "\n" << body;
        return json.ok() ? parse_create(*json, "x1") : Result<Create>(json.error());
    }
    // The messages that a request comes to.
    std::vector<model::Message> messages(std::string_view items) {
        auto create = parse(fmt::format(R"({{"model":"m","input":{}}})", items));
        EXPECT_TRUE(create.ok()) << create.error().message;
        const auto added = add_messages(*create, {}, seal_);
        EXPECT_TRUE(added.ok()) << added.error().message;
        return create->request.messages;
    }
    std::string stream_of(const std::vector<model::Event>& events, const Create& create) {
        const auto answer =
            make_answer({.id = "resp_1", .model = "m", .created = 5}, create, seal_);
        std::string out;
        for (const auto& event : events) static_cast<Encoder&>(*answer).on(event, out);
        return out;
    }
    Result<std::string> body_of(const std::vector<model::Event>& events, const Create& create) {
        const auto answer =
            make_answer({.id = "resp_1", .model = "m", .created = 5}, create, seal_);
        for (const auto& event : events) static_cast<Whole&>(*answer).on(event);
        return answer->body();
    }
    Aead aead_ = aead();
    Seal seal_{aead_, "tenant"};
};

// Checks what holds for each stream and gives the final response object.
Json final_of(const std::string& stream) {
    std::vector<Json> events;
    for (std::size_t at = 0; at < stream.size();) {
        const auto end = stream.find("\n\n", at);
        const std::string frame = stream.substr(at, end - at);
        at = end + 2;
        const auto data = frame.find("\ndata: ");
        auto json = Json::parse(frame.substr(data + 7));
        EXPECT_TRUE(json.ok()) << frame;
        EXPECT_EQ(frame.substr(0, data), "event: " + json->find("type")->as_string());
        EXPECT_EQ(json->find("sequence_number")->as_int(),
                  static_cast<std::int64_t>(events.size()));
        events.push_back(*std::move(json));
    }
    EXPECT_FALSE(events.empty());
    Json::Array items;
    std::string text;
    std::size_t open = 0;
    for (const Json& event : events) {
        const std::string type = event.find("type")->as_string();
        if (type == "response.output_item.added") {
            EXPECT_EQ(open++, 0u);
            text.clear();
        } else if (type.ends_with(".delta")) {
            text += event.find("delta")->as_string();
        } else if (type == "response.output_text.done" || type == "response.reasoning_text.done" ||
                   type == "response.reasoning_summary_text.done") {
            EXPECT_EQ(event.find("text")->as_string(), text);
        } else if (type == "response.refusal.done") {
            EXPECT_EQ(event.find("refusal")->as_string(), text);
        } else if (type == "response.function_call_arguments.done") {
            EXPECT_EQ(event.find("arguments")->as_string(), text);
        } else if (type == "response.custom_tool_call_input.done") {
            EXPECT_EQ(event.find("input")->as_string(), text);
        } else if (type == "response.output_item.done") {
            EXPECT_EQ(--open, 0u);
            items.push_back(*event.find("item"));
        }
    }
    const Json response = *events.back().find("response");
    EXPECT_EQ(response.find("output")->dump(), Json(items).dump());
    return response;
}

TEST_F(ResponsesTest, StreamIsTheWholeAnswer) {
    auto create = parse(
        R"({"model":"m","input":"x","include":["reasoning.encrypted_content"],"tools":[{"type":"function","name":"f"}]})");
    ASSERT_TRUE(create.ok());
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(seed);
        create->summary = seed % 3 == 0;
        chat::RandomChat random(seed);
        const auto events = random.answer(seed % 2 == 0, true);
        const Json streamed = final_of(stream_of(events, *create));
        const auto whole = body_of(events, *create);
        if (*streamed.find("status") == Json("failed")) {
            EXPECT_FALSE(whole.ok());
            EXPECT_FALSE(streamed.find("error")->find("code")->as_string().empty());  // A29
            continue;
        }
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        EXPECT_EQ(streamed.dump(), Json::parse(*whole)->dump());
    }
}

TEST_F(ResponsesTest, LogprobsWithoutTextOpenNothing) {
    const auto create = parse(R"({"model":"m","input":"x"})");
    ASSERT_TRUE(create.ok());
    const auto delta = [](std::string text, bool refusal) {
        return model::TextDelta{.text = std::move(text),
                                .logprobs = {{.id = 1, .logprob = -1, .bytes = "t", .top = {}}},
                                .tokens = 1,
                                .refusal = refusal};
    };
    const Json response =
        final_of(stream_of({model::Start{}, delta("", false), delta("hi", false), delta("", true),
                            delta("", false), model::ChoiceEnd{}, model::Done{}},
                           *create));
    const auto& output = response.find("output")->as_array();
    ASSERT_EQ(output.size(), 1u) << response.dump();
    const Json& part = output[0].find("content")->as_array()[0];
    EXPECT_EQ(*part.find("text"), Json("hi"));
    EXPECT_EQ(part.find("logprobs")->size(), 3u);
}

TEST_F(ResponsesTest, Golden) {
    const auto files = chat::files_in("tests/golden/responses", ".events");
    ASSERT_GE(files.size(), 3u);
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        const auto sections = chat::read_sections(file);
        const chat::Script script = chat::read_script(sections[0].text);
        ASSERT_EQ(sections[1].name, "create");
        const auto create = parse(sections[1].text);
        ASSERT_TRUE(create.ok());
        std::string expected = sections[2].text;
        while (expected.ends_with('\n')) expected.pop_back();
        EXPECT_EQ(stream_of(script.events, *create), expected + "\n\n");
    }
}

// Any chunking of a custom tool's arguments gives the same input.
TEST_F(ResponsesTest, CustomInputAtEverySplit) {
    const std::pair<std::string, std::string> cases[] = {
        {R"({"input": "plain"})", "plain"},
        {R"( { "input" : "a\"b\\c\n\té\ud83d\ude00" } )", "a\"b\\c\n\t\xc3\xa9\xf0\x9f\x98\x80"},
        {R"({"input":"\ud83dx"})", "\xef\xbf\xbdx"},
        {R"({"input":""})", ""},
        {R"({"other":1,"input":"late"})", "late"},
        {R"({"cmd":"x"})", R"({"cmd":"x"})"},
        {"no json", "no json"},
        {R"({"input":"cut)", "cut"},
        {"", ""},
    };
    for (const auto& [arguments, expected] : cases) {
        for (std::size_t i = 0; i <= arguments.size(); ++i) {
            for (std::size_t j = i; j <= arguments.size(); ++j) {
                InputExtractor extractor;
                std::string out;
                extractor.feed(arguments.substr(0, i), out);
                extractor.feed(arguments.substr(i, j - i), out);
                extractor.feed(arguments.substr(j), out);
                extractor.finish(out);
                ASSERT_EQ(out, expected) << arguments << " at " << i << ", " << j;
            }
        }
    }
}

TEST_F(ResponsesTest, RealClientsRequests) {
    for (const char* name : {"client_codex_tool_loop", "client_codex_apply_patch",
                             "client_codex_namespace", "client_codex_broken_arguments",
                             "client_codex_image", "client_codex_retry", "client_codex_parallel"}) {
        SCOPED_TRACE(name);
        auto create = parse(read(std::string("tests/golden/responses/") + name + ".json"));
        ASSERT_TRUE(create.ok()) << create.error().message;
        EXPECT_FALSE(create->store);
        EXPECT_TRUE(create->include_encrypted);
        ASSERT_TRUE(add_messages(*create, {}, seal_).ok());
        EXPECT_EQ(create->request.messages[0].role, model::Role::kDeveloper);
        EXPECT_EQ(create->request.messages[1].role, model::Role::kDeveloper);
        EXPECT_FALSE(create->request.affinity_key.empty());
    }
}

TEST_F(ResponsesTest, NamespaceAndCustomTools_A77_A78_A79_A102) {
    auto create = parse(
        R"({"model":"m","input":"x","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f","parameters":{"type":"object"}},{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"start: /x+/"}}]},{"type":"web_search"}]})");
    ASSERT_TRUE(create.ok()) << create.error().message;
    ASSERT_EQ(create->request.tools.size(), 2u);
    EXPECT_EQ(create->request.tools[0].name, "ns__f");
    EXPECT_EQ(create->request.tools[1].name, "ns__c");
    EXPECT_THAT(create->request.tools[1].description, HasSubstr("start: /x+/"));
    EXPECT_THAT(create->request.tools[1].parameters.dump(), HasSubstr("\"input\""));
    EXPECT_THAT(create->request.ignored_fields, testing::Contains("tools[].web_search"));
    const std::vector<model::Event> events{
        model::Start{},
        model::ToolCallDelta{
            .choice = 0, .index = 0, .id = "k", .name = "ns__c", .arguments = R"({"input":"xx"})"},
        model::ToolCallDelta{
            .choice = 0, .index = 1, .id = "l", .name = "ns__f", .arguments = "{}"},
        model::ChoiceEnd{.reason = model::FinishReason::kToolCalls}, model::Done{}};
    const Json response = final_of(stream_of(events, *create));
    const auto& output = response.find("output")->as_array();
    EXPECT_EQ(
        output[0].dump(),
        R"({"id":"ctc_1_0","type":"custom_tool_call","status":"completed","call_id":"k","name":"c","namespace":"ns","input":"xx"})");
    EXPECT_EQ(
        output[1].dump(),
        R"({"id":"fc_1_1","type":"function_call","status":"completed","call_id":"l","name":"f","namespace":"ns","arguments":"{}"})");
}

// What a model writes over several lines stays in one frame (found by responses_fuzz).
TEST_F(ResponsesTest, SearchArgumentsOverSeveralLinesStayInOneFrame) {
    auto create = parse(
        R"({"model":"m","input":"x","tools":[{"type":"tool_search","execution":"client","parameters":{}}]})");
    ASSERT_TRUE(create.ok()) << create.error().message;
    const std::vector<model::Event> events{
        model::Start{},
        model::ToolCallDelta{.choice = 0,
                             .index = 0,
                             .id = "k",
                             .name = "tool_search",
                             .arguments = "{\n\n\"q\":\r\n \"a\\nb\"}"},
        model::ChoiceEnd{.reason = model::FinishReason::kToolCalls}, model::Done{}};
    const Json response = final_of(stream_of(events, *create));
    EXPECT_EQ(
        response.find("output")->dump(),
        R"([{"id":"tsc_1_0","type":"tool_search_call","status":"completed","call_id":"k","execution":"client","arguments":{"q":"a\nb"}}])");
}

TEST_F(ResponsesTest, ItemsBecomeMessages) {
    const auto m = messages(
        R"([{"role":"user","content":"q"},
            {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
            {"type":"function_call","call_id":"1","name":"f","namespace":"ns","arguments":"{\"cmd\": "},
            {"type":"custom_tool_call","call_id":"2","name":"c","input":"raw"},
            {"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"o"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="}]},
            {"type":"custom_tool_call_output","call_id":"2","output":"done"},
            {"type":"some_item_of_2027"},
            {"role":"developer","content":"rule"}])");
    ASSERT_EQ(m.size(), 5u);
    EXPECT_EQ(m[1].reasoning, "hm");
    ASSERT_EQ(m[1].tool_calls.size(), 2u);
    EXPECT_EQ(m[1].tool_calls[0].name, "ns__f");
    EXPECT_EQ(m[1].tool_calls[0].arguments, R"({"cmd": )");  // A101
    EXPECT_EQ(m[1].tool_calls[1].arguments, R"({"input":"raw"})");
    EXPECT_EQ(m[2].role, model::Role::kTool);
    EXPECT_EQ(m[2].parts.size(), 2u);  // A82
    EXPECT_EQ(m[4].role, model::Role::kDeveloper);
}

TEST_F(ResponsesTest, SealedReasoningWinsAndForeignIsLeftOut) {
    const auto reasoning = [&](const std::string& blob) {
        return messages(
                   R"([{"role":"user","content":"q"},{"type":"reasoning","summary":[],"encrypted_content":")" +
                   blob + R"("},{"role":"assistant","content":"a"}])")[1]
            .reasoning;
    };
    EXPECT_EQ(reasoning(seal_.hide("secret thought")), "secret thought");
    EXPECT_EQ(reasoning("gAAAAAB_foreign"), "");
    EXPECT_EQ(reasoning(Seal(aead_, "other").hide("x")), "");
    const auto summary = [&](std::string_view blob) {
        return messages(fmt::format(
            R"([{{"role":"user","content":"q"}},{{"type":"reasoning","summary":[{{"type":"summary_text","text":"hm"}}],"content":[],"encrypted_content":{}}},{{"role":"assistant","content":"a"}}])",
            blob))[1]
            .reasoning;
    };
    EXPECT_EQ(summary("null"), "hm");
    EXPECT_EQ(summary("\"gAAAAAB_foreign\""), "");
}

// A data URL of more than 65,520 characters is a URL (A94).
TEST_F(ResponsesTest, LongDataUrl_A94) {
    const std::string url = "data:image/png;base64," + std::string(200'000, 'A');
    const auto m = messages(R"([{"role":"user","content":[{"type":"input_image","image_url":")" +
                            url + R"("}]}])");
    EXPECT_EQ(std::get<model::ImagePart>(m[0].parts[0]).bytes.size(), 150'000u);
}

TEST(ResponsesDocumentation, ListsEveryFieldWithItsPolicy) {
    const std::string text = read("docs/formats/dialect-responses.md");
    for (const FieldPolicy& field : create_fields()) {
        const char* word = field.policy == Policy::kImplement ? "implement"
                           : field.policy == Policy::kExtra   ? "extra"
                           : field.policy == Policy::kAccept  ? "accept"
                                                              : "refuse";
        EXPECT_THAT(text, HasSubstr(fmt::format("| `{}` | {} |", field.name, word)));
    }
}

}  // namespace
}  // namespace nereid::dialect::responses
