// Llama, Mistral and DeepSeek V3: calls in JSON, each family with its own marks around it.
#include <algorithm>
#include <array>

#include "text/parser_core.h"

namespace nereid::text {
namespace {

constexpr std::size_t kMaxName = 256;  // a longer one is no name

void pass(CallWriter& calls, CallReader& reader, std::vector<model::Event>& out) {
    if (!calls.open()) calls.begin(reader.name(), out);
    calls.arguments(reader.take_arguments(), out);
}

// {"name": ..., "parameters": ...} as the whole answer, or after <|python_tag|>; several are
// separated by ';'. Without the tag an object is a call only when it names one of the tools and has
// parameters: else it is an answer in JSON.
class LlamaParser final : public ParserBase {
  public:
    explicit LlamaParser(const ParserOptions& options) : ParserBase(options, {}) {}

  private:
    static constexpr std::string_view kTag = "<|python_tag|>";
    enum class State : std::uint8_t { kBegin, kCall, kBetween, kText };

    bool body(bool final) override {
        switch (state_) {
            case State::kBegin:
                return begin(final);
            case State::kCall:
                return call(final);
            case State::kBetween:
                while (!rest().empty() &&
                       (is_space(rest().front()) || rest().front() == ';' || rest().front() == ','))
                    consume(1);
                if (rest().empty()) return false;
                state_ = State::kBegin;
                return true;
            case State::kText:
                if (text_until(std::span(&kTag, 1), final) < 0) return false;
                state_ = State::kBegin;
                return true;
        }
        return false;
    }

    bool begin(bool final) {
        std::size_t at = 0;
        while (at < rest().size() && is_space(rest()[at])) ++at;
        const std::string_view ahead = rest().substr(at);
        if (ahead.empty() && !final) return false;
        if (ahead.starts_with(kTag)) {
            consume(at + kTag.size());
            tagged_ = true;
            return true;
        }
        if (!final && kTag.starts_with(ahead)) return false;
        if (ahead.starts_with('{')) {
            raw_ = rest().substr(0, at);
            if (tagged_) raw_.clear();
            consume(at);
            reader_ = {};
            state_ = State::kCall;
            return true;
        }
        state_ = State::kText;
        return true;
    }

    bool call(bool final) {
        while (!rest().empty()) {
            const char c = rest().front();
            const auto status = reader_.feed(c);
            if (status == CallReader::Status::kBroken) return give_up();
            raw_ += c;
            consume(1);
            const bool known =
                reader_.has_name() && (tagged_ || calls_.find(reader_.name()) != nullptr);
            if (known && (calls_.open() || reader_.has_arguments())) {
                pass(calls_, reader_, out());
                raw_.clear();
            }
            if (status == CallReader::Status::kDone) {
                if (!calls_.open()) return give_up();
                calls_.end(out());
                tagged_ = false;
                state_ = State::kBetween;
                return true;
            }
        }
        return final ? give_up() : false;
    }

    bool give_up() {
        if (calls_.open()) {
            calls_.end(out());
        } else {
            content(raw_);
        }
        raw_.clear();
        tagged_ = false;
        state_ = State::kText;
        return true;
    }

    State state_ = State::kBegin;
    bool tagged_ = false;
    CallReader reader_;
    std::string raw_;
};

// [TOOL_CALLS][{"name": ..., "arguments": ...}, ...], and since Mistral Small 3.2
// [TOOL_CALLS]NAME[ARGS]{...} with an optional [CALL_ID]... before the arguments.
class MistralParser final : public ParserBase {
  public:
    explicit MistralParser(const ParserOptions& options)
        : ParserBase(options, {"[THINK]", "[/THINK]"}) {}

  private:
    static constexpr std::string_view kMark = "[TOOL_CALLS]";
    enum class State : std::uint8_t { kText, kMarked, kArray, kObject, kName, kValue };

