#include "text/output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"
#include "base/utf8.h"

namespace nereid::text {
namespace {

using model::ChoiceEnd;
using model::EndReason;
using model::Event;
using model::FinishReason;
using model::TextDelta;

// Tokens are short byte strings; id -> bytes. Id 0 is the end token.
class ToyTokenizer final : public Tokenizer {
  public:
    TokenId add(std::string bytes) {
        pieces_.push_back(std::move(bytes));
        return static_cast<TokenId>(pieces_.size() - 1);
    }
    void encode(std::string_view, Special, std::vector<TokenId>&) const override {}
    std::string_view piece(TokenId id, Special special) const override {
        if (id == 0) return special == Special::kParse ? "<end>" : "";
        return id < 0 || static_cast<std::size_t>(id) >= pieces_.size()
                   ? std::string_view()
                   : std::string_view(pieces_[static_cast<std::size_t>(id)]);
    }
    std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(pieces_.size()); }
    bool is_end(TokenId id) const override { return id == 0; }
    TokenId bos() const override { return -1; }
    bool adds_bos() const override { return false; }
    std::string_view name() const override { return "toy"; }

  private:
    std::vector<std::string> pieces_{""};
};

model::TokenOut token(TokenId id) {
    return {.id = {}, .token = id, .logprob = -static_cast<float>(id), .top = {}};
}

struct Tokens {
    std::shared_ptr<ToyTokenizer> tokenizer = std::make_shared<ToyTokenizer>();
    std::vector<model::TokenOut> list;
    void add(std::string bytes) { list.push_back(token(tokenizer->add(std::move(bytes)))); }
    void end() { list.push_back(token(0)); }
};

// The text cut into tokens of 1..max bytes, anywhere, also inside characters.
Tokens cut(Prng& rng, std::string_view text, std::size_t max) {
    Tokens tokens;
    while (!text.empty()) {
        const std::size_t size = std::min<std::size_t>(1 + rng.below(max), text.size());
        tokens.add(std::string(text.substr(0, size)));
        text.remove_prefix(size);
    }
    return tokens;
}

struct Outcome {
    std::string text;
    std::vector<model::TokenLogprob> logprobs;
    std::uint32_t tokens = 0;
    std::optional<ChoiceEnd> end;
    bool stopped = false;
};

// Feeds all tokens in steps of the given sizes, then the engine's end.
Outcome run(const Tokens& tokens, ChoiceOutput::Options options, std::size_t step,
            EndReason reason) {
    const bool with_logprobs = options.logprobs;
    ChoiceOutput output(tokens.tokenizer, std::move(options));
    Outcome outcome;
    std::vector<Event> events;
    const auto take = [&] {
        for (const Event& event : events) {
            if (const auto* delta = std::get_if<TextDelta>(&event)) {
                EXPECT_FALSE(outcome.end) << "text after the end";
                EXPECT_TRUE(is_valid_utf8(delta->text));  // A39: each delta on its own
                EXPECT_TRUE(with_logprobs || !delta->text.empty());
                outcome.text += delta->text;
                outcome.tokens += delta->tokens;
                outcome.logprobs.insert(outcome.logprobs.end(), delta->logprobs.begin(),
                                        delta->logprobs.end());
            } else if (const auto* end = std::get_if<ChoiceEnd>(&event)) {
                EXPECT_FALSE(outcome.end) << "two ends";
                outcome.end = *end;
            }
        }
        events.clear();
    };
    for (std::size_t at = 0; at < tokens.list.size(); at += step) {
        const auto last = std::min(at + step, tokens.list.size());
        outcome.stopped |= output.push({tokens.list.begin() + static_cast<std::ptrdiff_t>(at),
                                        tokens.list.begin() + static_cast<std::ptrdiff_t>(last)},
                                       events);
        take();
    }
    output.finish(reason, events);
    take();
    output.finish(reason, events);
    EXPECT_FALSE(output.push(tokens.list, events));  // A37: nothing after the end
    EXPECT_TRUE(events.empty());
    EXPECT_TRUE(output.ended());
    return outcome;
}

ChoiceOutput::Options options_with(std::vector<std::string> stop, bool logprobs = false) {
    ChoiceOutput::Options options;
    options.stop = std::move(stop);
    options.logprobs = logprobs;
    return options;
}

// ---------------------------------------------------------------- UTF-8

const std::string kMixed =
    "h\xc3\xa9llo \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb!";

TEST(Utf8Assembler, A39_EverySplitGivesTheSameText) {
    for (std::size_t a = 0; a <= kMixed.size(); ++a) {
        for (std::size_t b = a; b <= kMixed.size(); ++b) {
            Utf8Assembler assembler;
            std::string text = assembler.push(kMixed.substr(0, a));
            EXPECT_TRUE(is_valid_utf8(text));
            text += assembler.push(kMixed.substr(a, b - a));
            text += assembler.push(kMixed.substr(b));
            EXPECT_EQ(text, kMixed);
            EXPECT_EQ(assembler.finish(), "");
        }
    }
}

TEST(Utf8Assembler, A42_A43_RandomBytesEqualTheOneShotReplacement) {
    Prng rng(1);
    for (int i = 0; i < 3000; ++i) {
        std::string bytes;
        for (std::uint64_t k = rng.below(24); k > 0; --k) {
            static constexpr unsigned char kNasty[] = {0xc2, 0xe0, 0xed, 0xf0, 0xf4, 0x80,
                                                       0x9f, 0xa0, 0xbf, 0xff, 'a'};
            bytes += static_cast<char>(rng.chance(0.7) ? kNasty[rng.below(sizeof kNasty)]
                                                       : rng.below(256));
        }
        Utf8Assembler assembler;
        std::string text;
        std::string_view rest = bytes;
        while (!rest.empty()) {
            const std::size_t size = std::min<std::size_t>(1 + rng.below(4), rest.size());
            text += assembler.push(rest.substr(0, size));
            EXPECT_TRUE(is_valid_utf8(text));
            EXPECT_LE(assembler.held_bytes(), 3u);
            rest.remove_prefix(size);
        }
        text += assembler.finish();
        EXPECT_EQ(text, replace_invalid_utf8(bytes));
    }
}

// ---------------------------------------------------------------- stop strings

struct Cut {
    std::string text;
    std::optional<std::string> stop;
};
// The naive model: the whole text at once.
Cut naive(std::string_view text, const std::vector<std::string>& stops) {
    std::size_t best = std::string_view::npos;
    std::optional<std::string> by;
    for (const std::string& stop : stops) {
        const std::size_t at = stop.empty() ? std::string_view::npos : text.find(stop);
        if (at == std::string_view::npos) continue;
        if (at < best || (at == best && stop.size() < by->size())) {
            best = at;
            by = stop;
        }
    }
    return {std::string(text.substr(0, best)), by};
}

TEST(StopMatcher, A33_A34_RandomTextsAndSplitsEqualTheNaiveModel) {
    Prng rng(2);
    int stopped = 0;
    for (int i = 0; i < 20'000; ++i) {
        const auto word = [&](std::size_t max) {
            std::string s;
            for (std::uint64_t k = rng.below(max + 1); k > 0; --k)
                s += static_cast<char>('a' + rng.below(2));
            return s;
        };
        std::vector<std::string> stops;
        for (std::uint64_t k = rng.below(4); k > 0; --k) stops.push_back(word(5));
        const std::string text = word(16);
        const Cut expected = naive(text, stops);

        StopMatcher matcher(stops);
        Cut got;
        std::string_view rest = text;
        while (!rest.empty() && !got.stop) {
            const std::size_t size = std::min<std::size_t>(1 + rng.below(3), rest.size());
            const auto step = matcher.push(rest.substr(0, size));
            got.text += step.text;
            got.stop = step.stopped_by;
            EXPECT_TRUE(text.starts_with(got.text));
            rest.remove_prefix(size);
        }
        if (got.stop) {
            EXPECT_EQ(matcher.push("more").text, "");
            EXPECT_EQ(matcher.finish().text, "");
        } else {
            const auto step = matcher.finish();
            got.text += step.text;
            got.stop = step.stopped_by;
        }
        EXPECT_EQ(got.text, expected.text) << text;
        EXPECT_EQ(got.stop, expected.stop) << text;
        stopped += expected.stop.has_value() ? 1 : 0;
    }
    EXPECT_GT(stopped, 5000);
}

TEST(StopMatcher, A33_PrefixOfAStopIsHeldAndReleased) {
    StopMatcher matcher({"\n\nUser:"});
    EXPECT_EQ(matcher.push("Hello\n").text, "Hello");
    EXPECT_EQ(matcher.push("\nUs").text, "");
    EXPECT_EQ(matcher.push("ual").text, "\n\nUsual");
    EXPECT_EQ(matcher.push("\n\nUser").text, "");
    const auto step = matcher.push(": hi");
    EXPECT_EQ(step.text, "");
    EXPECT_EQ(step.stopped_by, "\n\nUser:");
}

TEST(StopMatcher, AMatchWaitsForALongerOneThatBeginsBefore) {
    StopMatcher matcher({"abcd", "bc"});
    EXPECT_FALSE(matcher.push("xabc").stopped_by);
    StopMatcher copy = matcher;
    EXPECT_EQ(matcher.push("d").stopped_by, "abcd");
    const auto step = copy.push("e");
    EXPECT_EQ(step.text, "a");
    EXPECT_EQ(step.stopped_by, "bc");
    StopMatcher at_end({"abcd", "bc"});
    EXPECT_EQ(at_end.push("xabc").text, "x");
    const auto last = at_end.finish();
    EXPECT_EQ(last.text, "a");
    EXPECT_EQ(last.stopped_by, "bc");
}

// ---------------------------------------------------------------- one choice

TEST(ChoiceOutput, A35_A39_A41_SameTextForEveryChunking) {
    Prng rng(3);
    for (int i = 0; i < 2000; ++i) {
        std::string text;
        static const std::vector<std::string> kWords = {
            "a", "b", "ab", "\xe4\xbd\xa0", "\xf0\x9f\x98\x80", " ", "\xff", "\n"};
        for (std::uint64_t k = rng.below(20); k > 0; --k) text += kWords[rng.below(kWords.size())];
        std::vector<std::string> stops;
        for (std::uint64_t k = rng.below(3); k > 0; --k)
            stops.push_back(kWords[rng.below(4)] + kWords[rng.below(4)] + kWords[rng.below(4)]);
        const Cut expected = naive(replace_invalid_utf8(text), stops);
        Tokens tokens = cut(rng, text, 4);
        tokens.end();
        const Outcome outcome =
            run(tokens, options_with(stops, rng.chance(0.5)), 1 + rng.below(4), EndReason::kStop);
        EXPECT_EQ(outcome.text, expected.text);
        ASSERT_TRUE(outcome.end);
        EXPECT_EQ(outcome.end->stop_sequence, expected.stop.value_or(""));
        EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
        if (outcome.stopped) EXPECT_TRUE(expected.stop);
    }
}

TEST(ChoiceOutput, LogprobsAreThoseOfTheEmittedText) {
    Prng rng(4);
    for (int i = 0; i < 2000; ++i) {
        std::string text;
        static const std::vector<std::string> kWords = {"a", "b", "c", "\xe4\xbd\xa0",
                                                        "\xf0\x9f\x98\x80"};
        for (std::uint64_t k = 1 + rng.below(20); k > 0; --k)
            text += kWords[rng.below(kWords.size())];
        std::vector<std::string> stops;
        if (rng.chance(0.5)) stops.push_back(kWords[rng.below(5)] + kWords[rng.below(5)]);
        Tokens tokens = cut(rng, text, 5);
        tokens.end();
        const Outcome outcome =
            run(tokens, options_with(stops, true), 1 + rng.below(4), EndReason::kStop);
        // The entries are the first tokens, in order, each with its own value (A47), up to the cut.
        std::string bytes;
        for (std::size_t k = 0; k < outcome.logprobs.size(); ++k) {
            EXPECT_EQ(outcome.logprobs[k].id, tokens.list[k].token);
            EXPECT_EQ(outcome.logprobs[k].logprob, tokens.list[k].logprob);
            EXPECT_LT(bytes.size(), outcome.text.size())
                << "no entry for a token that is cut away whole";
            bytes += outcome.logprobs[k].bytes;
        }
        EXPECT_TRUE(bytes.starts_with(outcome.text)) << "every byte of the text has its token";
    }
}

TEST(ChoiceOutput, EndTokensAreCountedButHaveNoTextAndNoLogprob) {
    Tokens tokens;
    tokens.add("Hi");
    tokens.end();
    ChoiceOutput output(tokens.tokenizer, options_with({}, true));
    std::vector<Event> events;
    EXPECT_FALSE(output.push(tokens.list, events));
    output.finish(EndReason::kStop, events);
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(std::get<TextDelta>(events[0]).text, "Hi");
    EXPECT_EQ(std::get<TextDelta>(events[0]).logprobs.size(), 1u);
    EXPECT_EQ(std::get<ChoiceEnd>(events[1]).reason, FinishReason::kStop);
    EXPECT_EQ(output.tokens(), 2u);
}

TEST(ChoiceOutput, StopTokenIdsAreNotText) {
    Tokens tokens;
    tokens.add("Hi");
    tokens.add(".");
    auto options = options_with({});
    options.stop_token_ids = {tokens.list[1].token};
    EXPECT_EQ(run(tokens, std::move(options), 1, EndReason::kStop).text, "Hi");
    EXPECT_EQ(run(tokens, options_with({}), 1, EndReason::kStop).text, "Hi.");
}

TEST(ChoiceOutput, EndReasons) {
    Tokens tokens;
    tokens.add("a\xe4\xbd");  // ends inside a character
    for (const auto& [reason, finish] : std::map<EndReason, std::optional<FinishReason>>{
             {EndReason::kStop, FinishReason::kStop},
             {EndReason::kLength, FinishReason::kLength},
             {EndReason::kPrefilled, FinishReason::kLength},
             {EndReason::kAborted, std::nullopt},
             {EndReason::kFailed, std::nullopt}}) {
        const Outcome outcome = run(tokens, options_with({}), 1, reason);
        EXPECT_EQ(outcome.text, "a\xEF\xBF\xBD");
        ASSERT_EQ(outcome.end.has_value(), finish.has_value());
        if (finish) EXPECT_EQ(outcome.end->reason, *finish);
    }
}

TEST(ChoiceOutput, A37_StopStringAsksForTheAbortOnce) {
    Tokens tokens;
    for (const char* piece : {"one", " ST", "OP", " two"}) tokens.add(piece);
    const Outcome outcome = run(tokens, options_with({"STOP"}), 4, EndReason::kAborted);
    EXPECT_TRUE(outcome.stopped);
    EXPECT_EQ(outcome.text, "one ");
    EXPECT_EQ(outcome.end->stop_sequence, "STOP");
}

// A parser that keeps everything back until the end, and calls a tool when it saw "!".
class HoldingParser final : public OutputParser {
  public:
    void push(std::string_view text, std::vector<Event>&) override { held_ += text; }
    bool finish(std::vector<Event>& out) override {
        if (!held_.empty()) out.emplace_back(TextDelta{.choice = 0, .text = held_});
        return held_.find('!') != std::string::npos;
    }

  private:
    std::string held_;
};

TEST(ChoiceOutput, A38_TextThatTheParserHoldsIsFlushedAtTheEnd) {
    for (const char* last : {"", "STOP", "!"}) {
        Tokens tokens;
        tokens.add("held");
        tokens.add(last);
        auto options = options_with({"STOP"});
        options.parser = std::make_unique<HoldingParser>();
        const Outcome outcome = run(tokens, std::move(options), 1, EndReason::kStop);
        EXPECT_EQ(outcome.text, *last == '!' ? "held!" : "held");
        EXPECT_EQ(outcome.end->reason,
                  *last == '!' ? FinishReason::kToolCalls : FinishReason::kStop);
    }
}

TEST(ChoiceOutput, DeltasCountTheirTokens) {
    Prng rng(6);
    Tokens tokens = cut(rng, kMixed, 3);
    EXPECT_EQ(run(tokens, options_with({}), 1, EndReason::kLength).tokens, tokens.list.size());
    EXPECT_EQ(run(tokens, options_with({}), 3, EndReason::kLength).tokens, tokens.list.size());
}

}  // namespace
}  // namespace nereid::text
