#include "engine/llama/grammar.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <thread>

#include "base/json.h"
#include "base/prng.h"
#include "engine/llama/test_engine.h"
#include "text/grammar.h"
#include "text/parser.h"

namespace nereid::engine::llama {
namespace {

using model::GrammarKind;
using namespace testing;

Harness& shared() {
    static Harness harness{small_options()};
    return harness;
}

const std::string& piece(TokenId id) {
    static const std::vector<std::string> pieces = [] {
        const llama_vocab* vocab = shared().engine->runtime().vocab();
        std::vector<std::string> all(static_cast<std::size_t>(llama_vocab_n_tokens(vocab)));
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].resize(128);
            const auto size =
                llama_token_to_piece(vocab, static_cast<TokenId>(i), all[i].data(), 128, 0, true);
            all[i].resize(static_cast<std::size_t>(std::max(size, 0)));
        }
        return all;
    }();
    return pieces.at(static_cast<std::size_t>(id));
}

bool is_end(TokenId id) { return llama_vocab_is_eog(shared().engine->runtime().vocab(), id); }

// Reading the vocabulary takes a while: once for most tests.
Grammars& shared_grammars() {
    static Grammars grammars(shared().engine->runtime().vocab());
    return grammars;
}

std::shared_ptr<Grammar> compiled(Grammars& grammars, GrammarKind kind, const std::string& source,
                                  std::vector<TokenId> trigger = {},
                                  std::vector<TokenId> replay = {}) {
    auto grammar = grammars.open(kind, source, std::move(trigger), std::move(replay));
    while (grammar->state() == Grammar::State::kCompiling) std::this_thread::yield();
    return grammar;
}

std::vector<TokenId> allowed(Grammar& grammar) {
    auto mask = grammar.mask();
    EXPECT_TRUE(mask.ok()) << mask.error().message;
    std::vector<TokenId> ids;
    if (!mask.ok()) return ids;
    for (std::size_t i = 0; i < mask->size() * 32; ++i) {
        if (((*mask)[i / 32] >> (i % 32) & 1) != 0) ids.push_back(static_cast<TokenId>(i));
    }
    return ids;
}

// A random output; nothing when it is not complete after `most` tokens.
std::optional<std::string> walk(Grammar& grammar, Prng& rng, int most,
                                std::vector<TokenId>* tokens = nullptr) {
    std::string text;
    for (int i = 0; i < most && !grammar.complete(); ++i) {
        if (rng.chance(0.5)) grammar.prepare();
        const auto ids = allowed(grammar);
        if (ids.empty()) return std::nullopt;
        // Mostly short tokens that are not letters, so that strings end.
        TokenId id = ids[rng.below(ids.size())];
        for (int t = 0;
             t < 40 && !is_end(id) && piece(id).find_first_of("\"}]") == std::string::npos; ++t)
            id = ids[rng.below(ids.size())];
        if (is_end(id)) return text;
        EXPECT_TRUE(grammar.accept(id).ok());
        if (tokens != nullptr) tokens->push_back(id);
        text += piece(id);
    }
    if (!grammar.complete()) return std::nullopt;
    return text;
}

TEST(Grammar, RandomOutputsOfASchemaAreDocumentsOfIt) {
    Grammars grammars(shared().engine->runtime().vocab());
    const std::string schema = R"({"type":"object","properties":{
        "kind":{"enum":["a","b\u00e9"]},"n":{"type":"integer","minimum":-3,"maximum":12},
        "tags":{"type":"array","items":{"type":"string","maxLength":8},"minItems":1,"maxItems":3},
        "code":{"type":"string","pattern":"^[A-Z]{2}-[0-9]+$"}},
        "required":["kind","n","tags","code"],"additionalProperties":false})";
    Prng rng(3);
    int complete = 0;
    for (int i = 0; i < 20; ++i) {
        const auto grammar = compiled(grammars, GrammarKind::kJsonSchema, schema);
        ASSERT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message;
        const auto text = walk(*grammar, rng, 200);
        if (!text) continue;
        ++complete;
        const auto document = Json::parse(*text);
        ASSERT_TRUE(document.ok()) << *text;
        ASSERT_EQ(document->size(), 4u) << *text;
        const auto& kind = document->find("kind")->as_string();
        EXPECT_TRUE(kind == "a" || kind == "b\u00e9") << *text;
        const auto n = document->find("n")->as_int();
        ASSERT_TRUE(n.has_value()) << *text;
        EXPECT_TRUE(*n >= -3 && *n <= 12) << *text;
        const std::size_t tags = document->find("tags")->size();
        EXPECT_TRUE(tags >= 1 && tags <= 3) << *text;
        EXPECT_EQ(document->find("code")->as_string()[2], '-') << *text;
    }
    EXPECT_GT(complete, 6);
    EXPECT_EQ(grammars.compiled(), 1u);
}

