// Qwen's XML form and Gemma's call form: arguments are not JSON there, so they are written as JSON
// here, a parameter (Qwen) or a whole call (Gemma) at a time.
#include <array>
#include <optional>

#include "base/json.h"
#include "text/grammar.h"
#include "text/parser_core.h"

namespace nereid::text {
namespace {

// Whether the tool's schema wants text for this parameter. Text is the rule where it says nothing.
bool wants_text(const model::Tool* tool, std::string_view parameter) {
    const Json* properties = tool == nullptr ? nullptr : tool->parameters.find("properties");
    const Json* schema = properties == nullptr ? nullptr : properties->find(parameter);
    const Json* type = schema == nullptr ? nullptr : schema->find("type");
    if (type == nullptr) return false;
    if (type->is_string()) return type->as_string() == "string";
    if (!type->is_array()) return false;
    for (const Json& one : type->as_array()) {
        if (one.is_string() && one.as_string() == "string") return true;
    }
    return false;
}

std::string_view without_line_breaks_around(std::string_view text) {
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    return text;
}

// <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>; the outer
// tag may be missing.
class QwenXmlParser final : public ParserBase {
  public:
    explicit QwenXmlParser(const ParserOptions& options)
        : ParserBase(options, {"<think>", "</think>"}) {}

  private:
    static constexpr std::array<std::string_view, 2> kOpen = {"<tool_call>", "<function="};
    static constexpr std::string_view kParameterEnd = "</parameter>";
    enum class State : std::uint8_t { kText, kTag, kName, kInside, kKey, kValue, kAfter };

    bool body(bool final) override {
        switch (state_) {
            case State::kText: {
                const int marker = text_until(kOpen, final);
                if (marker < 0) return false;
                raw_ = kOpen[static_cast<std::size_t>(marker)];
                consume(raw_.size());
                state_ = marker == 0 ? State::kTag : State::kName;
                return true;
            }
            case State::kTag:
                return tag(final);
            case State::kName:
                return name(final);
            case State::kInside:
                return inside(final);
            case State::kKey:
                return key(final);
            case State::kValue:
                return value(final);
            case State::kAfter:
                return after(final);
        }
        return false;
    }

    bool tag(bool final) {
        while (!rest().empty() && is_space(rest().front())) {
            raw_ += rest().front();
            consume(1);
        }
        if (rest().starts_with(kOpen[1])) {
            raw_ += kOpen[1];
            consume(kOpen[1].size());
            state_ = State::kName;
            return true;
        }
        if (!final && kOpen[1].starts_with(rest())) return false;
        return give_up();
    }

    bool name(bool final) {
        const std::size_t end = rest().find_first_of(">\n<");
        if (end == std::string_view::npos) return final ? give_up() : false;
        const std::string_view word = trimmed(rest().substr(0, end));
        if (rest()[end] != '>' || word.empty()) return give_up();
        calls_.begin(word, out());
        tool_ = calls_.find(word);
        raw_.clear();
        first_ = true;
        consume(end + 1);
        state_ = State::kInside;
        return true;
    }

    bool inside(bool final) {
        static constexpr std::array<std::string_view, 3> kMarks = {"<parameter=", "</function>",
                                                                   "</tool_call>"};
        const MarkerAt found = find_marker(rest(), kMarks, final);
        consume(found.at);  // nothing but white space belongs here
        if (found.marker < 0) return false;
        if (found.marker == 0) {
            consume(kMarks[0].size());
            state_ = State::kKey;
            return true;
        }
        if (found.marker == 1) consume(kMarks[1].size());
        return close();
    }

    bool key(bool final) {
        const std::size_t end = rest().find('>');
        if (end == std::string_view::npos) {
            if (final) consume(rest().size());
            return final ? close() : false;
        }
        key_ = trimmed(rest().substr(0, end));
        consume(end + 1);
        state_ = State::kValue;
        return true;
    }

    bool value(bool final) {
        const std::size_t end = rest().find(kParameterEnd);
        if (end == std::string_view::npos && !final) return false;
        const std::size_t size = std::min(end, rest().size());
        write(without_line_breaks_around(rest().substr(0, size)));
        consume(end == std::string_view::npos ? size : end + kParameterEnd.size());
        state_ = State::kInside;
        return true;
    }

    void write(std::string_view text) {
        std::string member = first_ ? "{" : ", ";
        first_ = false;
        append_json_string(member, key_);
        member += ": ";
        if (is_json(text))
            member += trimmed(text);
        else
            append_json_string(member, text);
        calls_.arguments(member, out());
    }

    // Text stays text, but for a grammar's input, which a grammar writes as a JSON string.
    bool is_json(std::string_view text) const {
        const bool custom = tool_ != nullptr && (tool_->custom || custom_grammar(*tool_));
        if (!custom && wants_text(tool_, key_)) return false;
        const auto parsed = Json::parse(text);
        return parsed.ok() &&
               (!custom || (parsed->is_string() && custom_grammar(*tool_).has_value()));
    }

    bool close() {
        calls_.arguments(first_ ? "{}" : "}", out());
        calls_.end(out());
        state_ = State::kAfter;
        return true;
    }

    bool after(bool final) {
        if (!skip_mark("</tool_call>", {}, final)) return false;
        state_ = State::kText;
        return true;
    }

    bool give_up() {
        give_back(raw_);
        state_ = State::kText;
        return true;
    }