    bool body(bool final) override {
        switch (state_) {
            case State::kText:
                if (text_until(std::span(&kMark, 1), final) < 0) return false;
                consume(kMark.size());
                raw_ = kMark;
                state_ = State::kMarked;
                return true;
            case State::kMarked:
                take_space();
                if (rest().empty()) return final ? give_up() : false;
                if (rest().front() == '[' && !rest().starts_with("[ARGS]")) {
                    take(1);
                    state_ = State::kArray;
                } else if (rest().front() == '{') {
                    reader_ = {};
                    single_ = true;
                    state_ = State::kObject;
                } else {
                    state_ = State::kName;
                }
                return true;
            case State::kArray:
                return array(final);
            case State::kObject:
                return object(final);
            case State::kName:
                return name(final);
            case State::kValue:
                return value(final);
        }
        return false;
    }

    void take(std::size_t count) {
        raw_ += rest().substr(0, count);
        consume(count);
    }
    void take_space() {
        while (!rest().empty() && is_space(rest().front())) take(1);
    }

    bool array(bool final) {
        while (!rest().empty() && (is_space(rest().front()) || rest().front() == ',')) take(1);
        if (rest().empty()) return final ? give_up() : false;
        if (rest().front() == ']') {
            take(1);
            if (calls_.begun() == calls_before_) return give_up();
            return ended();
        }
        if (rest().front() != '{') return give_up();
        reader_ = {};
        single_ = false;
        state_ = State::kObject;
        return true;
    }

    bool object(bool final) {
        while (!rest().empty()) {
            const auto status = reader_.feed(rest().front());
            if (status == CallReader::Status::kBroken) return give_up();
            take(1);
            if (reader_.has_name()) {
                pass(calls_, reader_, out());
                raw_.clear();
            }
            if (status == CallReader::Status::kDone) {
                if (!calls_.open()) return give_up();
                calls_.end(out());
                if (single_) return ended();
                state_ = State::kArray;
                return true;
            }
        }
        return final ? give_up() : false;
    }

    bool name(bool final) {
        static constexpr std::array<std::string_view, 3> kEnds = {"[ARGS]", "{", "\n"};
        const MarkerAt found = find_marker(rest(), kEnds, final);
        if (found.at > kMaxName) return give_up();
        if (found.marker < 0) return final ? give_up() : false;
        std::string_view before = rest().substr(0, found.at);
        before = trimmed(before.substr(0, before.find("[CALL_ID]")));
        if (before.empty() || found.marker == 2) return give_up();
        calls_.begin(before, out());
        consume(found.at + (found.marker == 0 ? kEnds[0].size() : 0));
        raw_.clear();
        value_ = {};
        value_begun_ = false;
        state_ = State::kValue;
        return true;
    }

    bool value(bool final) {
        while (!rest().empty()) {
            const char c = rest().front();
            if (!value_begun_ && is_space(c)) {
                consume(1);
                continue;
            }
            value_begun_ = true;
            const auto step = value_.feed(c);
            if (step == ValueScanner::Step::kDoneBefore || step == ValueScanner::Step::kBroken) {
                calls_.end(out());
                return ended();
            }
            calls_.arguments(rest().substr(0, 1), out());
            consume(1);
            if (step == ValueScanner::Step::kDone) {
                calls_.end(out());
                return ended();
            }
        }
        return final ? give_up() : false;
    }

    bool ended() {
        raw_.clear();
        calls_before_ = calls_.begun();
        state_ = State::kText;
        return true;
    }

    bool give_up() {
        if (calls_.open())
            calls_.end(out());
        else
            content(raw_);
        return ended();
    }

    State state_ = State::kText;
    CallReader reader_;
    ValueScanner value_;
    bool value_begun_ = false;
    bool single_ = false;
    std::uint32_t calls_before_ = 0;
    std::string raw_;
};

// V3: <calls begin><call begin>function<sep>NAME\n```json\n{...}\n```<call end>...<calls end>
// V3.1: <call begin>NAME<sep>{...}<call end>
class DeepSeek3Parser final : public ParserBase {
  public:
    explicit DeepSeek3Parser(const ParserOptions& options)
        : ParserBase(options, {"<think>", "</think>"}) {}

