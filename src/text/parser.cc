#include "text/parser.h"

#include <array>

#include "base/check.h"
#include "text/parser_core.h"
#include "text/recipe/recipe.h"

namespace nereid::text {
namespace {

constexpr ParserBase::ReasoningMarks kThink{"<think>", "</think>"};

// Hermes and the generic form: <tool_call>{"name": ..., "arguments": ...}</tool_call>.
class TaggedParser final : public ParserBase {
  public:
    explicit TaggedParser(const ParserOptions& options) : ParserBase(options, kThink) {}

  private:
    static constexpr std::string_view kOpen = "<tool_call>";
    static constexpr std::string_view kClose = "</tool_call>";
    enum class State : std::uint8_t { kText, kCall, kAfter };

    bool body(bool final) override {
        switch (state_) {
            case State::kText:
                if (text_until(std::span(&kOpen, 1), final) < 0) return false;
                consume(kOpen.size());
                raw_ = kOpen;
                reader_ = {};
                state_ = State::kCall;
                return true;
            case State::kCall:
                return call(final);
            case State::kAfter:
                return after(final);
        }
        return false;
    }

    bool call(bool final) {
        while (!rest().empty()) {
            if (!reader_.in_string() && rest().front() == '<') {
                if (!final && kClose.size() > rest().size() && kClose.starts_with(rest()))
                    return false;
                return give_up();
            }
            const char c = rest().front();
            const auto status = reader_.feed(c);
            if (status == CallReader::Status::kBroken) return give_up();
            if (!calls_.open()) raw_ += c;
            consume(1);
            forward();
            if (status == CallReader::Status::kDone) {
                if (!calls_.open()) return give_up();
                calls_.end(out());
                state_ = State::kAfter;
                return true;
            }
        }
        return final ? give_up() : false;
    }

    void forward() {
        if (!reader_.has_name()) return;
        if (!calls_.open()) {
            calls_.begin(reader_.name(), out());
            raw_.clear();
        }
        calls_.arguments(reader_.take_arguments(), out());
    }

    // What was begun as a call ends as one, with the arguments it has; else it was text.
    bool give_up() {
        if (calls_.open()) {
            calls_.end(out());
            state_ = State::kAfter;
            return true;
        }
        give_back(raw_);
        state_ = State::kText;
        return true;
    }

    // Stray brackets between the call and its closing tag are the model's slips.
    bool after(bool final) {
        if (!skip_mark(kClose, "}", final)) return false;
        state_ = State::kText;
        return true;
    }

    State state_ = State::kText;
    CallReader reader_;
    std::string raw_;  // of a call that has no name yet
};

}  // namespace

std::unique_ptr<OutputParser> make_parser(Family family, const ParserOptions& options) {
    switch (family) {
        case Family::kGeneric:
        case Family::kHermes:
            return std::make_unique<TaggedParser>(options);
        case Family::kQwenXml:
            return make_qwen_xml_parser(options);
        case Family::kLlama:
            return make_llama_parser(options);
        case Family::kMistral:
            return make_mistral_parser(options);
        case Family::kGemma:
            return make_gemma_parser(options);
        case Family::kHarmony:
            return make_harmony_parser(options);
        case Family::kDeepSeek3:
            return make_deepseek3_parser(options);
        case Family::kDeepSeek4: {
            // A model of this family does not open without the library (gguf/open.cc).
            auto recipe = Recipe::load();
            CHECK_MSG(recipe.ok(), recipe.error().message);
            return (*recipe)->parser(options);
        }
    }
    return make_plain_parser(options.choice);
}

bool opens_reasoning(Family family, std::string_view prompt) {
    while (!prompt.empty() && is_space(prompt.back())) prompt.remove_suffix(1);
    switch (family) {
        case Family::kMistral:
            return prompt.ends_with("[THINK]");
        case Family::kHarmony:
            return prompt.ends_with("<|channel|>analysis<|message|>");
        case Family::kLlama:
        case Family::kGemma:
            return false;
        default:
            return prompt.ends_with("<think>");
    }
}

bool opens_calls(Family family, std::string_view prompt) {
    if (family != Family::kDeepSeek4) return false;
    static constexpr std::string_view kMark =
        "\uff5c"
        "DSML\uff5c";
    return prompt.ends_with(std::string(kMark) + "tool_calls>\n") ||  // V4
           prompt.ends_with(std::string(kMark) + " calls>\n");        // V4.1
}

namespace {
std::span<const std::string_view> markers_of(Family family) {
    static constexpr std::array<std::string_view, 4> kTagged = {"<tool_call>", "</tool_call>",
                                                                "<think>", "</think>"};
    static constexpr std::array<std::string_view, 1> kLlama = {"<|python_tag|>"};
    static constexpr std::array<std::string_view, 5> kMistral = {
        "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"};
    static constexpr std::array<std::string_view, 6> kGemma = {
        "<start_function_call>", "<end_function_call>", "<escape>",
        "<|tool_call>",          "<tool_call|>",        "<|\"|>"};
    static constexpr std::array<std::string_view, 6> kHarmony = {
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"};
    static constexpr std::array<std::string_view, 7> kDeepSeek = {
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "<\uff5ctool\u2581sep\uff5c>",
        "<\uff5ctool\u2581call\u2581end\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
        "<think>",
        "</think>"};
    static constexpr std::array<std::string_view, 3> kDsml = {"\uff5cDSML\uff5c", "<think>",
                                                              "</think>"};
    switch (family) {
        case Family::kGeneric:
        case Family::kHermes:
        case Family::kQwenXml:
            return kTagged;
        case Family::kLlama:
            return kLlama;
        case Family::kMistral:
            return kMistral;
        case Family::kGemma:
            return kGemma;
        case Family::kHarmony:
            return kHarmony;
        case Family::kDeepSeek3:
            return kDeepSeek;
        case Family::kDeepSeek4:
            return kDsml;
    }
    return {};
}
}  // namespace

TokenId control_token(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<TokenId> ids;
    tokenizer.encode(text, Special::kParse, ids);
    const bool one = ids.size() == 1 && tokenizer.piece(ids[0], Special::kPlain).empty() &&
                     tokenizer.piece(ids[0], Special::kParse) == text;
    return one ? ids[0] : -1;
}

std::vector<TokenId> marker_tokens(Family family, const Tokenizer& tokenizer) {
    std::vector<TokenId> ids;
    for (const std::string_view marker : markers_of(family)) {
        const TokenId id = control_token(tokenizer, marker);
        if (id >= 0 && !tokenizer.is_end(id)) ids.push_back(id);
    }
    return ids;
}

}  // namespace nereid::text