// A66: white space between the members is bounded, so an answer cannot consist of it.
TEST(Grammar, A66_WhiteSpaceIsBounded) {
    Grammars& grammars = shared_grammars();
    const auto grammar = compiled(grammars, GrammarKind::kJsonSchema, R"({"type":"object"})");
    std::vector<TokenId> ids;
    const auto only_space = [&](TokenId id) {
        const std::string text = piece(id);
        return !text.empty() && text.find_first_not_of(" \t\n\r") == std::string::npos;
    };
    int run = 0;
    for (const TokenId id : allowed(*grammar)) {
        if (piece(id) == "{") {
            ASSERT_TRUE(grammar->accept(id).ok());
            break;
        }
    }
    for (; run < 100; ++run) {
        const auto now = allowed(*grammar);
        const auto space = std::ranges::find_if(now, only_space);
        if (space == now.end()) break;
        ASSERT_TRUE(grammar->accept(*space).ok());
    }
    EXPECT_LT(run, 60);
}

TEST(Grammar, A62_A65_WhatCannotBeEnforcedIsRefusedByName) {
    Grammars& grammars = shared_grammars();
    const struct {
        GrammarKind kind;
        const char* source;
        Code code;
        const char* says;
    } bad[] = {
        {GrammarKind::kJsonSchema,
         R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
         Code::kUnsupported, "\"uniqueItems\" at /properties/a"},
        {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"not":{"not":{}}}})",
         Code::kUnsupported, "\"not\" at /properties/not"},
        {GrammarKind::kJsonSchema, R"({"if":{},"then":{}})", Code::kUnsupported, "\"if\""},
        {GrammarKind::kJsonSchema, R"({"type":"object","propertyNames":{"pattern":"a"}})",
         Code::kUnsupported, "\"propertyNames\""},
        {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"(?=a)b"})", Code::kUnsupported,
         ""},
        {GrammarKind::kJsonSchema, R"({"$ref":"https://example.com/schema.json"})",
         Code::kUnsupported, "\"$ref\""},
        {GrammarKind::kJsonSchema, R"({"$ref":"#/nowhere"})", Code::kInvalidArgument, ""},
        {GrammarKind::kJsonSchema, R"({"type":"strin"})", Code::kInvalidArgument, "strin"},
        {GrammarKind::kJsonSchema, "{", Code::kInvalidArgument, "not JSON"},
        {GrammarKind::kJsonSchema, "[]", Code::kInvalidArgument, "an object or a boolean"},
        {GrammarKind::kJsonSchema, "false", Code::kInvalidArgument, "no value"},
        {GrammarKind::kRegex, "a(", Code::kInvalidArgument, ""},
        {GrammarKind::kLark, "start: nowhere", Code::kInvalidArgument, "nowhere"},
        {GrammarKind::kLark, "", Code::kInvalidArgument, ""},
        {GrammarKind::kGbnf, "root ::= x", Code::kInvalidArgument, "x"},
    };
    for (const auto& b : bad) {
        const auto grammar = compiled(grammars, b.kind, b.source);
        ASSERT_EQ(grammar->state(), Grammar::State::kFailed) << b.source;
        EXPECT_EQ(grammar->error().code, b.code) << b.source << ": " << grammar->error().message;
        EXPECT_NE(grammar->error().message.find(b.says), std::string::npos)
            << grammar->error().message;
        EXPECT_EQ(grammar->error().param, "");
        EXPECT_LT(grammar->error().message.size(), 600u) << grammar->error().message;
    }
    const std::string deep = std::string(50'000, '[') + std::string(50'000, ']');
    for (const auto kind :
         {GrammarKind::kJsonSchema, GrammarKind::kRegex, GrammarKind::kLark, GrammarKind::kGbnf}) {
        EXPECT_EQ(compiled(grammars, kind, deep)->state(), Grammar::State::kFailed);
        EXPECT_EQ(compiled(grammars, kind, "start: " + std::string(5000, '('))->state(),
                  Grammar::State::kFailed);
        EXPECT_EQ(compiled(grammars, kind, std::string(2u << 20, 'a'))->state(),
                  Grammar::State::kFailed);
    }
    std::string nested = "{}";
    for (int i = 0; i < 90; ++i) nested = R"({"type":"object","properties":{"a":)" + nested + "}}";
    EXPECT_EQ(compiled(grammars, GrammarKind::kJsonSchema, nested)->state(),
              Grammar::State::kFailed);
}

