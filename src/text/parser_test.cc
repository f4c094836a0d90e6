#include "text/parser.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/prng.h"
#include "base/utf8.h"

namespace nereid::text {
namespace {

struct Call {
    std::string name;
    std::string arguments;
    std::string name_space = {};
    bool custom = false;
    bool operator==(const Call&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Call& c) {
    return out << c.name_space << '/' << c.name << '(' << c.arguments << ')'
               << (c.custom ? "*" : "");
}
struct Parsed {
    std::string content;
    std::string reasoning;
    std::vector<Call> calls;
    bool called = false;
    std::string order;  // kinds of events, neighbours of one kind counted once
    bool operator==(const Parsed&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Parsed& p) {
    out << "content [" << p.content << "] reasoning [" << p.reasoning << "] calls";
    for (const Call& call : p.calls) out << ' ' << call;
    return out << ' ' << p.called << ' ' << p.order;
}

const std::vector<model::Tool>& tools() {
    static const std::vector<model::Tool> all = [] {
        std::vector<model::Tool> t(4);
        t[0].name = "get_weather";
        t[0].parameters = *Json::parse(
            R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}})");
        t[1].name = "now";
        t[2].name = "apply_patch";
        t[2].custom = true;
        t[3].name = "wait";
        t[3].name_space = "agents";
        return t;
    }();
    return all;
}

void check_events(const std::vector<model::Event>& events, std::size_t from, Parsed& into) {
    const auto note = [&](char kind) {
        if (into.order.empty() || into.order.back() != kind) into.order += kind;
    };
    for (std::size_t i = from; i < events.size(); ++i) {
        if (const auto* text = std::get_if<model::TextDelta>(&events[i])) {
            EXPECT_TRUE(is_valid_utf8(text->text));
            EXPECT_FALSE(text->text.empty());
            into.content += text->text;
            note('t');
        } else if (const auto* thought = std::get_if<model::ReasoningDelta>(&events[i])) {
            EXPECT_TRUE(is_valid_utf8(thought->text));
            into.reasoning += thought->text;
            note('r');
        } else if (const auto* call = std::get_if<model::ToolCallDelta>(&events[i])) {
            EXPECT_TRUE(is_valid_utf8(call->arguments));
            if (call->index == into.calls.size()) {                       // A17, A18: sequential
                EXPECT_EQ(call->id, "c_" + std::to_string(call->index));  // A19, A21
                EXPECT_FALSE(call->name.empty());
                into.calls.push_back({call->name, "", call->name_space, call->custom});
            } else {
                EXPECT_EQ(call->index + 1, into.calls.size());
                EXPECT_TRUE(call->id.empty() && call->name.empty());
                EXPECT_FALSE(call->arguments.empty());
            }
            if (into.calls.empty()) continue;
            into.calls.back().arguments += call->arguments;
            note('c');
        } else {
            ADD_FAILURE() << "an event that no parser makes";
        }
    }
}

// `cuts`: where the text is split, ascending.
Parsed parse(Family family, const std::string& text, const std::vector<std::size_t>& cuts = {},
             ParserOptions options = {}) {
    if (options.tools == nullptr) options.tools = &tools();
    options.call_id_prefix = "c_";
    const auto parser = make_parser(family, options);
    Parsed parsed;
    std::vector<model::Event> events;
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
        const std::size_t seen = events.size();
        parser->push(std::string_view(text).substr(begin, cut - begin), events);
        check_events(events, seen, parsed);
        begin = cut;
    }
    const std::size_t seen = events.size();
    parser->push(std::string_view(text).substr(begin), events);
    parsed.called = parser->finish(events);
    check_events(events, seen, parsed);
    return parsed;
}

std::vector<std::size_t> boundaries(const std::string& text) {
    std::vector<std::size_t> all;
    for (std::size_t i = 1; i < text.size(); ++i) {
        if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) all.push_back(i);
    }
    return all;
}

