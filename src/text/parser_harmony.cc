// Harmony (gpt-oss): every message has a channel and maybe a recipient.
//
//   <|channel|>analysis<|message|>TEXT<|end|>                       reasoning
//   <|channel|>commentary<|message|>TEXT<|end|>                     content (a preamble)
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
//   <|channel|>final<|message|>TEXT<|return|>                       content
//
// Between messages stands <|start|>assistant, maybe with the recipient. Source: the Harmony
// response format's description by its makers (openai/harmony).
#include <algorithm>
#include <array>

#include "text/parser_core.h"

namespace nereid::text {
namespace {

class HarmonyParser final : public ParserBase {
  public:
    explicit HarmonyParser(const ParserOptions& options)
        : ParserBase(options, {}), state_(options.in_reasoning ? State::kBody : State::kHeader) {
        if (options.in_reasoning) kind_ = Kind::kReasoning;
    }

  private:
    static constexpr std::array<std::string_view, 6> kMarks = {
        "<|message|>", "<|channel|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"};
    static constexpr std::size_t kMaxHeader = 512;
    enum class State : std::uint8_t { kHeader, kBody };
    enum class Kind : std::uint8_t { kContent, kReasoning, kCall };

    bool body(bool final) override {
        return state_ == State::kHeader ? header(final) : text(final);
    }

    // Text without any header is content: a model that leaves the notation is still heard.
    bool header(bool final) {
        if (header_.empty() && !rest().empty()) {
            const std::string_view ahead = rest();
            const bool marked = ahead.starts_with("<|") || ahead.starts_with(" to=");
            const bool may_be = std::string_view("<|").starts_with(ahead) ||
                                std::string_view(" to=").starts_with(ahead);
            if (!marked && may_be && !final) return false;
            if (!marked) return begin(Kind::kContent);
        }
        const std::string_view close = kMarks[0];
        const std::size_t end = rest().find(close);
        // Not before the mark could be whole: what is decided must not hang on how text comes.
        const bool too_long = end != std::string_view::npos
                                  ? end > kMaxHeader
                                  : rest().size() >= kMaxHeader + close.size();
        if (too_long) {
            // Its mark goes, or the body would end at once where it begins, for ever.
            const MarkerAt mark = find_marker(rest(), kMarks, true);
            if (mark.at == 0 && mark.marker >= 0)
                consume(kMarks[static_cast<std::size_t>(mark.marker)].size());
            return begin(Kind::kContent);
        }
        if (end == std::string_view::npos) {
            if (final) consume(rest().size());  // a header without a message says nothing
            return false;
        }
        header_ = rest().substr(0, end);
        consume(end + close.size());
        const std::size_t to = header_.find("to=");
        if (to != std::string::npos && wants_calls()) {
            const std::size_t stop = std::min(header_.find_first_of(" <\n", to), header_.size());
            std::string_view name = std::string_view(header_).substr(to + 3, stop - to - 3);
            constexpr std::string_view kFunctions = "functions.";
            if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
            if (!name.empty()) {
                calls_.begin(name, out());
                return begin(Kind::kCall);
            }
        }
        const bool analysis = header_.find("analysis") != std::string::npos;
        return begin(analysis ? Kind::kReasoning : Kind::kContent);
    }

    bool begin(Kind kind) {
        kind_ = kind;
        header_.clear();
        state_ = State::kBody;
        return true;
    }

    bool text(bool final) {
        const MarkerAt found = find_marker(rest(), kMarks, final);
        std::string_view piece = rest().substr(0, found.at);
        std::size_t keep = 0;
        if (kind_ == Kind::kCall) {  // white space around the arguments is not part of them
            if (!argument_begun_) {
                while (!piece.empty() && is_space(piece.front())) piece.remove_prefix(1);
            }
            while (!piece.empty() && is_space(piece.back())) {
                piece.remove_suffix(1);
                ++keep;
            }
            argument_begun_ = argument_begun_ || !piece.empty();
            calls_.arguments(piece, out());
            if (found.marker >= 0 || final || !argument_begun_) keep = 0;
        } else if (kind_ == Kind::kReasoning) {
            reasoning(piece);
        } else {
            content(piece);
        }
        consume(found.at - keep);
        if (found.marker < 0) return false;
        calls_.end(out());
        argument_begun_ = false;
        // The first three begin the next header; the others end the message.
        if (found.marker > 2) consume(kMarks[static_cast<std::size_t>(found.marker)].size());
        state_ = State::kHeader;
        return true;
    }

    State state_;
    Kind kind_ = Kind::kContent;
    std::string header_;
    bool argument_begun_ = false;
};

}  // namespace

std::unique_ptr<OutputParser> make_harmony_parser(const ParserOptions& options) {
    return std::make_unique<HarmonyParser>(options);
}

}  // namespace nereid::text