// A name spelled with an escape is the same name: it must not pass by the schema of its property.
TEST(Grammar, EscapedNamesDoNotPassByTheirSchemas) {
    const std::string schema =
        R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true})";
    for (const auto& [text, passes] : {std::pair{R"({"b":"x"})", true},
                                       {R"({"a":1})", true},
                                       {R"({"a":"x"})", false},
                                       {R"({"\u0061":"x"})", false}}) {
        const auto grammar = compiled(shared_grammars(), GrammarKind::kJsonSchema, schema);
        ASSERT_EQ(grammar->state(), Grammar::State::kReady);
        bool taken = true;
        for (const char c : std::string_view(text)) {
            TokenId id = 0;
            while (piece(id) != std::string(1, c)) ++id;
            taken = taken && grammar->accept(id).ok();
            if (!taken) break;
        }
        EXPECT_EQ(taken, passes) << text;
    }
}

// A63: what is not strict drops keywords instead.
TEST(Grammar, A63_LenientSchemasDropWhatCannotBeEnforced) {
    Grammars& grammars = shared_grammars();
    const auto grammar = compiled(
        grammars, GrammarKind::kJsonSchema,
        R"({"x-guidance":{"lenient":true},"type":"array","uniqueItems":true,"items":{"type":"boolean"}})");
    EXPECT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message;
    // Nothing else of that extension is the caller's to set.
    const auto other =
        compiled(grammars, GrammarKind::kJsonSchema,
                 R"({"x-guidance":{"whitespace_flexible":false,"nonsense":1},"type":"boolean"})");
    EXPECT_EQ(other->state(), Grammar::State::kReady);
}

TEST(Grammar, RegexLarkAndGbnf) {
    Grammars& grammars = shared_grammars();
    Prng rng(5);
    for (const auto& [kind, source] :
         {std::pair{GrammarKind::kRegex, "(yes|no)!{1,2}"},
          std::pair{GrammarKind::kLark, "start: (\"yes\" | \"no\") \"!\"{1,2}"},
          std::pair{GrammarKind::kGbnf,
                    "root ::= (\"yes\" | \"no\") bang{1,2} # that is all\nbang ::= [!]"},
          std::pair{GrammarKind::kEbnf,
                    "root ::= answer \"!\" | answer \"!!\"\nanswer ::=\n  \"yes\" | \"no\"\n"}}) {
        for (int i = 0; i < 10; ++i) {
            const auto grammar = compiled(grammars, kind, source);
            ASSERT_EQ(grammar->state(), Grammar::State::kReady)
                << source << ": " << grammar->error().message;
            const auto text = walk(*grammar, rng, 20);
            ASSERT_TRUE(text.has_value()) << source;
            EXPECT_TRUE(*text == "yes!" || *text == "no!" || *text == "yes!!" || *text == "no!!")
                << *text;
        }
    }
}

