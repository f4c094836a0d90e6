#include "text/grammar_calls.h"

#include <algorithm>
#include <utility>

#include "text/recipe/recipe.h"

namespace nereid::text {
namespace {

using model::Tool;

// The schema of a call's arguments, always of an object.
Result<Json> arguments_schema(const CallableTool& callable) {
    const Tool& tool = *callable.tool;
    Json schema(Json::Object{{"type", "object"}});
    if (!callable.held) return schema;
    if (tool.custom) {
        schema.set("properties", Json(Json::Object{{"input", Json::Object{{"type", "string"}}}}));
        schema.set("required", Json(Json::Array{"input"})).set("additionalProperties", false);
    } else if (tool.parameters.is_null()) {
        schema.set("properties", Json(Json::Object{}));
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

// Arguments that stand as parameters of their own, strings as they are: Qwen's XML and DSML.
struct ParameterMarks {
    bool dsml = false;
    std::string dsml_mark = {};  // as a rule's text
    std::string tag = {};        // "parameter", " parameter"

    std::string open(std::string_view key, bool text) const {
        if (!dsml) return lark_literal(fmt::format("<parameter={}>\n", key));
        return fmt::format(
            "\"<\" {} {}", dsml_mark,
            lark_literal(fmt::format("{} name=\"{}\" string=\"{}\">", tag, key, text)));
    }
    std::string close() const {
        if (!dsml) return R"("\n</parameter>\n")";
        return fmt::format("\"</\" {} {}", dsml_mark, lark_literal(tag + ">\n"));
    }
    // A string of any kind up to and with the close.
    void text_value(Lark& lark, const std::string& name) const {
        if (!dsml) return lark.text_until(name, "\n</parameter>\n");
        if (dsml_mark.starts_with('"'))
            return lark.text_until(name, fmt::format("</{}{}>\n",
                                                     "\uff5c"
                                                     "DSML\uff5c",
                                                     tag));
        lark.rule(name, fmt::format("{}t {} {}", name, dsml_mark, lark_literal(tag + ">\n")));
        lark.rule(name + "t", R"(/(?s:.*)<\//)");
    }
};

// The notation of one family, for one request.
class Notation {
  public:
    Notation(Lark& lark, const ConstraintContext& context) : lark_(lark), context_(context) {
        const std::string dsml =
            "\uff5c"
            "DSML\uff5c";
        switch (context.family) {
            case Family::kMistral:
                opener_ = "[TOOL_CALLS]";
                if (arguments_marked()) {
                    between_ = lark.mark(opener_);
                } else {
                    open_rest_ = "\"[\"";
                    between_ = "\", \"";
                    close_ = "\"]\"";
                }
                break;
            case Family::kDeepSeek3:
                opener_ = deepseek3("calls", "begin");
                close_ = lark.mark(deepseek3("calls", "end"));
                break;
            case Family::kDeepSeek4: {
                const bool v41 = deepseek_version(context.chat_template) == DeepSeekVersion::kV41;
                space_ = v41 ? " " : "";
                marks_ = {.dsml = true, .dsml_mark = lark.mark(dsml), .tag = space_ + "parameter"};
                opener_ = dsml;
                const std::string name = space_ + (v41 ? "calls>" : "tool_calls>");
                open_rest_ = lark_literal(name + "\n");
                close_ = fmt::format("\"</\" {} {}", marks_.dsml_mark, lark_literal(name));
                break;
            }
            case Family::kGemma:
                opener_ = gemma_form() == 0 ? "<start_function_call>" : "<|tool_call>";
                between_ = lark.mark(opener_);
                break;
            case Family::kHarmony:
                opener_ = "<|channel|>";
                break;
            case Family::kLlama:
                between_ = "\"; \"";
                break;
            default:
                opener_ = "<tool_call>";
                between_ = "\"\\n\" " + lark.mark(opener_);
                break;
        }
    }

    // The rule of one call, without what opens it.
    Result<void> call(const CallableTool& callable, std::size_t index) {
        const Tool& tool = *callable.tool;
        const std::string name = shown_name(tool.name_space, tool.name);
        const std::string rule = fmt::format("c{}", index);
        if (context_.family == Family::kQwenXml || marks_.dsml) {
            TRY(const std::string body, parameters(callable, index));
            if (marks_.dsml) {
                const std::string tag = space_ + "invoke";
                lark_.rule(rule,
                           fmt::format("\"<\" {} {}{} \"</\" {} {}", marks_.dsml_mark,
                                       lark_literal(fmt::format("{} name=\"{}\">\n", tag, name)),
                                       body, marks_.dsml_mark, lark_literal(tag + ">\n")));
            } else {
                lark_.rule(rule, fmt::format("{}{} \"</function>\\n\" {}",
                                             lark_literal("\n<function=" + name + ">\n"), body,
                                             lark_.mark("</tool_call>")));
            }
            return {};
        }
        lark_.rule(rule, json_call(name, fmt::format("a{}", index)));
        return arguments(callable, index);
    }

    void blocks(std::size_t tools, bool several) {
        std::string one;
        for (std::size_t i = 0; i < tools; ++i) one += fmt::format("{}c{}", i == 0 ? "" : " | ", i);
        lark_.rule("one", one);
        if (context_.family == Family::kHarmony) several = false;  // the first call ends the turn
        std::string more = "one";
        if (several) more += fmt::format(" ({} one)*", between_);
        lark_.rule("more", more + " " + close_);
        lark_.rule("tail", open_rest_ + " more");
        std::string open = opener_.empty() ? "" : lark_.mark(opener_);
        if (marks_.dsml) open = "\"<\" " + open;
        lark_.rule("calls", open + " tail");
        if (!lark_.ebnf()) free_text(several);
    }

  private:
    static std::string deepseek3(std::string_view what, std::string_view end) {
        return fmt::format("<\uff5ctool\u2581{}\u2581{}\uff5c>", what, end);
    }
    bool arguments_marked() const { return lark_.is_control("[ARGS]"); }
    int gemma_form() const {
        return context_.chat_template.find("<|tool_call>") == std::string_view::npos ? 0 : 1;
    }

    std::string json_call(const std::string& name, const std::string& arguments) const {
        const auto object = [&](std::string_view member) {
            return fmt::format(
                "{} {} \"}}\"",
                lark_literal(fmt::format("{{\"name\": {}, \"{}\": ", lark_literal(name), member)),
                arguments);
        };
        switch (context_.family) {
            case Family::kLlama:
                return object("parameters");
            case Family::kMistral:
                if (!arguments_marked()) return object("arguments");
                return fmt::format("{} {} {}", lark_literal(name), lark_.mark("[ARGS]"), arguments);
            case Family::kHarmony:
                return fmt::format(
                    "{} {} \"json\" {} {}", lark_literal("commentary to=functions." + name + " "),
                    lark_.mark("<|constrain|>"), lark_.mark("<|message|>"), arguments);
            case Family::kGemma:
                return fmt::format(
                    "{} {} {}", lark_literal("call:" + name), arguments,
                    lark_.mark(gemma_form() == 0 ? "<end_function_call>" : "<tool_call|>"));
            case Family::kDeepSeek3: {
                const bool first = context_.chat_template.find("```json") != std::string_view::npos;
                const std::string begin = lark_.mark(deepseek3("call", "begin"));
                const std::string end = lark_.mark(deepseek3("call", "end"));
                const std::string sep = lark_.mark("<\uff5ctool\u2581sep\uff5c>");
                if (first)
                    return fmt::format("{} \"function\" {} {} {} \"\\n```\" {}", begin, sep,
                                       lark_literal(name + "\n```json\n"), arguments, end);
                return fmt::format("{} {} {} {} {}", begin, lark_literal(name), sep, arguments,
                                   end);
            }
            default:
                return fmt::format(
                    "{} {} \"}}\\n\" {}",
                    lark_literal("\n{\"name\": " + lark_literal(name) + ", \"arguments\": "),
                    arguments, lark_.mark("</tool_call>"));
        }
    }

    // A rule that matches a custom tool's input as a JSON string, quotes included.
    void input_string(const std::string& rule, const Tool& tool, const CustomGrammar& grammar) {
        const Json custom(Json::Object{
            {"tool", tool.name}, {"syntax", grammar.syntax}, {"definition", grammar.definition}});
        lark_.rule(rule, fmt::format(R"("\"" {}i "\"")", rule));
        lark_.rule(rule + "i", "%custom " + custom.dump());
    }

    Result<void> arguments(const CallableTool& callable, std::size_t index) {
        const std::string rule = fmt::format("a{}", index);
        if (const auto grammar = custom_grammar(*callable.tool); grammar && callable.held) {
            input_string(rule + "s", *callable.tool, *grammar);
            lark_.rule(rule, fmt::format("{} {}s \"}}\"", lark_literal("{\"input\": "), rule));
            return {};
        }
        TRY(const Json schema, arguments_schema(callable));
        lark_.rule(rule, "%json " + schema.dump());
        return {};
    }

    // One parameter for every property, in the schema's order.
    Result<std::string> parameters(const CallableTool& callable, std::size_t index) {
        const std::string prefix = fmt::format("p{}", index);
        if (const auto grammar = custom_grammar(*callable.tool); grammar && callable.held) {
            // As a JSON string, whose end no grammar can run over.
            input_string(prefix + "s", *callable.tool, *grammar);
            return fmt::format(" {} {}s {}", marks_.open("input", false), prefix, marks_.close());
        }
        if (!callable.held) return any_parameters(prefix);
        TRY(const Json schema, arguments_schema(callable));
        std::string body;
        const Json* properties = schema.find("properties");
        if (properties == nullptr || !properties->is_object()) return body;
        const Json* required = schema.find("required");
        std::size_t number = 0;
        for (const auto& [key, property] : properties->as_object()) {
            const std::string name = fmt::format("{}_{}", prefix, number++);
            parameter(name, key, property, schema);
            const bool needed =
                required != nullptr && required->is_array() &&
                std::ranges::any_of(required->as_array(), [&k = key](const Json& one) {
                    return one.is_string() && one.as_string() == k;
                });
            body += " " + name + (needed ? "" : "?");
        }
        return body;
    }

    std::string any_parameters(const std::string& prefix) {
        lark_.rule(prefix + "k", R"(/[A-Za-z0-9_.\-]{1,64}/)");
        marks_.text_value(lark_, prefix + "v");
        if (!marks_.dsml) {
            lark_.rule(prefix, fmt::format("\"<parameter=\" {0}k \">\\n\" {0}v", prefix));
        } else {
            lark_.rule(prefix, fmt::format("\"<\" {} {} {}k /\" string=\"(true|false)\">/ {}v",
                                           marks_.dsml_mark, lark_literal(marks_.tag + " name=\""),
                                           prefix, prefix));
        }
        return fmt::format(" {}*", prefix);
    }

    void parameter(const std::string& name, const std::string& key, const Json& property,
                   const Json& schema) {
        const Json* type = property.find("type");
        const Json* values = property.find("enum");
        if (values != nullptr && (!values->is_array() || values->as_array().empty()))
            values = nullptr;
        const bool text_values =
            values != nullptr &&
            std::ranges::all_of(values->as_array(), [](const Json& v) { return v.is_string(); });
        const bool text = type != nullptr && type->is_string() && type->as_string() == "string";
        if (values != nullptr && (text_values || !marks_.dsml)) {
            std::string any;
            for (const Json& value : values->as_array()) {
                if (!any.empty()) any += " | ";
                any += lark_literal(value.is_string() ? value.as_string() : value.dump());
            }
            lark_.rule(name,
                       fmt::format("{} ({}) {}", marks_.open(key, true), any, marks_.close()));
        } else if (text && values == nullptr) {
            lark_.rule(name, fmt::format("{} {}v", marks_.open(key, true), name));
            marks_.text_value(lark_, name + "v");
        } else {
            Json value = property.is_object() ? property : Json(Json::Object{});
            for (const char* member : {"x-guidance", "$comment", "$defs", "definitions"}) {
                if (const Json* held = schema.find(member)) value.set(member, *held);
            }
            lark_.rule(name,
                       fmt::format("{} {}v {}", marks_.open(key, false), name, marks_.close()));
            lark_.rule(name + "v", "%json " + value.dump());
        }
    }

    void free_text(bool several) {
        const char* again = several ? "*" : "?";
        if (context_.family == Family::kHarmony) return free_harmony();
        if (context_.family == Family::kLlama) return free_llama();
        if (marks_.dsml && lark_.is_control(opener_)) {
            lark_.rule("free", fmt::format("(before {} tail){} text?", lark_.mark(opener_), again));
            lark_.rule("before", "/(?s:.*)</");
            lark_.rule("text", "/(?s:.+)/");
        } else if (lark_.is_control(opener_)) {
            lark_.rule("free", fmt::format("text? ({} tail text?){}", lark_.mark(opener_), again));
            lark_.rule("text", "/(?s:.+)/");
        } else {
            const std::string opener = (marks_.dsml ? "<" : "") + opener_;
            lark_.rule("free", fmt::format("(before tail){} TAIL?", again));
            lark_.text_until("before", opener);
            lark_.rule("TAIL", without(opener));
        }
    }
    // Any text in which the marker does not occur.
    static std::string without(std::string_view marker) {
        std::string escaped;
        for (const char c : marker) {
            if (std::string_view("[]|\\/").find(c) != std::string_view::npos) escaped += '\\';
            escaped += c;
        }
        return fmt::format("/(?s:.+)/ & ~/(?s:.*){}(?s:.*)/", escaped);
    }

    // A bare object is a call: other text begins with something else, and may end in a marked call.
    void free_llama() {
        static constexpr std::string_view kTag = "<|python_tag|>";
        const std::string tag = lark_.mark(kTag);
        lark_.rule("free", fmt::format("calls | (plain | {} calls | plain {} calls)?", tag, tag));
        if (lark_.is_control(kTag)) {
            lark_.rule("plain", R"(/[ \t\r\n]*[^ \t\r\n{](?s:.*)/)");
        } else {
            lark_.rule("plain", "PLAIN");
            lark_.rule("PLAIN", R"(/[ \t\r\n]*[^ \t\r\n{](?s:.*)/ & )" +
                                    without(kTag).substr(std::string_view("/(?s:.+)/ & ").size()));
        }
    }

    void free_harmony() {
        const std::string channel = lark_.mark("<|channel|>");
        const std::string message = lark_.mark("<|message|>");
        lark_.rule("free", "preamble? (final | calls)");
        lark_.rule("final", fmt::format("{} \"final\" {} /(?s:.*)/", channel, message));
        lark_.rule("preamble", fmt::format("{} \"commentary\" {} said {} \"assistant\"", channel,
                                           message, lark_.mark("<|start|>")));
        lark_.text_until("said", "<|end|>");
    }

    Lark& lark_;
    const ConstraintContext& context_;
    std::string opener_;     // the marker that begins a block of calls; empty = none
    std::string open_rest_;  // what follows it before the first call, as a rule's text
    std::string between_;    // what is between two calls
    std::string close_;
    std::string space_;  // of DSML's tags
    ParameterMarks marks_;
};

}  // namespace

std::optional<CustomGrammar> custom_grammar(const Tool& tool) {
    const Json* nested = tool.format.find("grammar");  // chat's nesting
    const Json& format = nested != nullptr ? *nested : tool.format;
    const Json* syntax = format.find("syntax");
    const Json* definition = format.find("definition");
    if (definition == nullptr || !definition->is_string()) return std::nullopt;
    const bool named = syntax != nullptr && syntax->is_string();
    return CustomGrammar{named ? syntax->as_string() : "lark", definition->as_string()};
}

Result<void> write_calls(Lark& lark, const std::vector<CallableTool>& tools,
                         const ConstraintContext& context, bool several) {
    for (const CallableTool& tool : tools) {
        if (!lark.ebnf() || !tool.held || !custom_grammar(*tool.tool)) continue;
        return err(Code::kUnsupported,
                   fmt::format("The grammar of the tool \"{}\" cannot be enforced by this model's "
                               "engine; it takes functions.",
                               tool.tool->name),
                   "tools");
    }
    Notation notation(lark, context);
    for (std::size_t i = 0; i < tools.size(); ++i) TRY_VOID(notation.call(tools[i], i));
    notation.blocks(tools.size(), several);
    return {};
}

}  // namespace nereid::text
