#include "text/recipe/recipe.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/utf8.h"

namespace nereid::text {
namespace {

const std::shared_ptr<const Recipe>& recipe() {
    static const auto loaded = [] {
        auto library = Recipe::load();
        CHECK_MSG(library.ok(), library.error().message);
        return *library;
    }();
    return loaded;
}

const std::string kD =
    "\uff5c"
    "DSML\uff5c";

struct Parsed {
    std::string content;
    std::string reasoning;
    std::vector<std::pair<std::string, std::string>> calls;
    bool operator==(const Parsed&) const = default;
};

Parsed parse(const std::string& text, bool in_reasoning, const std::vector<std::size_t>& cuts) {
    static const std::vector<model::Tool> tools(
        1, model::Tool{.name = "f", .description = "", .parameters = {}, .format = {}});
    ParserOptions options;
    options.tools = &tools;
    options.in_reasoning = in_reasoning;
    const auto parser = make_parser(Family::kDeepSeek4, options);
    std::vector<model::Event> events;
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
        parser->push(std::string_view(text).substr(begin, cut - begin), events);
        begin = cut;
    }
    parser->push(std::string_view(text).substr(begin), events);
    Parsed parsed;
    EXPECT_EQ(parser->finish(events), text.find("invoke name") != std::string::npos);
    for (const model::Event& event : events) {
        if (const auto* t = std::get_if<model::TextDelta>(&event)) {
            EXPECT_TRUE(is_valid_utf8(t->text));
            parsed.content += t->text;
        } else if (const auto* r = std::get_if<model::ReasoningDelta>(&event)) {
            parsed.reasoning += r->text;
        } else if (const auto* c = std::get_if<model::ToolCallDelta>(&event)) {
            if (c->index == parsed.calls.size()) parsed.calls.emplace_back(c->name, "");
            parsed.calls.back().second += c->arguments;
        }
    }
    return parsed;
}

TEST(Recipe, A1_A2_ParsesCallsAtEverySplit) {
    const std::string text =
        "Think \u00e9.</think>Let me.\n\n<" + kD + "tool_calls>\n<" + kD + "invoke name=\"f\">\n<" +
        kD + "parameter name=\"a\" string=\"true\">x \u4f60 \"q\"</" + kD + "parameter>\n<" + kD +
        "parameter name=\"n\" string=\"false\">[1, 2]</" + kD + "parameter>\n</" + kD +
        "invoke>\n</" + kD + "tool_calls>";
    const Parsed whole = parse(text, true, {});
    EXPECT_EQ(whole.reasoning, "Think \u00e9.");
    EXPECT_EQ(whole.content, "Let me.");
    ASSERT_EQ(whole.calls.size(), 1u);
    EXPECT_EQ(whole.calls[0].first, "f");
    EXPECT_EQ(*Json::parse(whole.calls[0].second),
              *Json::parse("{\"a\":\"x \u4f60 \\\"q\\\"\",\"n\":[1,2]}"));
    std::vector<std::size_t> all;
    for (std::size_t i = 1; i < text.size(); ++i) {
        if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) all.push_back(i);
    }
    EXPECT_EQ(parse(text, true, all), whole);
    for (const std::size_t cut : all) ASSERT_EQ(parse(text, true, {cut}), whole) << cut;
}

// Found by recipe_fuzz.
TEST(Recipe, ACallOfNothingIsText) {
    const std::string text = "Ok.\n\n<" + kD + "tool_calls>\n<" + kD + "invoke name=\"\">\n<" + kD +
                             "parameter name=\"a\" string=\"true\">x</" + kD + "parameter>\n</" +
                             kD + "invoke>\n</" + kD + "tool_calls>";
    static const std::vector<model::Tool> tools(
        1, model::Tool{.name = "f", .description = "", .parameters = {}, .format = {}});
    const auto parser = make_parser(Family::kDeepSeek4, {.tools = &tools});
    std::vector<model::Event> events;
    parser->push(text, events);
    EXPECT_FALSE(parser->finish(events));
    std::string said;
    for (const model::Event& event : events) said += std::get<model::TextDelta>(event).text;
    EXPECT_EQ(said, R"(Ok.{"a": "x"})");
}

TEST(Recipe, PlainAnswers) {
    EXPECT_EQ(parse("Hello <b>", false, {3}), (Parsed{"Hello <b>", "", {}}));
    EXPECT_EQ(parse("only thoughts", true, {5}), (Parsed{"", "only thoughts", {}}));
}

model::Request question(std::string text) {
    model::Request request;
    request.messages = {{.role = model::Role::kDeveloper, .parts = {model::TextPart{"Be brief."}}},
                        {.role = model::Role::kUser, .parts = {model::TextPart{std::move(text)}}}};
    return request;
}