// llama.cpp's own grammar for JSON: recursive rules and white space.
TEST(Grammar, RecursiveGbnf) {
    Grammars& grammars = shared_grammars();
    const std::string json = R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";
    Prng rng(8);
    int complete = 0;
    for (int i = 0; i < 12; ++i) {
        const auto grammar = compiled(grammars, GrammarKind::kGbnf, json);
        ASSERT_EQ(grammar->state(), Grammar::State::kReady) << grammar->error().message;
        const auto text = walk(*grammar, rng, 150);
        if (!text) continue;
        ++complete;
        EXPECT_TRUE(Json::parse(*text).ok()) << *text;
    }
    EXPECT_GT(complete, 2);
}

TEST(Grammar, SleepsUntilItsTrigger) {
    Grammars& grammars = shared_grammars();
    const auto grammar = compiled(grammars, GrammarKind::kRegex, "ab", {7, 8});
    for (const TokenId id : {7, 7, 9, 7}) {
        EXPECT_FALSE(grammar->awake());
        ASSERT_TRUE(grammar->accept(id).ok());
    }
    ASSERT_TRUE(grammar->accept(8).ok());
    EXPECT_TRUE(grammar->awake());
    for (const TokenId id : allowed(*grammar)) EXPECT_EQ(piece(id)[0], 'a');
    // The same by replay.
    const auto replayed = compiled(grammars, GrammarKind::kRegex, "ab", {7, 8}, {7, 7, 9, 7, 8});
    ASSERT_EQ(replayed->state(), Grammar::State::kReady);
    EXPECT_EQ(allowed(*replayed), allowed(*grammar));
}

TEST(Grammar, AReplayedOutputGivesTheSameMasks) {
    Grammars& grammars = shared_grammars();
    const std::string schema =
        R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["a","b"]})";
    Prng rng(12);
    for (int i = 0; i < 20; ++i) {
        const auto grammar = compiled(grammars, GrammarKind::kJsonSchema, schema);
        std::vector<TokenId> tokens;
        walk(*grammar, rng, 1 + static_cast<int>(rng.below(12)), &tokens);
        const auto replayed = compiled(grammars, GrammarKind::kJsonSchema, schema, {}, tokens);
        ASSERT_EQ(replayed->state(), Grammar::State::kReady) << replayed->error().message;
        EXPECT_EQ(replayed->complete(), grammar->complete());
        EXPECT_EQ(allowed(*replayed), allowed(*grammar));
    }
    const auto wrong = compiled(grammars, GrammarKind::kJsonSchema, schema, {}, {1000, 1001});
    EXPECT_EQ(wrong->state(), Grammar::State::kFailed);
}

TEST(Grammar, KeepsTheLastAndForgetsTheOthers) {
    Grammars grammars(shared().engine->runtime().vocab());
    const auto regex = [](std::size_t i) { return "a{" + std::to_string(i + 1) + "}"; };
    for (std::size_t i = 0; i < Grammars::kKept + 5; ++i)
        compiled(grammars, GrammarKind::kRegex, regex(i));
    EXPECT_EQ(grammars.compiled(), Grammars::kKept + 5);
    compiled(grammars, GrammarKind::kRegex, regex(Grammars::kKept + 4));
    EXPECT_EQ(grammars.compiled(), Grammars::kKept + 5);
    compiled(grammars, GrammarKind::kRegex, regex(0));
    EXPECT_EQ(grammars.compiled(), Grammars::kKept + 6);
}

// Whoever goes first: grammars that nobody wants any more, and the engine itself.
TEST(Grammar, DroppedWhileTheWorkerIsBusy) {
    for (int i = 0; i < 6; ++i) {
        Grammars grammars(shared().engine->runtime().vocab());
        if (i % 2 == 0) compiled(grammars, GrammarKind::kRegex, "[a-z]*");
        for (int k = 0; k < 5; ++k) grammars.open(GrammarKind::kRegex, "[a-z]*b", {}, {});
        auto grammar = grammars.open(GrammarKind::kRegex, "[a-z]*", {}, {});
        if (i % 4 == 0) {
            while (grammar->state() == Grammar::State::kCompiling) std::this_thread::yield();
            grammar->prepare();
        }
    }
}

// ---------------------------------------------------------------- text/grammar.h

