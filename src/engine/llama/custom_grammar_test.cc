// Custom tools' grammars (A78).
#include "engine/llama/grammar_testing.h"

namespace nereid::engine::llama {
namespace {

using namespace testing;

// As OpenAI's clients send it (Codex 0.171; ../shared/captures/codex-apply-patch).
constexpr const char* kApplyPatch = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
)";

model::Request with_custom(const std::string& syntax, const std::string& definition) {
    model::Request request = with_tools();
    request.tool_choice.kind = model::ToolChoice::Kind::kAuto;
    request.tools[2].name = "apply_patch";
    request.tools[2].format = Json(Json::Object{{"type", "grammar"}});
    request.tools[2].format.set("syntax", syntax).set("definition", definition);
    return request;
}

// What lies between the end of the call's frame and its input, per family, for a call in free text.
std::string custom_call(text::Family family, const std::string& input) {
    std::string quoted;
    append_json_string(quoted, input);
    switch (family) {
        case text::Family::kLlama:
            return R"({"name": "apply_patch", "parameters": {"input": )" + quoted + "}}";
        case text::Family::kMistral:
            return R"([TOOL_CALLS][{"name": "apply_patch", "arguments": {"input": )" + quoted +
                   "}}]";
        case text::Family::kQwenXml:
            return "<tool_call>\n<function=apply_patch>\n<parameter=input>\n" + quoted +
                   "\n</parameter>\n</function>\n</tool_call>";
        case text::Family::kGemma:
            return R"(<start_function_call>call:apply_patch{"input": )" + quoted +
                   "}<end_function_call>";
        case text::Family::kHarmony:
            return "<|channel|>commentary to=functions.apply_patch "
                   "<|constrain|>json<|message|>{\"input\": " +
                   quoted + "}";
        case text::Family::kDeepSeek3:
            return "<\uff5ctool\u2581"
                   "calls\u2581"
                   "begin\uff5c><\uff5ctool\u2581"
                   "call\u2581"
                   "begin\uff5c>apply_patch<\uff5ctool\u2581sep\uff5c>{\"input\": " +
                   quoted +
                   "}<\uff5ctool\u2581"
                   "call\u2581"
                   "end\uff5c><\uff5ctool\u2581"
                   "calls\u2581"
                   "end\uff5c>";
        case text::Family::kDeepSeek4: {
            const std::string mark =
                "\uff5c"
                "DSML\uff5c";
            return "<" + mark + "tool_calls>\n<" + mark + "invoke name=\"apply_patch\">\n<" + mark +
                   "parameter name=\"input\" string=\"false\">" + quoted + "</" + mark +
                   "parameter>\n</" + mark + "invoke>\n</" + mark + "tool_calls>";
        }
        default:
            return "<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": " + quoted +
                   "}}\n</tool_call>";
    }
}

// The grammar of a custom tool holds while decoding, whatever the model may choose besides, in
// every notation; and the parser gives the tool's input back as it was.
TEST(Constrain, A78_ACustomToolsGrammarIsEnforcedInFreeText) {
    Grammars& grammars = shared_grammars();
    const std::string good =
        "*** Begin Patch\n*** Add File: a \"b\".txt\n+x\\y\tz\n+\u00e9\n*** End Patch\n";
    const std::string bad = "*** Begin Patch\n*** Rename File: a\n*** End Patch\n";
    for (const text::Family family : kForceable) {
        SCOPED_TRACE(text::name_of(family));
        model::Request request = with_custom("lark", kApplyPatch);
        const auto constraint = text::constrain(request, context(family, false));
        ASSERT_TRUE(constraint.ok()) << constraint.error().message;
        EXPECT_FALSE(constraint->calls_only);
        EXPECT_EQ(constraint->param, "tools");
        const auto whole = [&](const std::string& text) -> ::testing::AssertionResult {
            const auto grammar = compiled(grammars, constraint->kind, constraint->source);
            EXPECT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message << "\n"
                                                                << constraint->source;
            if (grammar->state() != Grammar::State::kReady) return ::testing::AssertionFailure();
            return is_whole(*grammar, text);
        };
        const std::string call = custom_call(family, good);
        EXPECT_TRUE(whole(call));
        EXPECT_FALSE(whole(custom_call(family, bad)));
        EXPECT_FALSE(whole(custom_call(family, good + "x")));
        EXPECT_TRUE(whole(family == text::Family::kHarmony ? "<|channel|>final<|message|>Just text."
                                                           : "Just text."));
        const Parsed parsed = parse(family, request, call, false);
        ASSERT_EQ(parsed.calls.size(), 1u) << call;
        EXPECT_EQ(parsed.calls[0].arguments, good);
        // The tools that demand nothing are as free as they were (A67).
        if (family == text::Family::kHermes) {
            EXPECT_TRUE(
                whole("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
                      "{\"any\":[1,{\"thing\":null}]}}\n</tool_call>"));
        }
    }
}

TEST(Constrain, A78_WhatTheGrammarAllowsIsOneOfItsTexts) {
    Grammars& grammars = shared_grammars();
    Prng rng(31);
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"lark", "start: \"<\" /[\"\\\\\\n\\/a]{1,4}/ \">\"i\n"},
        {"lark", "start: WORD (\",\" WORD)~1..2\nWORD: \"a\"..\"c\"+\n%ignore /[ \\n]/\n"},
        {"lark",
         "start: expr\n?expr: term (\"+\" term)*  // sums\nterm: INT | \"(\" expr \")\"\n"
         "%import common (INT, WS)\n"},
        {"lark",
         "start: list\nlist: \"[\" (item (\", \" item)*)? \"]\"\nitem: list | STRING\n"
         "STRING: \"\\\"\" /[^\"\\n]{0,2}/ \"\\\"\"\n"},
        {"regex", "^(?:\\d{1,3}|\"x\"\\n|[^a-z]\\\\)$"},
        {"regex", "[\\t-~]{1,3}"}};
    for (const auto& [syntax, definition] : cases) {
        SCOPED_TRACE(definition);
        model::Request request = with_custom(syntax, definition);
        request.tool_choice = {.kind = model::ToolChoice::Kind::kNamed, .name = "apply_patch"};
        request.parallel_tool_calls = false;
        const auto constraint = text::constrain(request, context(text::Family::kGeneric, false));
        ASSERT_TRUE(constraint.ok());
        const GrammarKind kind = syntax == "lark" ? GrammarKind::kLark : GrammarKind::kRegex;
        const std::string plain = syntax == "regex" && definition.starts_with('^')
                                      ? definition.substr(1, definition.size() - 2)
                                      : definition;
        int complete = 0;
        for (int i = 0; i < 6; ++i) {
            const auto grammar = compiled(grammars, constraint->kind, constraint->source);
            ASSERT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message << "\n"
                                                                << constraint->source;
            const auto text = walk(*grammar, rng, 300);
            if (!text) continue;
            ++complete;
            const Parsed parsed = parse(text::Family::kGeneric, request, *text, false);
            ASSERT_EQ(parsed.calls.size(), 1u) << *text;
            const auto alone = compiled(grammars, kind, plain);
            ASSERT_EQ(alone->state(), Grammar::State::kReady) << alone->error().message;
            EXPECT_TRUE(is_whole(*alone, parsed.calls[0].arguments)) << parsed.calls[0].arguments;
        }
        EXPECT_GT(complete, 0);
    }
}

