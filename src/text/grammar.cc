#include "text/grammar.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "text/gbnf.h"
#include "text/grammar_calls.h"
#include "text/lark.h"

namespace nereid::text {
namespace {

using model::GrammarKind;
using model::OutputFormat;
using model::Tool;
using Choice = model::ToolChoice::Kind;

// Which tools may be called; an error when the choice names others.
Result<std::vector<const Tool*>> callable(const model::Request& request) {
    std::vector<const Tool*> tools;
    const auto& choice = request.tool_choice;
    if (choice.kind == Choice::kNone) return tools;
    const auto named = [](const Tool& tool, const std::string& name) {
        return tool.name == name || shown_name(tool.name_space, tool.name) == name;
    };
    for (const Tool& tool : request.tools) {
        const bool allowed =
            choice.allowed.empty() || std::ranges::any_of(choice.allowed, [&](const auto& name) {
                return named(tool, name);
            });
        if (!allowed || (choice.kind == Choice::kNamed && !named(tool, choice.name))) continue;
        tools.push_back(&tool);
    }
    if (choice.kind == Choice::kNamed && tools.empty()) {
        return err(
            Code::kInvalidArgument,
            fmt::format("`tool_choice` names \"{}\", which is not among `tools`.", choice.name),
            "tool_choice");
    }
    if (choice.kind == Choice::kRequired && tools.empty()) {
        return err(Code::kInvalidArgument, "`tool_choice` demands a call, but there are no tools.",
                   "tool_choice");
    }
    return tools;
}

struct ThinkMarks {
    std::string_view open;
    std::string_view close;
};
std::optional<ThinkMarks> think_marks(Family family) {
    switch (family) {
        case Family::kMistral:
            return ThinkMarks{"[THINK]", "[/THINK]"};
        case Family::kLlama:
        case Family::kGemma:
        case Family::kHarmony:
            return std::nullopt;
        default:
            return ThinkMarks{"<think>", "</think>"};
    }
}

// What may come before the answer: the rest of the reasoning that the prompt opened, or reasoning
// that the model opens itself. Empty = nothing.
std::string reasoning_rule(Lark& lark, const ConstraintContext& context) {
    if (context.family == Family::kHarmony) {
        lark.text_until("thought", "<|end|>");
        if (context.in_reasoning) {
            lark.rule("reasoning", "thought " + lark.mark("<|start|>") + " \"assistant\"");
            return "reasoning ";
        }
        lark.rule("reasoning", fmt::format("{} \"analysis\" {} thought {} \"assistant\"",
                                           lark.mark("<|channel|>"), lark.mark("<|message|>"),
                                           lark.mark("<|start|>")));
        return "reasoning? ";
    }
    const auto marks = think_marks(context.family);
    if (!marks) return "";
    // DeepSeek's parser takes line breaks alone for the notation's.
    const char* space = context.family == Family::kDeepSeek4 ? "/\\n{0,2}/" : "/[ \\n]{0,4}/";
    if (context.in_reasoning) {
        lark.text_until("thought", marks->close);
        lark.rule("reasoning", fmt::format("thought {}", space));
        return "reasoning ";
    }
    // Only a model whose template knows reasoning opens it by itself.
    if (context.chat_template.find(marks->close) == std::string_view::npos) return "";
    lark.text_until("thought", marks->close);
    lark.rule("reasoning", fmt::format("{} thought {}", lark.mark(marks->open), space));
    return "reasoning? ";
}

struct Body {
    GrammarKind kind = GrammarKind::kNone;
    std::string source;
    std::string as_lark() const {  // the right side of a rule
        switch (kind) {
            case GrammarKind::kJsonSchema:
                return "%json " + source;
            case GrammarKind::kRegex: {
                std::string escaped;
                for (std::size_t i = 0; i < source.size(); ++i) {
                    if (source[i] == '\\' && i + 1 < source.size()) {
                        escaped += source[i++];
                    } else if (source[i] == '/') {
                        escaped += '\\';
                    } else if (source[i] == '\n') {
                        escaped += "\\n";
                        continue;
                    }
                    escaped += source[i];
                }
                return "/" + escaped + "/";
            }
            default:
                return "%lark {\n" + source + "\n}";
        }
    }
};

// The field that asks for a format, as the caller knows it.
const char* format_field(model::Endpoint endpoint) {
    switch (endpoint) {
        case model::Endpoint::kResponses:
            return "text.format";
        case model::Endpoint::kMessages:
            return "output_config.format";
        default:
            return "response_format";
    }
}

Result<Body> format_body(const OutputFormat& format, const char* field) {
    using Kind = OutputFormat::Kind;
    switch (format.kind) {
        case Kind::kText:
            return Body{};
        case Kind::kJsonObject:
            return Body{GrammarKind::kJsonSchema, R"({"type":"object"})"};
        case Kind::kJsonSchema:
            if (!format.schema.is_object() && !format.schema.is_bool()) {
                return err(Code::kInvalidArgument, "`schema` must be a JSON schema.", field);
            }
            return Body{GrammarKind::kJsonSchema, format.schema.dump()};
        case Kind::kRegex:
            return Body{GrammarKind::kRegex, format.source};
        case Kind::kGrammar:
            if (format.syntax == "lark") return Body{GrammarKind::kLark, format.source};
            return Body{format.syntax == "ebnf" ? GrammarKind::kEbnf : GrammarKind::kGbnf,
                        format.source};
    }
    return Body{};
}

Result<Constraint> checked(Constraint constraint, const ConstraintContext& context) {
    if (constraint.kind == GrammarKind::kNone) return constraint;
    if ((context.grammars & static_cast<std::uint8_t>(constraint.kind)) != 0) return constraint;
    return err(Code::kUnsupported,
               fmt::format("This model cannot be held to what `{}` asks for.", constraint.param),
               constraint.param);
}

}  // namespace

bool can_force_calls(Family family, std::uint8_t grammars) {
    if ((grammars & static_cast<std::uint8_t>(GrammarKind::kLark)) != 0) return true;
    return family == Family::kDeepSeek4 &&
           (grammars & static_cast<std::uint8_t>(GrammarKind::kEbnf)) != 0;
}

Result<Constraint> constrain(const model::Request& request, const ConstraintContext& context) {
    TRY(const std::vector<const Tool*> named, callable(request));
    const Choice choice = request.tool_choice.kind;
    const bool forced = !named.empty() && (choice == Choice::kRequired || choice == Choice::kNamed);
    TRY(const Body format, format_body(request.format, format_field(request.endpoint)));
    std::vector<CallableTool> tools;
    bool any_held = false;
    for (const Tool* tool : named) {
        const bool held = tool->strict || custom_grammar(*tool).has_value();
        any_held = any_held || held;
        tools.push_back({tool, forced || held});
    }

    Constraint constraint;
    Lark lark(context);
    if (forced || (any_held && format.kind == GrammarKind::kNone)) {
        constraint.param = choice == Choice::kNamed ? "tool_choice" : "tools";
        constraint.kind = GrammarKind::kLark;
        if (lark.ebnf()) {
            // The prompt of a forced call has opened the block; text with calls in it is beyond it.
            if (!forced || !context.in_calls) return checked(std::move(constraint), context);
            constraint.kind = GrammarKind::kEbnf;
        }
        constraint.calls_only = forced;
        const std::string before = context.in_calls ? "" : reasoning_rule(lark, context);
        lark.rule("start", before + (context.in_calls ? "more" : forced ? "calls" : "free"));
        TRY_VOID(write_calls(lark, tools, context, !forced || request.parallel_tool_calls));
        constraint.source = lark.take();
        return checked(std::move(constraint), context);
    }
    if (format.kind == GrammarKind::kNone) return constraint;

    constraint.param = format_field(request.endpoint);
    const std::string before = reasoning_rule(lark, context);
    const bool calls_too = !tools.empty();
    // An engine without Lark (DeepInfer's xgrammar) is held to the format alone, and only once the
    // reasoning that the prompt opened is closed; it opens none by itself then.
    const bool lark_too = (context.grammars & static_cast<std::uint8_t>(GrammarKind::kLark)) != 0;
    const auto marks = think_marks(context.family);
    const bool triggered = !lark_too && (!context.in_reasoning || (marks && context.tokenizer));
    if (!calls_too && (before.empty() || triggered)) {
        constraint.kind = format.kind;
        constraint.source = format.source;
        if (!before.empty() && context.in_reasoning)
            context.tokenizer->encode(marks->close, Special::kParse, constraint.trigger);
        return checked(std::move(constraint), context);
    }
    if (lark.ebnf() && calls_too && format.kind == GrammarKind::kJsonSchema &&
        can_force_calls(context.family, context.grammars) && triggered) {
        // The reasoning is before the trigger.
        Lark either(context);
        constraint.kind = GrammarKind::kEbnf;
        for (CallableTool& tool : tools) tool.held = true;
        TRY_VOID(write_calls(either, tools, context, request.parallel_tool_calls));
        either.rule("start", R"("\n"? "\n"? (answer | calls))");
        either.rule("answer", format.as_lark());
        constraint.source = either.take();
        if (context.in_reasoning)
            context.tokenizer->encode(marks->close, Special::kParse, constraint.trigger);
        return checked(std::move(constraint), context);
    }
    constraint.kind = GrammarKind::kLark;
    if (lark.ebnf()) return checked(std::move(constraint), context);
    Body body = format;
    if (format.kind == GrammarKind::kGbnf || format.kind == GrammarKind::kEbnf) {
        TRY(body.source, lark_of_gbnf(format.source));
        body.kind = GrammarKind::kLark;
    }
    std::string answer;
    if (context.family == Family::kHarmony) {
        answer =
            fmt::format("{} \"final\" {} ", lark.mark("<|channel|>"), lark.mark("<|message|>"));
    }
    answer += "answer";
    if (calls_too) TRY_VOID(write_calls(lark, tools, context, request.parallel_tool_calls));
    lark.rule("start", before + (calls_too ? "(" + answer + " | calls)" : answer));
    lark.rule("answer", body.as_lark());
    constraint.source = lark.take();
    return checked(std::move(constraint), context);
}

}  // namespace nereid::text