TEST(Recipe, BodiesAreWhatTheLibraryReads) {
    model::Request request = question("Weather? <\uff5cUser\uff5c>");
    model::Message call{.role = model::Role::kAssistant, .parts = {}, .reasoning = "hm"};
    call.tool_calls = {
        {.id = "c1", .name = "wait", .arguments = "not json", .name_space = "agents"}};  // A101
    request.messages.push_back(call);
    request.messages.push_back(
        {.role = model::Role::kTool, .parts = {model::TextPart{"ok"}}, .tool_call_id = "c1"});
    request.tools.push_back({.name = "wait",
                             .description = "Waits.",
                             .parameters = {},
                             .format = {},
                             .name_space = "agents"});
    request.reasoning_effort = "ultra";
    for (const auto version : {DeepSeekVersion::kV4, DeepSeekVersion::kV41}) {
        const auto rendered = recipe()->render(recipe_body(request, version));
        ASSERT_TRUE(rendered.ok()) << rendered.error().message;
        EXPECT_TRUE(rendered->thinking);
        EXPECT_NE(rendered->prompt.find("{\"name\": \"agents__wait\", \"description\": \"Waits.\""),
                  std::string::npos);
        EXPECT_NE(rendered->prompt.find("not json"), std::string::npos);
        // The user's own <|User|> is no special token: the template wrote one, a tool's result is a
        // second turn.
        std::size_t users = 0;
        for (const auto& [begin, end] : rendered->special)
            users += rendered->prompt.substr(begin, end - begin) == "<\uff5cUser\uff5c>" ? 1 : 0;
        std::size_t spelled = 0;
        for (std::size_t at = 0;
             (at = rendered->prompt.find("<\uff5cUser\uff5c>", at)) != std::string::npos; ++at)
            ++spelled;
        EXPECT_EQ(users + 1, spelled);
        EXPECT_TRUE(opens_reasoning(Family::kDeepSeek4, rendered->prompt));
    }
    request.tool_choice.kind = model::ToolChoice::Kind::kRequired;
    request.reasoning_effort.clear();
    const auto forced = recipe()->render(recipe_body(request, DeepSeekVersion::kV41));
    ASSERT_TRUE(forced.ok()) << forced.error().message;
    EXPECT_TRUE(forced->in_calls);
    EXPECT_TRUE(opens_calls(Family::kDeepSeek4, forced->prompt));
    EXPECT_FALSE(forced->thinking);
    model::Request json = question("Give it as you like");
    json.format.kind = model::OutputFormat::Kind::kJsonObject;
    EXPECT_TRUE(recipe()->render(recipe_body(json, DeepSeekVersion::kV41)).ok());
}

// An image's place is the library's marker; a user who writes the marker gets text.
TEST(Recipe, ImagesHaveTheirPlaces) {
    model::Request request = question("Look");
    model::Message& message = request.messages.back();
    message.parts.insert(message.parts.begin(), model::ImagePart{});
    message.parts.emplace_back(model::TextPart{"<\uff5cimage\uff5c> and"});
    message.parts.emplace_back(model::ImagePart{});
    const auto rendered = recipe()->render(recipe_body(request, DeepSeekVersion::kV41));
    ASSERT_TRUE(rendered.ok()) << rendered.error().message;
    const std::string_view marker = "<\uff5cimage\uff5c>";
    std::size_t places = 0;
    for (const auto& [begin, end] : rendered->special)
        places += std::string_view(rendered->prompt).substr(begin, end - begin) == marker ? 1 : 0;
    EXPECT_EQ(places, 2u);
    std::size_t spelled = 0;
    for (std::size_t at = 0; (at = rendered->prompt.find(marker, at)) != std::string::npos; ++at)
        ++spelled;
    EXPECT_EQ(spelled, 3u);
}

TEST(Recipe, RefusalsAreTheCallersInItsWords) {
    EXPECT_EQ(recipe()->render("{").error().code, Code::kInvalidArgument);
    EXPECT_EQ(recipe()->render(R"({"model":"x","messages":[]})").error().code,
              Code::kInvalidArgument);
    EXPECT_EQ(recipe()->encoder("{}").error().code, Code::kInvalidArgument);
}

TEST(Recipe, VersionIsFoundInTheTemplate) {
    EXPECT_EQ(deepseek_version("<\uff5cSystem\uff5c>"), DeepSeekVersion::kV41);
    EXPECT_EQ(deepseek_version("<\uff5cUser\uff5c>"), DeepSeekVersion::kV4);
}

}  // namespace
}  // namespace nereid::text