// One call per chunking: whole, character by character, every split in two, random ones.
void expect_same_for_every_chunking(Family family, const std::string& text, const Parsed& whole,
                                    const ParserOptions& options = {}) {
    const auto all = boundaries(text);
    EXPECT_EQ(parse(family, text, all, options), whole) << text;
    for (const std::size_t cut : all)
        ASSERT_EQ(parse(family, text, {cut}, options), whole) << text << "\ncut at " << cut;
    Prng rng(text.size());
    for (int i = 0; i < 20; ++i) {
        std::vector<std::size_t> cuts;
        for (const std::size_t cut : all) {
            if (rng.chance(0.2)) cuts.push_back(cut);
        }
        ASSERT_EQ(parse(family, text, cuts, options), whole) << text;
    }
}

struct Case {
    std::string title;
    Family family;
    std::string text;
    std::string content;
    std::string reasoning;
    std::vector<Call> calls;
    bool in_reasoning = false;
};

const std::string kCallsBegin =
    "<\uff5ctool\u2581calls\u2581"
    "begin\uff5c>";
const std::string kCallBegin =
    "<\uff5ctool\u2581"
    "call\u2581"
    "begin\uff5c>";
const std::string kSep = "<\uff5ctool\u2581sep\uff5c>";
const std::string kCallEnd =
    "<\uff5ctool\u2581"
    "call\u2581"
    "end\uff5c>";
const std::string kCallsEnd =
    "<\uff5ctool\u2581"
    "calls\u2581"
    "end\uff5c>";

