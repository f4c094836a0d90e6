// Lark: rules of one grammar of llguidance, written as they come. For an engine that takes EBNF and
// no Lark (DeepInfer's xgrammar) the same rules in that notation, as far as it goes: literals,
// other rules, groups, `?`, `*`, `|`, and `%json SCHEMA` as the whole of a rule, which the engine's
// agent puts into rules of its own (python/nereid_deepinfer/ebnf.py). Internal to the grammars of
// room text.
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
    explicit Lark(const ConstraintContext& context)
        : context_(context), ebnf_(writes_ebnf(context)) {}

    static bool writes_ebnf(const ConstraintContext& context) {
        const auto takes = [&](model::GrammarKind kind) {
            return (context.grammars & static_cast<std::uint8_t>(kind)) != 0;
        };
        return takes(model::GrammarKind::kEbnf) && !takes(model::GrammarKind::kLark);
    }
    bool ebnf() const { return ebnf_; }
    bool is_control(std::string_view text) const {
        return !ebnf_ && context_.tokenizer != nullptr &&
               control_token(*context_.tokenizer, text) >= 0;
    }
    // A marker of the notation: its token where it is a control token, else its text.
    std::string mark(std::string_view text) const {
        if (!is_control(text)) return lark_literal(text);
        return fmt::format("<[{}]>", control_token(*context_.tokenizer, text));
    }
    void rule(std::string_view name, std::string_view body) {
        if (ebnf_)
            source_ += fmt::format("{} ::= {}\n", name == "start" ? "root" : name, body);
        else
            source_ += fmt::format("{}: {}\n", name, body);
    }
    // Any text up to and with the marker.
    void text_until(std::string_view name, std::string_view marker) {
        if (ebnf_) {
            write_ebnf_until(name, marker);
        } else if (is_control(marker)) {
            rule(name, fmt::format("{}_text {}", name, mark(marker)));
            rule(fmt::format("{}_text", name), "/(?s:.*)/");
        } else {
            source_ += fmt::format("{}[suffix={}]: /(?s:.*)/\n", name, lark_literal(marker));
        }
    }
    std::string take() { return std::move(source_); }

  private:
    void write_ebnf_until(std::string_view name, std::string_view marker);  // grammar_ebnf.cc

    const ConstraintContext& context_;
    bool ebnf_ = false;
    std::string source_;
    std::string until_;  // the last marker of write_ebnf_until: its rules are written once
};

}  // namespace nereid::text