  private:
    static constexpr std::array<std::string_view, 3> kMarks = {
        "<\uff5ctool\u2581"
        "calls\u2581"
        "begin\uff5c>",
        "<\uff5ctool\u2581"
        "call\u2581"
        "begin\uff5c>",
        "<\uff5ctool\u2581"
        "calls\u2581"
        "end\uff5c>"};
    static constexpr std::string_view kSeparator = "<\uff5ctool\u2581sep\uff5c>";
    static constexpr std::string_view kEnd =
        "<\uff5ctool\u2581"
        "call\u2581"
        "end\uff5c>";
    enum class State : std::uint8_t { kText, kHead, kName, kBeforeValue, kValue, kAfter };

    bool body(bool final) override {
        switch (state_) {
            case State::kText: {
                const int marker = text_until(kMarks, final);
                if (marker < 0) return false;
                raw_ = kMarks[static_cast<std::size_t>(marker)];
                consume(raw_.size());
                if (marker == 1) state_ = State::kHead;
                return true;
            }
            case State::kHead:
                return head(final);
            case State::kName:
                return name(final);
            case State::kBeforeValue:
                return before_value(final);
            case State::kValue:
                return value(final);
            case State::kAfter:
                return after(final);
        }
        return false;
    }

    bool head(bool final) {
        const MarkerAt found = find_marker(rest(), std::span(&kSeparator, 1), final);
        if (found.at > kMaxName) return give_up();
        if (found.marker < 0) return final ? give_up() : false;
        const std::string_view word = trimmed(rest().substr(0, found.at));
        raw_ += rest().substr(0, found.at + kSeparator.size());
        if (word == "function") {
            state_ = State::kName;
        } else {
            if (word.empty()) return give_up_after(found.at + kSeparator.size());
            calls_.begin(word, out());
            state_ = State::kBeforeValue;
        }
        consume(found.at + kSeparator.size());
        return true;
    }

    bool name(bool final) {
        const std::size_t line = std::min(rest().find('\n'), rest().size());
        if (line > kMaxName) return give_up();
        if (line == rest().size()) return final ? give_up() : false;
        const std::string_view word = trimmed(rest().substr(0, line));
        if (word.empty()) return give_up();
        calls_.begin(word, out());
        consume(line + 1);
        state_ = State::kBeforeValue;
        return true;
    }

    bool before_value(bool final) {
        static constexpr std::string_view kFence = "```json";
        while (!rest().empty() && is_space(rest().front())) consume(1);
        if (rest().empty()) return false;
        if (rest().starts_with(kFence)) {
            consume(kFence.size());
            return true;
        }
        if (!final && kFence.starts_with(rest())) return false;
        value_ = {};
        state_ = State::kValue;
        return true;
    }

    bool value(bool) {
        while (!rest().empty()) {
            const auto step = value_.feed(rest().front());
            const bool belongs =
                step == ValueScanner::Step::kMore || step == ValueScanner::Step::kDone;
            if (belongs) {
                calls_.arguments(rest().substr(0, 1), out());
                consume(1);
            }
            if (step != ValueScanner::Step::kMore) {
                calls_.end(out());
                state_ = State::kAfter;
                return true;
            }
        }
        return false;
    }

    // The fence's end and the call's end mark; anything else begins text again.
    bool after(bool final) {
        if (!skip_mark(kEnd, "`", final)) return false;
        state_ = State::kText;
        return true;
    }

    bool give_up_after(std::size_t count) {
        consume(count);
        return give_up();
    }
    bool give_up() {
        give_back(raw_);
        state_ = State::kText;
        return true;
    }

    State state_ = State::kText;
    ValueScanner value_;
    std::string raw_;
};

}  // namespace

std::unique_ptr<OutputParser> make_llama_parser(const ParserOptions& options) {
    return std::make_unique<LlamaParser>(options);
}
std::unique_ptr<OutputParser> make_mistral_parser(const ParserOptions& options) {
    return std::make_unique<MistralParser>(options);
}
std::unique_ptr<OutputParser> make_deepseek3_parser(const ParserOptions& options) {
    return std::make_unique<DeepSeek3Parser>(options);
}

}  // namespace nereid::text