const std::vector<Case>& cases() {
    using F = Family;
    static const std::vector<Case> all = {
        {"plain",
         F::kHermes,
         "Hello \u4f60\u597d \U0001f468\u200d\U0001f469!\n\n",
         "Hello \u4f60\u597d \U0001f468\u200d\U0001f469!\n\n",
         "",
         {}},
        {"call",
         F::kHermes,
         "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"Z\u00fcrich\"}}\n</tool_call>",
         "",
         "",
         {{"get_weather", "{\"city\": \"Z\u00fcrich\"}"}}},
        {"A3: bytes are the model's own",
         F::kHermes,
         "<tool_call>{\"name\":\"get_weather\",\"arguments\":{ \"city\" :\t\"a\\u0041\\/\" "
         ",\"x\":1.0e3 }}</tool_call>",
         "",
         "",
         {{"get_weather", "{ \"city\" :\t\"a\\u0041\\/\" ,\"x\":1.0e3 }"}}},
        {"text around",
         F::kHermes,
         "Let me see.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\nDone.",
         "Let me see.\nDone.",
         "",
         {{"now", "{}"}}},
        {"A5 A6: no arguments, then another",
         F::kHermes,
         "<tool_call>{\"name\":\"now\"}</"
         "tool_call>\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"a\":1}}\n</"
         "tool_call>\n",
         "",
         "",
         {{"now", "{}"}, {"get_weather", "{\"a\":1}"}}},
        {"A5: null arguments",
         F::kHermes,
         "<tool_call>{\"name\":\"now\",\"arguments\":null}</tool_call>",
         "",
         "",
         {{"now", "{}"}}},
        {"arguments first",
         F::kHermes,
         "<tool_call>{\"arguments\":{\"a\":[1,{\"b\":\"}\"}]},\"name\":\"f\"}</tool_call>",
         "",
         "",
         {{"f", "{\"a\":[1,{\"b\":\"}\"}]}"}}},
        {"arguments as a string",
         F::kHermes,
         "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
         "",
         "",
         {{"f", "{\"a\":1}"}}},
        {"a closing tag inside a string",
         F::kHermes,
         "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call> \\\"\"}}</tool_call>x",
         "x",
         "",
         {{"f", "{\"a\":\"</tool_call> \\\"\"}"}}},
        {"brace missing",
         F::kHermes,
         "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call>ok",
         "ok",
         "",
         {{"f", "{\"a\":1}"}}},
        {"brace too many",
         F::kHermes,
         "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}}</tool_call>ok",
         "ok",
         "",
         {{"f", "{\"a\":1}"}}},
        {"cut off",
         F::kHermes,
         "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"be",
         "",
         "",
         {{"f", "{\"a\":\"be"}}},
        {"A38: no call after all",
         F::kHermes,
         "a <tool_call>hm</tool_call> <tool_cal",
         "a<tool_call>hm</tool_call> <tool_cal",
         "",
         {}},
        {"no name",
         F::kHermes,
         "<tool_call>{\"arguments\":{}}</tool_call>",
         "<tool_call>{\"arguments\":{}}</tool_call>",
         "",
         {}},
        {"A87: reasoning",
         F::kHermes,
         "\n<think>\nHm, <b>\n\n</think>\n\nYes </think>",
         "Yes </think>",
         "Hm, <b>",
         {}},
        {"A86: reasoning begun by the template",
         F::kHermes,
         "Let me think.\n</think>\n\nHi",
         "Hi",
         "Let me think.",
         {},
         true},
        {"reasoning never closed",
         F::kHermes,
         "<think>on and on </thin",
         "",
         "on and on </thin",
         {}},
        {"reasoning and a call",
         F::kHermes,
         "<think>a</think>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
         "",
         "a",
         {{"now", "{}"}}},
        {"A102: namespace",
         F::kHermes,
         "<tool_call>{\"name\":\"agents__wait\",\"arguments\":{\"s\":1}}</tool_call>",
         "",
         "",
         {{"wait", "{\"s\":1}", "agents"}}},
        {"A79: custom tool",
         F::kGeneric,
         "<tool_call>{\"name\":\"apply_patch\",\"arguments\":{\"input\":\"*** "
         "Begin\\n\u00e9\"}}</tool_call>",
         "",
         "",
         {{"apply_patch", "*** Begin\n\u00e9", "", true}}},

        {"llama",
         F::kLlama,
         "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Bern\"}}",
         "",
         "",
         {{"get_weather", "{\"city\": \"Bern\"}"}}},
        {"llama, tag and two",
         F::kLlama,
         "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"now\", "
         "\"parameters\": {}}",
         "",
         "",
         {{"f", "{\"a\": 1}"}, {"now", "{}"}}},
        {"llama, an answer in JSON",
         F::kLlama,
         " {\"name\": \"Bob\", \"parameters\": {}} ok",
         " {\"name\": \"Bob\", \"parameters\": {}} ok",
         "",
         {}},
        {"llama, a known name without parameters",
         F::kLlama,
         "{\"name\": \"now\", \"age\": 3}",
         "{\"name\": \"now\", \"age\": 3}",
         "",
         {}},
        {"llama, text", F::kLlama, "Hi <b> {\"name\"", "Hi <b> {\"name\"", "", {}},

        {"mistral, list",
         F::kMistral,
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"now\", "
         "\"arguments\": {}}]",
         "",
         "",
         {{"f", "{\"a\": 1}"}, {"now", "{}"}}},
        {"mistral, names",
         F::kMistral,
         "Ok.[TOOL_CALLS]f[ARGS]{\"a\": [1]}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}",
         "Ok.",
         "",
         {{"f", "{\"a\": [1]}"}, {"now", "{}"}}},
        {"mistral, reasoning", F::kMistral, "[THINK]hm[/THINK]Yes [x]", "Yes [x]", "hm", {}},
        {"mistral, no call", F::kMistral, "[TOOL_CALLS]\n", "[TOOL_CALLS]\n", "", {}},

        {"deepseek v3",
         F::kDeepSeek3,
         "Ok" + kCallsBegin + kCallBegin + "function" + kSep + "f\n```json\n{\"a\": \"`\"}\n```" +
             kCallEnd + "\n" + kCallBegin + "function" + kSep + "now\n```json\n{}\n```" + kCallEnd +
             kCallsEnd,
         "Ok",
         "",
         {{"f", "{\"a\": \"`\"}"}, {"now", "{}"}}},
        {"deepseek v3.1",
         F::kDeepSeek3,
         "hm</think>" + kCallsBegin + kCallBegin + "f" + kSep + "{\"a\":1}" + kCallEnd + kCallsEnd,
         "",
         "hm",
         {{"f", "{\"a\":1}"}},
         true},

        {"qwen xml",
         F::kQwenXml,
         "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew "
         "\"York\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
         "Sure.",
         "",
         {{"get_weather", "{\"city\": \"New \\\"York\\\"\", \"days\": 3}"}}},
        {"qwen xml, no parameters, no outer tag",
         F::kQwenXml,
         "<function=now>\n</function>",
         "",
         "",
         {{"now", "{}"}}},
        {"qwen xml, no call",
         F::kQwenXml,
         "<tool_call> x <function",
         "<tool_call> x <function",
         "",
         {}},
        {"qwen xml, cut off",
         F::kQwenXml,
         "<tool_call><function=f><parameter=a>1</para",
         "",
         "",
         {{"f", "{\"a\": \"1</para\""}}},

        {"gemma",
         F::kGemma,
         "<start_function_call>call:f{city:<escape>A, "
         "{b}<escape>,n:[1,true,{x:<escape><escape>}]}<end_function_call>",
         "",
         "",
         {{"f", "{\"city\": \"A, {b}\", \"n\": [1, true, {\"x\": \"\"}]}"}}},
        {"gemma 4",
         F::kGemma,
         "Ok <|tool_call>call:now{}<tool_call|><|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>",
         "Ok",
         "",
         {{"now", "{}"}, {"f", "{\"a\": \"x\"}"}}},
        {"gemma, no call",
         F::kGemma,
         "<start_function_call>call:f{a:<end_function_call>!",
         "<start_function_call>call:f{a:<end_function_call>!",
         "",
         {}},

        {"harmony",
         F::kHarmony,
         "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f <|constrain|>json<|message|> {\"a\": \"<b>\"}\n<|call|>",
         "",
         "Need it.",
         {{"f", "{\"a\": \"<b>\"}"}}},
        {"harmony, recipient in the role",
         F::kHarmony,
         "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
         "",
         "",
         {{"now", "{}"}}},
        {"harmony, preamble and answer",
         F::kHarmony,
         "<|channel|>commentary<|message|>One. "
         "<|end|><|start|>assistant<|channel|>final<|message|>Two < 3<|return|>",
         "One. Two < 3",
         "",
         {}},
        {"harmony, no header", F::kHarmony, "Just text", "Just text", "", {}},
        {"harmony, the longest header",
         F::kHarmony,
         "<|channel|>" + std::string(501, 'x') + "<|message|>Hi",
         "Hi",
         "",
         {}},
        {"harmony, a header that does not end",
         F::kHarmony,
         "<|channel|>" + std::string(600, 'x'),
         std::string(600, 'x'),
         "",
         {}},
    };
    return all;
}

