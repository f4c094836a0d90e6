// Forced calls for an engine that takes EBNF and no Lark. The grammar that is made here lies in
// tests/deepinfer/forced_calls.ebnf, and tests/deepinfer/real_parts.py holds xgrammar to it.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "text/grammar.h"

namespace nereid::text {
namespace {

using model::GrammarKind;

std::uint8_t xgrammars() {
    return static_cast<std::uint8_t>(GrammarKind::kJsonSchema) |
           static_cast<std::uint8_t>(GrammarKind::kRegex) |
           static_cast<std::uint8_t>(GrammarKind::kEbnf);
}

ConstraintContext context() {
    return {.family = Family::kDeepSeek4,
            .chat_template = "<\uff5cSystem\uff5c>",
            .grammars = xgrammars(),
            .in_calls = true};
}

model::Request weather() {
    model::Request request;
    request.tools.push_back(
        {.name = "get_weather",
         .description = "",
         .parameters = *Json::parse(
             R"({"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["c","f"]},)"
             R"("days":{"type":"integer","minimum":1,"maximum":9},"note":{"type":"string"},)"
             R"("at":{"type":"array","items":{"$ref":"#/$defs/n"},"uniqueItems":true}},)"
             R"("required":["city","days"],"$defs":{"n":{"type":"integer"}}})"),
         .format = {}});
    request.tools.push_back({.name = "wait", .description = "", .parameters = {}, .format = {}});
    request.tool_choice.kind = model::ToolChoice::Kind::kRequired;
    return request;
}

TEST(ConstrainEbnf, ForcedCallsOfDeepSeek) {
    model::Request request = weather();
    const auto made = constrain(request, context());
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made->kind, GrammarKind::kEbnf);
    EXPECT_EQ(made->param, "tools");
    EXPECT_TRUE(made->calls_only && made->trigger.empty());
    std::ifstream file("tests/deepinfer/forced_calls.ebnf");
    std::stringstream held;
    held << file.rdbuf();
    EXPECT_EQ(made->source, held.str());

    request.tool_choice = {.kind = model::ToolChoice::Kind::kNamed, .name = "wait", .allowed = {}};
    const auto named = constrain(request, context());
    ASSERT_TRUE(named.ok());
    EXPECT_EQ(named->param, "tool_choice");
    EXPECT_EQ(named->source.find("get_weather"), std::string::npos);
}

TEST(ConstrainEbnf, WhatItCannotSayIsRefusedByName) {
    EXPECT_TRUE(can_force_calls(Family::kDeepSeek4, xgrammars()));
    EXPECT_FALSE(can_force_calls(Family::kHermes, xgrammars()));
    EXPECT_FALSE(
        can_force_calls(Family::kDeepSeek4, static_cast<std::uint8_t>(GrammarKind::kJsonSchema)));
    EXPECT_TRUE(can_force_calls(Family::kHermes, static_cast<std::uint8_t>(GrammarKind::kLark)));

    model::Request request = weather();
    ConstraintContext before = context();
    before.in_calls = false;
    EXPECT_EQ(constrain(request, before).error().code, Code::kUnsupported);

    request.tools.push_back({.name = "sql",
                             .description = "",
                             .parameters = {},
                             .custom = true,
                             .format = *Json::parse(R"({"type":"grammar","syntax":"regex",)"
                                                    R"("definition":"a+"})")});
    const auto custom = constrain(request, context());
    ASSERT_FALSE(custom.ok());
    EXPECT_EQ(custom.error().code, Code::kUnsupported);
    EXPECT_EQ(custom.error().param, "tools");
    EXPECT_NE(custom.error().message.find("\"sql\""), std::string::npos);

    // A format beside tools: an answer of that format, or calls.
    request.tool_choice.kind = model::ToolChoice::Kind::kAuto;
    request.tools.pop_back();
    request.format.kind = model::OutputFormat::Kind::kJsonSchema;
    request.format.schema = *Json::parse(R"({"type":"integer"})");
    const auto either = constrain(request, before);
    ASSERT_TRUE(either.ok()) << either.error().message;
    EXPECT_EQ(either->kind, GrammarKind::kEbnf);
    EXPECT_EQ(either->param, "response_format");
    EXPECT_NE(either->source.find("root ::= \"\\n\"? \"\\n\"? (answer | calls)\n"),
              std::string::npos);
    EXPECT_NE(either->source.find("answer ::= %json {\"type\":\"integer\"}\n"), std::string::npos);
    request.format = {};
    request.format.kind = model::OutputFormat::Kind::kRegex;
    request.format.source = "a+";
    before.in_reasoning = true;
    EXPECT_EQ(constrain(request, before).error().code, Code::kUnsupported);
    before.in_reasoning = false;
    request.format = {};

    // With tool_choice auto a call is not held, and no request fails for it (A67).
    const auto free = constrain(request, context());
    ASSERT_TRUE(free.ok());
    EXPECT_EQ(free->kind, GrammarKind::kNone);
}

}  // namespace
}  // namespace nereid::text
