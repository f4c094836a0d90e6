// What the tests of grammars share: the model's vocabulary, random walks through a grammar, and
// what is asked of it in each family's notation. Tests only.
#pragma once

#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/prng.h"
#include "engine/llama/grammar.h"
#include "engine/llama/test_engine.h"
#include "text/grammar.h"
#include "text/parser.h"

namespace nereid::engine::llama::testing {

using model::GrammarKind;

inline Harness& shared() {
    static Harness harness{small_options()};
    return harness;
}

inline const std::string& piece(TokenId id) {
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

inline bool is_end(TokenId id) {
    return llama_vocab_is_eog(shared().engine->runtime().vocab(), id);
}

// Reading the vocabulary takes a while: once for most tests.
inline Grammars& shared_grammars() {
    static Grammars grammars(shared().engine->runtime().vocab());
    return grammars;
}

inline std::shared_ptr<Grammar> compiled(Grammars& grammars, GrammarKind kind,
                                         const std::string& source,
                                         std::vector<TokenId> trigger = {},
                                         std::vector<TokenId> replay = {}) {
    auto grammar = grammars.open(kind, source, std::move(trigger), std::move(replay));
    while (grammar->state() == Grammar::State::kCompiling) std::this_thread::yield();
    return grammar;
}

inline std::vector<TokenId> allowed(Grammar& grammar) {
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
inline std::optional<std::string> walk(Grammar& grammar, Prng& rng, int most,
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

inline model::Request with_tools() {
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
inline Parsed parse(text::Family family, const model::Request& request, const std::string& text,
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

inline text::ConstraintContext context(text::Family family, bool in_reasoning) {
    static const text::TextModel model = *text::open_gguf_text(test_model());
    return {.family = family,
            .tokenizer = model.tokenizer.get(),
            .in_reasoning = in_reasoning,
            .chat_template = "",
            .grammars = grammar_kinds()};
}

// What a model thinks first, where it does: a random walk would not find the end of a thought.
inline std::string thought_of(text::Family family, bool in_reasoning) {
    if (family == text::Family::kHarmony) {
        return std::string(in_reasoning ? "" : "<|channel|>analysis<|message|>") +
               "hm<|end|><|start|>assistant";
    }
    if (!in_reasoning) return "";
    return family == text::Family::kMistral ? "hm[/THINK]" : "hm</think>\n\n";
}

inline void feed(Grammar& grammar, const std::string& text) {
    std::vector<TokenId> ids;
    context(text::Family::kGeneric, false).tokenizer->encode(text, text::Special::kPlain, ids);
    for (const TokenId id : ids) ASSERT_TRUE(grammar.accept(id).ok()) << text;
}

inline const std::vector<text::Family> kForceable = {
    text::Family::kGeneric,   text::Family::kHermes,  text::Family::kQwenXml,
    text::Family::kLlama,     text::Family::kMistral, text::Family::kHarmony,
    text::Family::kDeepSeek3, text::Family::kGemma,   text::Family::kDeepSeek4};

// Llama's and Gemma's notations have none.
inline bool reasons(text::Family family) {
    return family != text::Family::kLlama && family != text::Family::kGemma;
}

// Whether all of `text` is a whole output of the grammar; if not, where it was refused.
inline ::testing::AssertionResult is_whole(Grammar& grammar, const std::string& text) {
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

}  // namespace nereid::engine::llama::testing