TEST(Parser, A1_A2_EveryFamilyAtEverySplit) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.title);
        ParserOptions options;
        options.in_reasoning = c.in_reasoning;
        const Parsed whole = parse(c.family, c.text, {}, options);
        EXPECT_EQ(whole.content, c.content);
        EXPECT_EQ(whole.reasoning, c.reasoning);
        EXPECT_EQ(whole.calls, c.calls);
        EXPECT_EQ(whole.called, !c.calls.empty());
        expect_same_for_every_chunking(c.family, c.text, whole, options);
    }
}

TEST(Parser, WithoutToolsTheNotationIsContent) {
    const std::vector<model::Tool> none;
    for (const Case& c : cases()) {
        if (c.family == Family::kHarmony) continue;  // its channels exist without tools
        ParserOptions options;
        options.tools = &none;
        options.in_reasoning = c.in_reasoning;
        const Parsed whole = parse(c.family, c.text, {}, options);
        EXPECT_TRUE(whole.calls.empty()) << c.title;
        EXPECT_EQ(whole.reasoning, c.reasoning) << c.title;
        if (c.reasoning.empty()) EXPECT_EQ(whole.content, c.text) << c.title;
        expect_same_for_every_chunking(c.family, c.text, whole, options);
    }
}

TEST(Parser, A98_OneCallOnly) {
    ParserOptions options;
    options.one_call = true;
    const std::string text =
        "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"f\","
        "\"arguments\":{\"a\":1}}</tool_call>";
    const Parsed whole = parse(Family::kHermes, text, {}, options);
    EXPECT_EQ(whole.calls, (std::vector<Call>{{"now", "{}"}}));
    expect_same_for_every_chunking(Family::kHermes, text, whole, options);
}