TEST(Constrain, A78_ABadGrammarIsRefusedByTheToolsName) {
    Grammars& grammars = shared_grammars();
    struct Bad {
        std::string syntax, definition;
        Code code;
        std::string message;
    };
    const std::vector<Bad> all = {
        {"lark", "start: nothing\n", Code::kInvalidArgument, "nothing"},
        {"lark", "start: \"a", Code::kInvalidArgument, "a string without its end"},
        {"lark", "start: /(/\n", Code::kInvalidArgument, "invalid expression"},
        {"lark", "start: /a\\b/\n", Code::kUnsupported, "an anchor or a word boundary"},
        {"lark", "start: %json {\"type\":\"object\"}\n", Code::kUnsupported, "%json"},
        {"lark", "start: <[3]>\n", Code::kUnsupported, "a special token"},
        {"lark", "start[stop=\"x\"]: /.*/\n", Code::kUnsupported, "an attribute"},
        {"lark", "start: ~/a/\n", Code::kUnsupported, "complement"},
        {"lark", "%import common.NOTHING\nstart: NOTHING\n", Code::kInvalidArgument, "NOTHING"},
        {"regex", "(?=a)b", Code::kInvalidArgument, "look-around"},
        {"bnf", "start: \"a\"\n", Code::kUnsupported, "neither"}};
    for (const Bad& bad : all) {
        SCOPED_TRACE(bad.definition);
        const model::Request request = with_custom(bad.syntax, bad.definition);
        const auto constraint = text::constrain(request, context(text::Family::kGeneric, false));
        ASSERT_TRUE(constraint.ok());
        const auto grammar = compiled(grammars, constraint->kind, constraint->source);
        ASSERT_EQ(grammar->state(), Grammar::State::kFailed);
        EXPECT_EQ(grammar->error().code, bad.code) << grammar->error().message;
        EXPECT_NE(grammar->error().message.find("grammar of the tool \"apply_patch\""),
                  std::string::npos)
            << grammar->error().message;
        EXPECT_NE(grammar->error().message.find(bad.message), std::string::npos)
            << grammar->error().message;
    }
}

}  // namespace
}  // namespace nereid::engine::llama