model::Request with_tools() {
    model::Request request;
    model::Tool weather{.name = "get_weather", .description = "", .parameters = {}, .format = {}};
    weather.parameters = *Json::parse(
        R"({"type":"object","properties":{"city":{"type":"string","maxLength":6},
            "unit":{"type":"string","enum":["C","F"]},"days":{"type":"integer","minimum":1,"maximum":9}},
            "required":["city","days"]})");
    model::Tool wait{
        .name = "wait", .description = "", .parameters = {}, .format = {}, .name_space = "agents"};
    model::Tool patch{
        .name = "patch",
        .description = "",
        .parameters = {},
        .custom = true,
        .format = *Json::parse(R"({"type":"grammar","syntax":"regex","definition":"[a-c]{1,4}"})")};
    request.tools = {weather, wait, patch};
    request.tool_choice.kind = model::ToolChoice::Kind::kRequired;
    return request;
}

struct Parsed {
    std::string content;
    std::string reasoning;
    std::vector<model::ToolCallDelta> calls;
};
Parsed parse(text::Family family, const model::Request& request, const std::string& text,
             bool in_reasoning) {
    text::ParserOptions options;
    options.tools = &request.tools;
    options.in_reasoning = in_reasoning;
    const auto parser = text::make_parser(family, options);
    std::vector<model::Event> events;
    text::Utf8Assembler characters;
    for (const char c : text) {
        const std::string whole = characters.push(std::string_view(&c, 1));
        if (!whole.empty()) parser->push(whole, events);
    }
    parser->finish(events);
    Parsed out;
    for (const model::Event& event : events) {
        if (const auto* t = std::get_if<model::TextDelta>(&event)) out.content += t->text;
        if (const auto* r = std::get_if<model::ReasoningDelta>(&event)) out.reasoning += r->text;
        if (const auto* c = std::get_if<model::ToolCallDelta>(&event)) {
            if (c->index == out.calls.size())
                out.calls.push_back(*c);
            else
                out.calls.back().arguments += c->arguments;
        }
    }
    return out;
}

text::ConstraintContext context(text::Family family, bool in_reasoning) {
    static const text::TextModel model = *text::open_gguf_text(test_model());
    return {.family = family,
            .tokenizer = model.tokenizer.get(),
            .in_reasoning = in_reasoning,
            .chat_template = "",
            .grammars = grammar_kinds()};
}

// What a model thinks first, where it does: a random walk would not find the end of a thought.
std::string thought_of(text::Family family, bool in_reasoning) {
    if (family == text::Family::kHarmony) {
        return std::string(in_reasoning ? "" : "<|channel|>analysis<|message|>") +
               "hm<|end|><|start|>assistant";
    }
    if (!in_reasoning) return "";
    return family == text::Family::kMistral ? "hm[/THINK]" : "hm</think>\n\n";
}

void feed(Grammar& grammar, const std::string& text) {
    std::vector<TokenId> ids;
    context(text::Family::kGeneric, false).tokenizer->encode(text, text::Special::kPlain, ids);
    for (const TokenId id : ids) ASSERT_TRUE(grammar.accept(id).ok()) << text;
}

const std::vector<text::Family> kForceable = {
    text::Family::kGeneric,   text::Family::kHermes,  text::Family::kQwenXml,
    text::Family::kLlama,     text::Family::kMistral, text::Family::kHarmony,
    text::Family::kDeepSeek3, text::Family::kGemma,   text::Family::kDeepSeek4};

// Llama's and Gemma's notations have none.
bool reasons(text::Family family) {
    return family != text::Family::kLlama && family != text::Family::kGemma;
}

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

// Whether all of `text` is a whole output of the grammar; if not, where it was refused.
::testing::AssertionResult is_whole(Grammar& grammar, const std::string& text) {
    std::vector<TokenId> ids;
    context(text::Family::kGeneric, false).tokenizer->encode(text, text::Special::kPlain, ids);
    std::string taken;
    for (const TokenId id : ids) {
        if (grammar.complete() || !grammar.accept(id).ok())
            return ::testing::AssertionFailure()
                   << "refused \"" << piece(id) << "\" after " << taken;
        taken += piece(id);
    }
    if (grammar.complete() || std::ranges::any_of(allowed(grammar), is_end))
        return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "not at its end after " << taken;
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