// Random texts made of the notation's own pieces: nothing but the chunking may differ, and no byte
// of a text without calls is lost.
TEST(Parser, RandomMixturesAtRandomSplits) {
    const std::vector<std::string> pieces = {"<tool_call>",
                                             "</tool_call>",
                                             "{",
                                             "}",
                                             "[",
                                             "]",
                                             "\"",
                                             "\\",
                                             ":",
                                             ",",
                                             " ",
                                             "\n",
                                             "\"name\"",
                                             "\"arguments\"",
                                             "\"parameters\"",
                                             "{\"name\": \"now\", \"arguments\": ",
                                             "{}",
                                             "now",
                                             "<think>",
                                             "</think>",
                                             "[TOOL_CALLS]",
                                             "[ARGS]",
                                             "[THINK]",
                                             "<|python_tag|>",
                                             "<function=now>",
                                             "<parameter=a>",
                                             "</parameter>",
                                             "</function>",
                                             "<|channel|>",
                                             "<|message|>",
                                             "<|start|>",
                                             "<|end|>",
                                             "<|call|>",
                                             "final",
                                             "analysis",
                                             " to=functions.now",
                                             "call:now{",
                                             "<start_function_call>",
                                             "<end_function_call>",
                                             "<escape>",
                                             kCallsBegin,
                                             kCallBegin,
                                             kSep,
                                             kCallEnd,
                                             kCallsEnd,
                                             "```json",
                                             "\u00e9",
                                             "\U0001f600",
                                             "1",
                                             "text"};
    Prng rng(11);
    for (int i = 0; i < 3000; ++i) {
        const auto family = static_cast<Family>(rng.below(8));
        std::string text;
        for (std::uint64_t n = 1 + rng.below(14); n > 0; --n)
            text += pieces[rng.below(pieces.size())];
        ParserOptions options;
        options.in_reasoning = rng.chance(0.2);
        options.one_call = rng.chance(0.2);
        const Parsed whole = parse(family, text, {}, options);
        std::vector<std::size_t> cuts = boundaries(text);
        ASSERT_EQ(parse(family, text, cuts, options), whole) << name_of(family) << ": " << text;
        std::erase_if(cuts, [&](std::size_t) { return rng.chance(0.6); });
        ASSERT_EQ(parse(family, text, cuts, options), whole) << name_of(family) << ": " << text;
    }
}

TEST(Family, IsFoundInTheTemplate) {
    EXPECT_EQ(detect_family("{{ '<|im_start|>' }}"), Family::kGeneric);
    EXPECT_EQ(detect_family("... <tool_call>\\n{\"name\": <function-name>"), Family::kHermes);
    EXPECT_EQ(detect_family("<tool_call>\n<function=x>\n<parameter=y>"), Family::kQwenXml);
    EXPECT_EQ(detect_family("<|start_header_id|> <|python_tag|>"), Family::kLlama);
    EXPECT_EQ(detect_family("[AVAILABLE_TOOLS] [TOOL_CALLS]"), Family::kMistral);
    EXPECT_EQ(detect_family("<|channel|>analysis"), Family::kHarmony);
    EXPECT_EQ(detect_family("<start_function_call>"), Family::kGemma);
    EXPECT_EQ(detect_family(kCallsBegin), Family::kDeepSeek3);
    EXPECT_EQ(detect_family("<\uff5c"
                            "DSML\uff5ctool_calls>"),
              Family::kDeepSeek4);
}

TEST(Family, ReasoningThatThePromptOpened) {
    EXPECT_TRUE(opens_reasoning(Family::kHermes, "<|im_start|>assistant\n<think>\n"));
    EXPECT_FALSE(
        opens_reasoning(Family::kHermes, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    EXPECT_FALSE(opens_reasoning(Family::kLlama, "<think>"));
}

}  // namespace
}  // namespace nereid::text
