#include "engine/llama/grammar.h"

#include "engine/llama/grammar_testing.h"

namespace nereid::engine::llama {
namespace {

using namespace testing;

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

}  // namespace
}  // namespace nereid::engine::llama
