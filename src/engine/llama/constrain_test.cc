// text/grammar.h: from a request to a grammar, checked by what the grammar lets through.
#include "engine/llama/grammar_testing.h"

namespace nereid::engine::llama {
namespace {

using namespace testing;

// What the grammar lets through, the family's parser reads as calls of the tools, and nothing else.
TEST(Constrain, A97_A99_ForcedCallsAreWhatTheParserReads) {
    Grammars& grammars = shared_grammars();
    Prng rng(21);
    for (const text::Family family : kForceable) {
        SCOPED_TRACE(text::name_of(family));
        for (const bool in_reasoning : {false, true}) {
            if (in_reasoning && !reasons(family)) continue;
            model::Request request = with_tools();
            auto constraint = text::constrain(request, context(family, in_reasoning));
            ASSERT_TRUE(constraint.ok()) << constraint.error().message;
            EXPECT_TRUE(constraint->calls_only);
            int complete = 0;
            for (int i = 0; i < 4; ++i) {
                const auto grammar = compiled(grammars, constraint->kind, constraint->source);
                ASSERT_EQ(grammar->state(), Grammar::State::kReady)
                    << grammar->error().message << constraint->source;
                const std::string thought = thought_of(family, in_reasoning);
                feed(*grammar, thought);
                const auto walked = walk(*grammar, rng, 250);
                if (!walked) continue;
                ++complete;
                const std::string all = thought + *walked;
                const std::string* text = &all;
                const Parsed parsed = parse(family, request, all, in_reasoning);
                EXPECT_EQ(parsed.content, "") << *text;
                EXPECT_EQ(parsed.reasoning, thought.empty() ? "" : "hm") << *text;
                EXPECT_FALSE(parsed.calls.empty()) << *text;
                for (const auto& call : parsed.calls) {
                    if (call.custom) {
                        EXPECT_EQ(call.arguments.find_first_not_of("abc"), std::string::npos)
                            << *text;
                        continue;
                    }
                    const auto arguments = Json::parse(call.arguments);
                    ASSERT_TRUE(arguments.ok()) << *text << "\n" << call.arguments;
                    if (call.name != "get_weather") continue;
                    const Json* days = arguments->find("days");
                    ASSERT_NE(days, nullptr) << *text;
                    EXPECT_TRUE(*days->as_int() >= 1 && *days->as_int() <= 9) << *text;
                    EXPECT_NE(arguments->find("city"), nullptr) << *text;
                }
            }
            EXPECT_GT(complete, 0);
        }
    }
}

TEST(Constrain, A98_OneCallAndNamed) {
    Grammars& grammars = shared_grammars();
    Prng rng(4);
    model::Request request = with_tools();
    request.tool_choice = {.kind = model::ToolChoice::Kind::kNamed, .name = "wait"};
    request.parallel_tool_calls = false;
    const auto constraint = text::constrain(request, context(text::Family::kGeneric, false));
    ASSERT_TRUE(constraint.ok());
    const auto grammar = compiled(grammars, constraint->kind, constraint->source);
    ASSERT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message;
    const auto text = walk(*grammar, rng, 200);
    ASSERT_TRUE(text.has_value());
    const Parsed parsed = parse(text::Family::kGeneric, request, *text, false);
    ASSERT_EQ(parsed.calls.size(), 1u) << *text;
    EXPECT_EQ(parsed.calls[0].name, "wait");
    EXPECT_EQ(parsed.calls[0].name_space, "agents");
    EXPECT_EQ(parsed.calls[0].arguments, "{}");

    request.tool_choice.name = "nobody";
    EXPECT_EQ(text::constrain(request, context(text::Family::kGeneric, false)).error().param,
              "tool_choice");
    request.tool_choice.name = "wait";
    text::ConstraintContext none = context(text::Family::kGeneric, false);
    none.grammars = 0;
    EXPECT_EQ(text::constrain(request, none).error().code, Code::kUnsupported);
}

TEST(Constrain, FormatsAfterReasoningAndBesideCalls) {
    Grammars& grammars = shared_grammars();
    Prng rng(9);
    using Kind = model::OutputFormat::Kind;
    const std::vector<model::OutputFormat> formats = {
        {.kind = Kind::kJsonObject},
        {.kind = Kind::kJsonSchema, .schema = *Json::parse(R"({"enum":[1,"x/y"]})")},
        {.kind = Kind::kRegex, .source = "[ab]/\\/c"},
        {.kind = Kind::kGrammar, .source = "start: \"a\" B\nB: /b+/", .syntax = "lark"},
        {.kind = Kind::kGrammar, .source = "root ::= \"a\" [0-9]", .syntax = "gbnf"}};
    for (const auto& format : formats) {
        for (const auto family : {text::Family::kGeneric, text::Family::kHarmony}) {
            for (const bool tools : {false, true}) {
                for (const bool in_reasoning : {false, true}) {
                    model::Request request = tools ? with_tools() : model::Request{};
                    request.tool_choice.kind = model::ToolChoice::Kind::kAuto;
                    request.format = format;
                    const auto constraint = text::constrain(request, context(family, in_reasoning));
                    ASSERT_TRUE(constraint.ok()) << constraint.error().message;
                    const auto grammar = compiled(grammars, constraint->kind, constraint->source);
                    ASSERT_EQ(grammar->state(), Grammar::State::kReady)
                        << grammar->error().message << "\n"
                        << constraint->source;
                    const std::string thought = thought_of(family, in_reasoning);
                    feed(*grammar, thought);
                    const auto walked = walk(*grammar, rng, 120);
                    if (!walked) continue;
                    const std::string all = thought + *walked;
                    const std::string* text = &all;
                    const Parsed parsed = parse(family, request, all, in_reasoning);
                    EXPECT_NE(parsed.content.empty(), parsed.calls.empty()) << *text;
                }
            }
        }
    }
}

TEST(Constrain, StrictToolsInFreeText) {
    Grammars& grammars = shared_grammars();
    model::Request request = with_tools();
    request.tool_choice.kind = model::ToolChoice::Kind::kAuto;
    request.tools.pop_back();  // the custom one is held to its grammar
    EXPECT_EQ(text::constrain(request, context(text::Family::kGeneric, false))->kind,
              GrammarKind::kNone);  // A67
    request.tools[0].strict = true;
    const auto constraint = text::constrain(request, context(text::Family::kGeneric, false));
    ASSERT_TRUE(constraint.ok());
    const auto feed = [&](const std::string& text) {
        const auto grammar = compiled(grammars, constraint->kind, constraint->source);
        EXPECT_EQ(grammar->state(), Grammar::State::kReady)
            << grammar->error().message << constraint->source;
        std::vector<TokenId> ids;
        context(text::Family::kGeneric, false).tokenizer->encode(text, text::Special::kPlain, ids);
        for (const TokenId id : ids) {
            if (!grammar->accept(id).ok()) return false;
        }
        const auto next = allowed(*grammar);
        return std::ranges::any_of(next, is_end);  // may end here
    };
    EXPECT_TRUE(feed("Just text."));
    EXPECT_TRUE(
        feed("See: <tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
             "{\"city\":\"A\",\"days\":3}}\n</tool_call>"));
    EXPECT_TRUE(feed(
        "<tool_call>\n{\"name\": \"agents__wait\", \"arguments\": {}}\n</tool_call> and then"));
    EXPECT_FALSE(
        feed("See: <tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
             "{\"days\":3}}\n</tool_call>"));
    EXPECT_FALSE(feed("<tool_call>\n{\"name\": \"other"));
    EXPECT_FALSE(feed("<tool_call> no"));
}

// The prompt of a forced call may have opened the block already.
TEST(Constrain, ACallBegunByThePrompt) {
    Grammars& grammars = shared_grammars();
    const std::string mark =
        "\uff5c"
        "DSML\uff5c";
    for (const bool v41 : {false, true}) {
        model::Request request = with_tools();
        text::ConstraintContext in_calls = context(text::Family::kDeepSeek4, false);
        in_calls.in_calls = true;
        in_calls.chat_template = v41 ? "<\uff5cSystem\uff5c>" : "";
        const auto constraint = text::constrain(request, in_calls);
        ASSERT_TRUE(constraint.ok());
        const auto grammar = compiled(grammars, constraint->kind, constraint->source);
        ASSERT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message;
        const std::string space = v41 ? " " : "";
        const std::string end = v41 ? " calls>" : "tool_calls>";
        const std::string parameter = "</" + mark + space + "parameter>\n";
        const auto open = [&](const std::string& name, bool text) {
            return "<" + mark + space + "parameter name=\"" + name + "\" string=\"" +
                   (text ? "true" : "false") + "\">";
        };
        const std::string call = "<" + mark + space + "invoke name=\"get_weather\">\n" +
                                 open("city", true) + "Os </lo" + parameter + open("days", false) +
                                 "3" + parameter + "</" + mark + space + "invoke>\n</" + mark + end;
        EXPECT_TRUE(is_whole(*grammar, call)) << constraint->source;
        text::ParserOptions options{.tools = &request.tools, .in_calls = true};
        const auto parser = text::make_parser(text::Family::kDeepSeek4, options);
        std::vector<model::Event> events;
        parser->push(call, events);
        EXPECT_TRUE(parser->finish(events));
        std::string arguments;
        for (const auto& event : events) {
            if (const auto* c = std::get_if<model::ToolCallDelta>(&event))
                arguments += c->arguments;
        }
        const auto json = Json::parse(arguments);
        ASSERT_TRUE(json.ok()) << arguments;
        EXPECT_EQ(json->find("city")->as_string(), "Os </lo");
        EXPECT_EQ(json->find("days")->as_int(), 3);
    }
}

TEST(Constrain, A63_TheMessageNamesTheTool) {
    Grammars& grammars = shared_grammars();
    model::Request request = with_tools();
    request.tools[1].parameters =
        *Json::parse(R"({"type":"object","properties":{"l":{"type":"array","uniqueItems":true}}})");
    const auto lenient = text::constrain(request, context(text::Family::kGeneric, false));
    EXPECT_EQ(compiled(grammars, lenient->kind, lenient->source)->state(), Grammar::State::kReady);
    request.tools[1].strict = true;
    const auto strict = text::constrain(request, context(text::Family::kGeneric, false));
    const auto grammar = compiled(grammars, strict->kind, strict->source);
    ASSERT_EQ(grammar->state(), Grammar::State::kFailed);
    EXPECT_EQ(grammar->error().code, Code::kUnsupported);
    EXPECT_EQ(grammar->error().message,
              "the keyword \"uniqueItems\" at /properties/l of the schema of the tool \"wait\" is "
              "not supported");
}

}  // namespace
}  // namespace nereid::engine::llama
