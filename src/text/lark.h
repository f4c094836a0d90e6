// Lark: rules of one grammar of llguidance, written as they come. Internal to the grammars of room
// text.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/json.h"
#include "text/grammar.h"
#include "text/parser.h"

namespace nereid::text {

inline std::string lark_literal(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

class Lark {
  public:
    explicit Lark(const ConstraintContext& context) : context_(context) {}

    bool is_control(std::string_view text) const {
        return context_.tokenizer != nullptr && control_token(*context_.tokenizer, text) >= 0;
    }
    // A marker of the notation: its token where it is a control token, else its text.
    std::string mark(std::string_view text) const {
        const TokenId id =
            context_.tokenizer == nullptr ? -1 : control_token(*context_.tokenizer, text);
        return id >= 0 ? fmt::format("<[{}]>", id) : lark_literal(text);
    }
    void rule(std::string_view name, std::string_view body) {
        source_ += fmt::format("{}: {}\n", name, body);
    }
    // Any text up to and with the marker.
    void text_until(std::string_view name, std::string_view marker) {
        if (is_control(marker)) {
            rule(name, fmt::format("{}_text {}", name, mark(marker)));
            rule(fmt::format("{}_text", name), "/(?s:.*)/");
        } else {
            source_ += fmt::format("{}[suffix={}]: /(?s:.*)/\n", name, lark_literal(marker));
        }
    }
    std::string take() { return std::move(source_); }

  private:
    const ConstraintContext& context_;
    std::string source_;
};

}  // namespace nereid::text
