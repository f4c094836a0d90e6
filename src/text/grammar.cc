#include "text/grammar.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "text/gbnf.h"
#include "text/parser.h"

namespace nereid::text {
namespace {

using model::GrammarKind;
using model::OutputFormat;
using model::Tool;
using Choice = model::ToolChoice::Kind;

std::string literal(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

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

// The schema of a call's arguments, always of an object.
Result<Json> arguments_schema(const Tool& tool) {
    Json schema;
    if (tool.custom) {
        Json input(Json::Object{{"type", "string"}});
        const Json* grammar = tool.format.find("grammar");
        const Json& format = grammar != nullptr ? *grammar : tool.format;
        const Json* syntax = format.find("syntax");
        const Json* definition = format.find("definition");
        if (syntax != nullptr && syntax->is_string() && syntax->as_string() == "regex" &&
            definition != nullptr && definition->is_string()) {
            input.set("pattern", "^(?:" + definition->as_string() + ")$");
        }
        schema = Json(Json::Object{{"type", "object"},
                                   {"properties", Json::Object{{"input", std::move(input)}}},
                                   {"required", Json::Array{"input"}},
                                   {"additionalProperties", false}});
    } else if (tool.parameters.is_null()) {
        schema = Json(Json::Object{{"type", "object"}, {"properties", Json::Object{}}});
    } else if (!tool.parameters.is_object()) {
        return err(Code::kInvalidArgument,
                   fmt::format("The parameters of the tool \"{}\" are no schema.", tool.name),
                   "tools");
    } else {
        schema = tool.parameters;
        if (schema.find("type") == nullptr && schema.find("$ref") == nullptr)
            schema.set("type", "object");
    }
    // ffi/guidance reads both: the first in what it says of keywords it cannot enforce.
    schema.set("$comment", fmt::format("tool {}", tool.name));
    if (!tool.strict && !tool.custom)
        schema.set("x-guidance", Json(Json::Object{{"lenient", true}}));
    return schema;
}

// Rules of one grammar in Lark, written as they come.
class Lark {
  public:
    explicit Lark(const ConstraintContext& context) : context_(context) {}

    // A marker of the notation: its token where it is a control token, else its text.
    std::string mark(std::string_view text) const {
        const TokenId id =
            context_.tokenizer == nullptr ? -1 : control_token(*context_.tokenizer, text);
        return id >= 0 ? fmt::format("<[{}]>", id) : literal(text);
    }
    bool is_control(std::string_view text) const {
        return context_.tokenizer != nullptr && control_token(*context_.tokenizer, text) >= 0;
    }
    void rule(std::string_view name, std::string_view body) {
        source_ += fmt::format("{}: {}\n", name, body);
    }
    // Text up to and with the marker.
    void text_until(std::string_view name, std::string_view marker) {
        if (is_control(marker)) {
            rule(name, fmt::format("{}_text {}", name, mark(marker)));
            rule(fmt::format("{}_text", name), "/(?s:.*)/");
        } else {
            source_ += fmt::format("{}[suffix={}]: /(?s:.*)/\n", name, literal(marker));
        }
    }
    void raw(std::string_view text) { source_ += text; }
    std::string take() { return std::move(source_); }

  private:
    const ConstraintContext& context_;
    std::string source_;
};

constexpr std::string_view kToolCall = "<tool_call>";

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
    if (context.in_reasoning) {
        lark.text_until("thought", marks->close);
        lark.rule("reasoning", "thought /[ \\n]{0,4}/");
        return "reasoning ";
    }
    // Only a model whose template knows reasoning opens it by itself.
    if (context.chat_template.find(marks->close) == std::string_view::npos) return "";
    lark.text_until("thought", marks->close);
    lark.rule("reasoning", fmt::format("{} thought /[ \\n]{{0,4}}/", lark.mark(marks->open)));
    return "reasoning? ";
}

// <parameter=KEY>VALUE</parameter> for every property, in the schema's order.
std::string qwen_parameters(Lark& lark, const Json& schema, std::size_t index) {
    std::string body;
    const Json* properties = schema.find("properties");
    if (properties == nullptr || !properties->is_object()) return body;
    const Json* required = schema.find("required");
    std::size_t number = 0;
    for (const auto& [key, property] : properties->as_object()) {
        const std::string name = fmt::format("p{}_{}", index, number++);
        const Json* type = property.find("type");
        const bool text = type != nullptr && type->is_string() && type->as_string() == "string" &&
                          property.find("enum") == nullptr;
        lark.rule(name, fmt::format("{} {}", literal("<parameter=" + key + ">\n"), name + "v"));
        if (text) {
            lark.text_until(name + "v", "\n</parameter>\n");
        } else if (const Json* values = property.find("enum");
                   values != nullptr && values->is_array() && !values->as_array().empty()) {
            std::string any;
            for (const Json& value : values->as_array()) {
                if (!any.empty()) any += " | ";
                any += literal(value.is_string() ? value.as_string() : value.dump());
            }
            lark.rule(name + "v", fmt::format("({}) \"\\n</parameter>\\n\"", any));
        } else {
            Json value = property.is_object() ? property : Json(Json::Object{});
            if (const Json* lenient = schema.find("x-guidance")) value.set("x-guidance", *lenient);
            if (const Json* comment = schema.find("$comment")) value.set("$comment", *comment);
            for (const char* definitions : {"$defs", "definitions"}) {
                if (const Json* held = schema.find(definitions)) value.set(definitions, *held);
            }
            lark.rule(name + "v", fmt::format("%json {} \"\\n</parameter>\\n\"", value.dump()));
        }
        bool needed = false;
        if (required != nullptr && required->is_array()) {
            needed = std::ranges::any_of(required->as_array(), [&k = key](const Json& one) {
                return one.is_string() && one.as_string() == k;
            });
        }
        body += " " + name + (needed ? "" : "?");
    }
    return body;
}

// The rule `calls`: one call or several in the family's notation. Returns false for a family whose
// calls cannot be forced.
Result<bool> write_calls(Lark& lark, const std::vector<const Tool*>& tools,
                         const ConstraintContext& context, bool several) {
    std::string one;
    for (std::size_t i = 0; i < tools.size(); ++i) {
        TRY(const Json schema, arguments_schema(*tools[i]));
        const std::string name = shown_name(tools[i]->name_space, tools[i]->name);
        const std::string arguments = fmt::format("a{}", i);
        std::string call;
        switch (context.family) {
            case Family::kGeneric:
            case Family::kHermes:
                call = fmt::format("{} d{}", lark.mark(kToolCall), i);
                lark.rule(
                    fmt::format("d{}", i),
                    fmt::format("{} {} \"}}\\n\" {}",
                                literal("\n{\"name\": " + literal(name) + ", \"arguments\": "),
                                arguments, lark.mark("</tool_call>")));
                break;
            case Family::kLlama:
                call = fmt::format("{} {} \"}}\"",
                                   literal("{\"name\": " + literal(name) + ", \"parameters\": "),
                                   arguments);
                break;
            case Family::kMistral:
                if (lark.is_control("[ARGS]")) {
                    call = fmt::format("{} {} {} {}", lark.mark("[TOOL_CALLS]"), literal(name),
                                       lark.mark("[ARGS]"), arguments);
                } else {
                    call = fmt::format("{} {} \"}}\"",
                                       literal("{\"name\": " + literal(name) + ", \"arguments\": "),
                                       arguments);
                }
                break;
            case Family::kHarmony:
                call = fmt::format("{} {} {} \"json\" {} {}", lark.mark("<|channel|>"),
                                   literal("commentary to=functions." + name + " "),
                                   lark.mark("<|constrain|>"), lark.mark("<|message|>"), arguments);
                break;
            case Family::kDeepSeek3: {
                const bool first = context.chat_template.find("```json") != std::string_view::npos;
                const std::string sep = lark.mark("<\uff5ctool\u2581sep\uff5c>");
                const std::string begin = lark.mark(
                    "<\uff5ctool\u2581"
                    "call\u2581"
                    "begin\uff5c>");
                const std::string end = lark.mark(
                    "<\uff5ctool\u2581"
                    "call\u2581"
                    "end\uff5c>");
                call = first ? fmt::format("{} \"function\" {} {} {} \"\\n```\" {}", begin, sep,
                                           literal(name + "\n```json\n"), arguments, end)
                             : fmt::format("{} {} {} {} {}", begin, literal(name), sep, arguments,
                                           end);
                break;
            }
            case Family::kQwenXml:
                call = fmt::format("{} {}{} \"</function>\\n\" {}", lark.mark("<tool_call>"),
                                   literal("\n<function=" + name + ">\n"),
                                   qwen_parameters(lark, schema, i), lark.mark("</tool_call>"));
                break;
            case Family::kGemma:
            case Family::kDeepSeek4:
                return false;
        }
        lark.rule(fmt::format("c{}", i), call);
        if (context.family != Family::kQwenXml) lark.rule(arguments, "%json " + schema.dump());
        one += fmt::format("{}c{}", one.empty() ? "" : " | ", i);
    }
    lark.rule("one", one);
    std::string before;
    std::string between = " ";
    std::string after;
    switch (context.family) {
        case Family::kLlama:
            between = "\"; \" ";
            break;
        case Family::kMistral:
            if (!lark.is_control("[ARGS]")) {
                before = lark.mark("[TOOL_CALLS]") + " \"[\" ";
                between = "\", \" ";
                after = " \"]\"";
            }
            break;
        case Family::kDeepSeek3:
            before = lark.mark(
                         "<\uff5ctool\u2581"
                         "calls\u2581"
                         "begin\uff5c>") +
                     " ";
            after = " " + lark.mark(
                              "<\uff5ctool\u2581"
                              "calls\u2581"
                              "end\uff5c>");
            break;
        case Family::kHarmony:
            several = false;  // the first call ends the turn
            break;
        default:
            between = "\"\\n\" ";
            break;
    }
    lark.rule("calls", before + "one" + (several ? " (" + between + "one)*" : "") + after);
    return true;
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

Result<Body> format_body(const OutputFormat& format) {
    using Kind = OutputFormat::Kind;
    switch (format.kind) {
        case Kind::kText:
            return Body{};
        case Kind::kJsonObject:
            return Body{GrammarKind::kJsonSchema, R"({"type":"object"})"};
        case Kind::kJsonSchema:
            if (!format.schema.is_object() && !format.schema.is_bool()) {
                return err(Code::kInvalidArgument, "`schema` must be a JSON schema.",
                           "response_format");
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

// Text as it comes, in which a call, once its marker is there, must follow its tool's schema.
void write_free_text(Lark& lark, std::size_t tools) {
    std::string done;
    for (std::size_t i = 0; i < tools; ++i) done += fmt::format("{}d{}", i == 0 ? "" : " | ", i);
    lark.rule("done", done);
    if (lark.is_control(kToolCall)) {
        lark.rule("free", fmt::format("text? ({} done text?)*", lark.mark(kToolCall)));
        lark.rule("text", "/(?s:.+)/");
        return;
    }
    lark.rule("free", "(before done)* TAIL?");
    lark.text_until("before", kToolCall);
    lark.rule("TAIL", fmt::format("/(?s:.+)/ & ~/(?s:.*){}(?s:.*)/", kToolCall));
}

}  // namespace

Result<Constraint> constrain(const model::Request& request, const ConstraintContext& context) {
    TRY(const std::vector<const Tool*> tools, callable(request));
    const Choice choice = request.tool_choice.kind;
    const bool forced = !tools.empty() && (choice == Choice::kRequired || choice == Choice::kNamed);
    TRY(const Body format, format_body(request.format));

    Constraint constraint;
    Lark lark(context);
    if (forced) {
        constraint.param = choice == Choice::kNamed ? "tool_choice" : "tools";
        constraint.kind = GrammarKind::kLark;
        constraint.calls_only = true;
        if (context.in_calls) {  // the model finds itself in a call; its arguments are not held
            constraint.kind = GrammarKind::kNone;
            return constraint;
        }
        const std::string before = reasoning_rule(lark, context);
        lark.rule("start", before + "calls");
        TRY(const bool can, write_calls(lark, tools, context, request.parallel_tool_calls));
        if (!can) {
            return err(Code::kUnsupported,
                       "This model cannot be made to call a tool; `tool_choice` may be \"auto\" or "
                       "\"none\".",
                       "tool_choice");
        }
        constraint.source = lark.take();
        return checked(std::move(constraint), context);
    }
    const bool tagged = context.family == Family::kGeneric || context.family == Family::kHermes;
    if (format.kind == GrammarKind::kNone) {
        const bool strict =
            std::ranges::any_of(tools, [](const Tool* tool) { return tool->strict; });
        if (!strict || !tagged) return constraint;
        constraint.param = "tools";
        constraint.kind = GrammarKind::kLark;
        lark.rule("start", reasoning_rule(lark, context) + "free");
        TRY_VOID(write_calls(lark, tools, context, true));
        write_free_text(lark, tools.size());
        constraint.source = lark.take();
        return checked(std::move(constraint), context);
    }

    constraint.param = "response_format";
    const std::string before = reasoning_rule(lark, context);
    const bool calls_too = !tools.empty();
    if (before.empty() && !calls_too) {
        constraint.kind = format.kind;
        constraint.source = format.source;
        return checked(std::move(constraint), context);
    }
    constraint.kind = GrammarKind::kLark;
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
    bool can_call = false;
    if (calls_too) {
        TRY(can_call, write_calls(lark, tools, context, request.parallel_tool_calls));
    }
    lark.rule("start", before + (can_call ? "(" + answer + " | calls)" : answer));
    lark.rule("answer", body.as_lark());
    constraint.source = lark.take();
    return checked(std::move(constraint), context);
}

}  // namespace nereid::text