    State state_ = State::kText;
    const model::Tool* tool_ = nullptr;
    std::string key_;
    bool first_ = true;
    std::string raw_;
};

// Gemma's values: {key:<escape>text<escape>,n:1,list:[true]}. As JSON, or nothing.
class GemmaValues {
  public:
    GemmaValues(std::string_view text, std::string_view quote) : text_(text), quote_(quote) {}
    std::optional<std::string> object() {
        if (!value(0)) return std::nullopt;
        space();
        if (at_ != text_.size() || !json_.starts_with('{')) return std::nullopt;
        return std::move(json_);
    }

  private:
    void space() {
        while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    }
    bool take(char c) {
        space();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    bool value(int depth) {
        space();
        if (depth > 64 || at_ >= text_.size()) return false;
        if (text_.substr(at_).starts_with(quote_)) return text(quote_);
        if (text_[at_] == '{') return members(depth);
        if (text_[at_] == '[') return elements(depth);
        const std::size_t end = std::min(text_.find_first_of(",]}", at_), text_.size());
        const std::string_view word = trimmed(text_.substr(at_, end - at_));
        if (word.empty()) return false;
        at_ = end;
        if (Json::parse(word).ok())
            json_ += word;
        else
            append_json_string(json_, word);  // text that lacks its quotes
        return true;
    }

    bool text(std::string_view quote) {
        const std::size_t end = text_.find(quote, at_ + quote.size());
        if (end == std::string_view::npos) return false;
        append_json_string(json_, text_.substr(at_ + quote.size(), end - at_ - quote.size()));
        at_ = end + quote.size();
        return true;
    }

    bool members(int depth) {
        ++at_;
        json_ += '{';
        if (take('}')) {
            json_ += '}';
            return true;
        }
        while (true) {
            space();
            if (text_.substr(at_).starts_with(quote_)) {
                if (!text(quote_)) return false;
            } else {
                const std::size_t colon = text_.find(':', at_);
                if (colon == std::string_view::npos) return false;
                append_json_string(json_, trimmed(text_.substr(at_, colon - at_)));
                at_ = colon;
            }
            if (!take(':')) return false;
            json_ += ": ";
            if (!value(depth + 1)) return false;
            if (take('}')) break;
            if (!take(',')) return false;
            json_ += ", ";
        }
        json_ += '}';
        return true;
    }

    bool elements(int depth) {
        ++at_;
        json_ += '[';
        if (take(']')) {
            json_ += ']';
            return true;
        }
        while (true) {
            if (!value(depth + 1)) return false;
            if (take(']')) break;
            if (!take(',')) return false;
            json_ += ", ";
        }
        json_ += ']';
        return true;
    }

    std::string_view text_;
    std::string_view quote_;
    std::size_t at_ = 0;
    std::string json_;
};

// <start_function_call>call:NAME{...}<end_function_call> (FunctionGemma, quote <escape>), or
// <|tool_call>call:NAME{...}<tool_call|> (Gemma 4, quote <|"|>).
class GemmaParser final : public ParserBase {
  public:
    explicit GemmaParser(const ParserOptions& options) : ParserBase(options, {}) {}

  private:
    static constexpr std::array<std::string_view, 2> kOpen = {"<start_function_call>",
                                                              "<|tool_call>"};
    static constexpr std::array<std::string_view, 2> kClose = {"<end_function_call>",
                                                               "<tool_call|>"};
    static constexpr std::array<std::string_view, 2> kQuote = {"<escape>", "<|\"|>"};

    bool body(bool final) override {
        if (form_ < 0) {
            form_ = text_until(kOpen, final);
            if (form_ < 0) return false;
            consume(kOpen[form()].size());
            return true;
        }
        const std::string_view close = kClose[form()];
        const std::size_t end = rest().find(close);
        if (end == std::string_view::npos && !final) return false;
        const std::size_t size = std::min(end, rest().size());
        const std::string_view call = rest().substr(0, size);
        if (!read(trimmed(call))) {
            content(kOpen[form()]);
            content(call);
            if (end != std::string_view::npos) content(close);
        }
        consume(end == std::string_view::npos ? size : end + close.size());
        form_ = -1;
        return true;
    }

    bool read(std::string_view call) {
        constexpr std::string_view kCall = "call:";
        if (!call.starts_with(kCall)) return false;
        const std::size_t brace = call.find('{');
        if (brace == std::string_view::npos) return false;
        const std::string_view name = trimmed(call.substr(kCall.size(), brace - kCall.size()));
        const std::string_view values = call.substr(brace);
        // A call that a grammar forced has plain JSON.
        const auto json = Json::parse(values).ok() ? std::optional(std::string(values))
                                                   : GemmaValues(values, kQuote[form()]).object();
        if (name.empty() || !json) return false;
        calls_.begin(name, out());
        calls_.arguments(*json, out());
        calls_.end(out());
        return true;
    }

    std::size_t form() const { return static_cast<std::size_t>(form_); }
    int form_ = -1;  // index of the marks in use; -1 = outside a call
};

}  // namespace

std::unique_ptr<OutputParser> make_qwen_xml_parser(const ParserOptions& options) {
    return std::make_unique<QwenXmlParser>(options);
}
std::unique_ptr<OutputParser> make_gemma_parser(const ParserOptions& options) {
    return std::make_unique<GemmaParser>(options);
}

}  // namespace nereid::text
