#include "text/gguf/chat_template.h"

#include <jinja/caps.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>

#include <algorithm>
#include <array>
#include <exception>
#include <initializer_list>
#include <utility>
#include <variant>

#include "base/hash.h"
#include "base/utf8.h"
#include "text/parser.h"
#include "text/placement.h"

namespace nereid::text {
namespace {

using jinja::mk_val;
using jinja::value;
using jinja::value_array;
using jinja::value_object;
using jinja::value_string;

constexpr std::string_view kGuard = "\xEF\xB7\x90";        // U+FDD0
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kRaised =
    "Jinja Exception: ";  // what raise_exception() of a template prefixes

std::string without_guards(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (true) {
        const std::size_t at = text.find(kGuard);
        out.append(text.substr(0, at));
        if (at == std::string_view::npos) return out;
        text.remove_prefix(at + kGuard.size());
    }
}

// Makes template values of the caller's data. Everything here is input: marked, and guarded against
// control tokens.
class InputValues {
  public:
    explicit InputValues(const ControlTokenizer& vocabulary) : vocabulary_(vocabulary) {}

    value text(std::string_view text) const {
        auto string = mk_val<value_string>(guarded(text));
        string->mark_input();
        return string;
    }

    value json(const Json& json) const {
        return json.visit([this](const auto& held) -> value {
            using T = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<T, std::monostate>) {
                return mk_val<jinja::value_none>();
            } else if constexpr (std::is_same_v<T, bool>) {
                return mk_val<jinja::value_bool>(held);
            } else if constexpr (std::is_same_v<T, std::int64_t>) {
                return mk_val<jinja::value_int>(held);
            } else if constexpr (std::is_same_v<T, std::uint64_t>) {
                return mk_val<jinja::value_float>(static_cast<double>(held));
            } else if constexpr (std::is_same_v<T, double>) {
                return mk_val<jinja::value_float>(held);
            } else if constexpr (std::is_same_v<T, std::string>) {
                return text(held);
            } else if constexpr (std::is_same_v<T, Json::Array>) {
                auto array = mk_val<value_array>();
                for (const Json& element : held) array->push_back(this->json(element));
                return array;
            } else {
                auto object = mk_val<value_object>();
                for (const auto& [name, member] : held)
                    object->insert(guarded(name), this->json(member));
                return object;
            }
        });
    }

    std::string guarded(std::string_view text) const {
        std::string valid;
        if (!is_valid_utf8(text)) {
            valid = replace_invalid_utf8(text);
            text = valid;
        }
        std::string out;
        out.reserve(text.size());
        for (std::size_t at = 0; at < text.size();) {
            if (text.substr(at).starts_with(kGuard)) {
                out.append(kReplacement);
                at += kGuard.size();
                continue;
            }
            const bool breaks = vocabulary_.control_at(text, at) != nullptr;
            const std::size_t first = character_size(text[at]);
            out.append(text.substr(at, first));
            if (breaks) out.append(kGuard);
            at += first;
        }
        return out;
    }

  private:
    static std::size_t character_size(char lead) {  // of valid UTF-8
        const auto b = static_cast<unsigned char>(lead);
        return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    }

    const ControlTokenizer& vocabulary_;
};

// Text of our own (role names, types): neither marked nor guarded.
value own(std::string text) { return mk_val<value_string>(std::move(text)); }

std::string joined_text(const model::Message& message) {
    std::string text;
    bool first = true;
    for (const model::Part& part : message.parts) {
        const std::string* piece = nullptr;
        if (const auto* plain = std::get_if<model::TextPart>(&part)) piece = &plain->text;
        if (const auto* refusal = std::get_if<model::RefusalPart>(&part)) piece = &refusal->text;
        if (piece == nullptr) continue;
        if (!first) text += '\n';  // as vLLM and llama.cpp join parts
        text += *piece;
        first = false;
    }
    return text;
}

class JinjaTemplate final : public ChatTemplate {
  public:
    // Throws what the engine throws.
    JinjaTemplate(std::shared_ptr<const ControlTokenizer> vocabulary, const std::string& source)
        : vocabulary_(std::move(vocabulary)), source_(source) {
        jinja::lexer lexer;
        const auto tokens = lexer.tokenize(source);
        parsed_source_ = tokens.source;
        program_ = jinja::parse_from_tokens(tokens);
        caps_ = capabilities();
        knows_developer_ = source.find("developer") != std::string::npos;
        placement_ = find_placement();
        find_calls();
    }

    Result<RenderedPrompt> render(const model::Request& request) const override;
    const std::string& source() const override { return source_; }
    bool supports_tools() const override { return true; }
    Family family() const override { return family_; }

  private:
    // What the template can show, found out by rendering probes. One that fails on a probe may
    // still serve requests; then it is trusted with plain messages only.
    jinja::caps capabilities() {
        try {
            return jinja::caps_get(program_);
        } catch (const std::exception&) {
            jinja::caps plain;
            plain.supports_tools = false;
            plain.supports_tool_calls = false;
            return plain;
        }
    }

    // What the template does not bear, found out the same way.
    Placement find_placement() const;
    bool shows_all(std::initializer_list<model::Role> roles) const;
    // How it shows calls, found out the same way: the family whose parser reads them back.
    void find_calls();
    std::string shown_calls(std::size_t count) const;
    bool tells_tools() const { return !caps_.supports_tools || !shows_calls_; }

    Result<void> check(const model::Request& request) const;
    value messages(const model::Request& request, const InputValues& input) const;
    value message(const model::Message& message, const InputValues& input) const;
    value content(const model::Message& message, const std::string& before,
                  const InputValues& input) const;
    value tool_calls(const model::Message& message, const InputValues& input) const;
    value tools(const model::Request& request, const InputValues& input) const;
    std::vector<model::Message> with_tools_told(const model::Request& request) const;
    std::string role(model::Role role) const;
    RenderedPrompt encode(const std::vector<jinja::string_part>& parts) const;

    std::shared_ptr<const ControlTokenizer> vocabulary_;
    std::string source_;
    std::string parsed_source_;
    jinja::program program_;
    jinja::caps caps_;
    bool knows_developer_ = false;
    Placement placement_;
    Family family_ = Family::kGeneric;
    bool shows_calls_ = true;  // so that the family's parser reads them
    bool short_ids_ = false;   // ids of calls are nine letters and digits (Mistral's)
};

constexpr std::string_view kProbeName = "probe_function";
constexpr std::string_view kProbeArguments = R"({"probe_key":"probe value"})";

model::Tool probe_tool() {
    model::Tool tool;
    tool.name = kProbeName;
    tool.description = "A probe.";
    tool.parameters = *Json::parse(
        R"({"type":"object","properties":{"probe_key":{"type":"string","description":"A key."}},"required":["probe_key"]})");
    return tool;
}

// A user's question, `calls` calls of the model, and their results.
model::Request probe_of_calls(std::size_t calls) {
    model::Request request;
    request.tools = {probe_tool()};
    request.messages.push_back({.role = model::Role::kUser, .parts = {model::TextPart{"Probe?"}}});
    model::Message said{.role = model::Role::kAssistant, .parts = {}};
    std::vector<model::Message> results;
    for (std::size_t i = 0; i < calls; ++i) {
        const std::string id = "call_0123456789abcdef_0_" + std::to_string(i);
        said.tool_calls.push_back(
            {.id = id, .name = std::string(kProbeName), .arguments = std::string(kProbeArguments)});
        model::Message result{.role = model::Role::kTool,
                              .parts = {model::TextPart{"probe-result-" + std::to_string(i)}}};
        result.tool_call_id = id;
        result.name = kProbeName;
        results.push_back(std::move(result));
    }
    if (calls != 0) request.messages.push_back(std::move(said));
    for (model::Message& result : results) request.messages.push_back(std::move(result));
    return request;
}

// Whether this family's parser finds the probe's call in what a model wrote.
bool reads_probe(Family family, const std::string& text) {
    const std::vector<model::Tool> tools{probe_tool()};
    const auto parser = make_parser(family, {.tools = &tools});
    std::vector<model::Event> events;
    parser->push(text, events);
    parser->finish(events);
    std::string name, arguments;
    for (const model::Event& event : events) {
        const auto* call = std::get_if<model::ToolCallDelta>(&event);
        if (call == nullptr || call->index != 0) continue;  // what follows is no longer the model's
        name += call->name;
        arguments += call->arguments;
    }
    const auto parsed = Json::parse(arguments);
    return name == kProbeName && parsed.ok() && *parsed == *Json::parse(kProbeArguments);
}

// What the model would have written for a call: what is rendered behind the prompt of its turn, up
// to the result. Empty when the template raises on calls.
std::string JinjaTemplate::shown_calls(std::size_t count) const {
    const auto whole = render(probe_of_calls(count));
    const auto prompt = render(probe_of_calls(0));
    if (!whole.ok() || !prompt.ok()) return {};
    auto begin = static_cast<std::size_t>(std::ranges::mismatch(whole->text, prompt->text).in1 -
                                          whole->text.begin());
    // Not in the middle of a mark: the prompt may go on with <think>.
    const std::size_t mark = whole->text.find_last_of("<>[]", begin == 0 ? 0 : begin - 1);
    if (mark != std::string::npos && (whole->text[mark] == '<' || whole->text[mark] == '['))
        begin = mark;
    std::string out = whole->text.substr(begin);
    const std::size_t end = out.find("probe-result-0");
    if (end == std::string::npos) return {};
    out.resize(end);
    return out;
}

void JinjaTemplate::find_calls() {
    family_ = detect_family(source_);
    // V4's is rendered and read by its makers' library (open.cc).
    if (!caps_.supports_tools || family_ == Family::kDeepSeek4) return;
    std::string shown = shown_calls(1);
    if (shown.empty()) {
        short_ids_ = true;
        shown = shown_calls(1);
        short_ids_ = !shown.empty();
    }
    if (!shown.empty() && shown_calls(2).empty()) placement_.one_call = true;
    // One that shows no calls of earlier turns: its signs are all there is.
    if (shown.empty() || !caps_.supports_tool_calls) {
        shows_calls_ = family_ != Family::kGeneric;
        return;
    }
    if (reads_probe(family_, shown)) return;
    for (const Family other : {Family::kHermes, Family::kQwenXml, Family::kLlama, Family::kMistral,
                               Family::kGemma, Family::kHarmony, Family::kDeepSeek3}) {
        if (!reads_probe(other, shown)) continue;
        family_ = other;
        return;
    }
    family_ = Family::kGeneric;
    shows_calls_ = false;
}

// Mistral's templates raise on other ids; the same id is always the same.
std::string short_id(std::string_view id) {
    constexpr std::string_view kDigits =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const auto fits = [&](char c) { return kDigits.contains(c); };
    if (id.size() == 9 && std::ranges::all_of(id, fits)) return std::string(id);
    const Digest256 digest = sha256(as_bytes(id));
    std::string out;
    for (std::size_t i = 0; i < 9; ++i) out += kDigits[digest[i] % kDigits.size()];
    return out;
}

// Whether messages of these roles come out, each of them.
bool JinjaTemplate::shows_all(std::initializer_list<model::Role> roles) const {
    model::Request request;
    std::vector<std::string> texts;
    for (const model::Role role : roles) {
        texts.push_back(std::string("probe-") + static_cast<char>('a' + texts.size()) + "-text");
        request.messages.push_back({.role = role, .parts = {model::TextPart{texts.back()}}});
    }
    const auto rendered = render(request);
    return rendered.ok() && std::ranges::all_of(texts, [&](const std::string& text) {
               return rendered->text.contains(text);
           });
}

Placement JinjaTemplate::find_placement() const {
    using enum model::Role;
    Placement out;
    if (!shows_all({kUser, kAssistant, kUser})) return out;  // nothing to learn from it
    out.one_user = !shows_all({kUser, kUser});
    if (shows_all({kSystem, kUser, kAssistant, kUser})) {
        out.one_system = !shows_all({kSystem, kUser, kAssistant, kSystem, kUser}) ||
                         !shows_all({kSystem, kSystem, kUser}) ||
                         !shows_all({kDeveloper, kDeveloper, kUser});
    }
    return out;
}

constexpr std::array<std::string_view, 5> kReserved = {"messages", "tools", "add_generation_prompt",
                                                       "bos_token", "eos_token"};

Result<void> JinjaTemplate::check(const model::Request& request) const {
    if (request.messages.empty())
        return err(Code::kInvalidArgument, "messages is empty", "messages");
    for (std::size_t i = 0; i < request.messages.size(); ++i) {
        for (const model::Part& part : request.messages[i].parts) {
            if (!std::holds_alternative<model::ImagePart>(part)) continue;
            return err(Code::kUnsupported, "this model takes no images",
                       "messages[" + std::to_string(i) + "].content");
        }
    }
    if (!request.template_args.is_null() && !request.template_args.is_object()) {
        return err(Code::kInvalidArgument, "chat_template_kwargs must be an object",
                   "chat_template_kwargs");
    }
    for (const std::string_view name : kReserved) {
        if (request.template_args.find(name) == nullptr) continue;
        return err(Code::kInvalidArgument, "this argument belongs to the request itself",
                   "chat_template_kwargs." + std::string(name));
    }
    return {};
}

std::string JinjaTemplate::role(model::Role role) const {
    switch (role) {
        case model::Role::kSystem:
            return "system";
        case model::Role::kDeveloper:
            return knows_developer_ ? "developer" : "system";  // A71
        case model::Role::kUser:
            return "user";
        case model::Role::kAssistant:
            return "assistant";
        case model::Role::kTool:
            return "tool";
    }
    return "user";
}

value JinjaTemplate::content(const model::Message& message, const std::string& before,
                             const InputValues& input) const {
    std::string text = joined_text(message);  // "" for null and absent content (A69, A70)
    if (!before.empty()) text = text.empty() ? before : before + "\n" + text;
    if (caps_.supports_string_content) return input.text(text);
    auto part = mk_val<value_object>();
    part->insert("type", own("text"));
    part->insert("text", input.text(text));
    auto parts = mk_val<value_array>();
    parts->push_back(part);
    return parts;
}

// Arguments are the model's own bytes. Templates that walk them need an object; broken JSON (A101)
// becomes one.
value JinjaTemplate::tool_calls(const model::Message& message, const InputValues& input) const {
    auto calls = mk_val<value_array>();
    for (const model::ToolCall& call : message.tool_calls) {
        auto function = mk_val<value_object>();
        function->insert("name", input.text(shown_name(call.name_space, call.name)));
        if (caps_.supports_object_arguments) {
            const auto parsed = Json::parse(call.arguments.empty() ? "{}" : call.arguments);
            const bool usable = !call.custom && parsed.ok() && parsed->is_object();
            function->insert(
                "arguments",
                input.json(usable ? *parsed : Json(Json::Object{{"input", call.arguments}})));
        } else {
            function->insert("arguments",
                             input.text(call.arguments.empty() ? "{}" : call.arguments));
        }
        auto object = mk_val<value_object>();
        object->insert("id", input.text(short_ids_ ? short_id(call.id) : call.id));
        object->insert("type", own("function"));
        object->insert("function", function);
        calls->push_back(object);
    }
    return calls;
}

// For templates that cannot show calls: the usual notation inside the text, so that nothing of the
// history is lost.
std::string calls_as_text(const model::Message& message) {
    std::string text;
    for (const model::ToolCall& call : message.tool_calls) {
        if (!text.empty()) text += '\n';
        text += "<tool_call>\n{\"name\": ";
        append_json_string(text, shown_name(call.name_space, call.name));
        text += ", \"arguments\": " + (call.arguments.empty() ? "{}" : call.arguments) +
                "}\n</tool_call>";
    }
    return text;
}

bool wants_tools(const model::Request& request) {
    return !request.tools.empty() && request.tool_choice.kind != model::ToolChoice::Kind::kNone;
}

std::vector<const model::Tool*> shown_tools(const model::Request& request) {
    std::vector<const model::Tool*> tools;
    const auto& allowed = request.tool_choice.allowed;
    for (const model::Tool& tool : request.tools) {
        if (allowed.empty() || std::ranges::find(allowed, tool.name) != allowed.end())
            tools.push_back(&tool);
    }
    return tools;
}

// A custom tool is shown as a function of one text.
Json shown_parameters(const model::Tool& tool) {
    if (tool.custom) {
        return Json(
            Json::Object{{"type", "object"},
                         {"properties", Json::Object{{"input", Json::Object{{"type", "string"}}}}},
                         {"required", Json::Array{"input"}}});
    }
    if (tool.parameters.is_object()) return tool.parameters;
    return Json(Json::Object{{"type", "object"}, {"properties", Json::Object{}}});
}

value JinjaTemplate::message(const model::Message& message, const InputValues& input) const {
    auto object = mk_val<value_object>();
    object->insert("role", own(role(message.role)));
    const bool show_calls =
        !message.tool_calls.empty() && caps_.supports_tool_calls && shows_calls_;
    if (!message.tool_calls.empty() && !show_calls) {
        model::Message flat = message;
        flat.parts.push_back(model::TextPart{calls_as_text(message)});
        if (joined_text(message).empty())
            flat.parts.erase(flat.parts.begin(), flat.parts.end() - 1);
        object->insert("content", content(flat, "", input));
    } else {
        object->insert("content", content(message, "", input));
    }
    if (show_calls) object->insert("tool_calls", tool_calls(message, input));
    if (!message.reasoning.empty())
        object->insert("reasoning_content", input.text(message.reasoning));
    if (!message.name.empty()) object->insert("name", input.text(message.name));
    if (!message.tool_call_id.empty())
        object->insert("tool_call_id", input.text(short_ids_ ? short_id(message.tool_call_id)
                                                             : message.tool_call_id));
    return object;
}

// For a template without a place for tools: they are told in the system message, in the form that
// the generic parser reads (Family::kGeneric), and results come back as a user's turn.
std::vector<model::Message> JinjaTemplate::with_tools_told(const model::Request& request) const {
    std::vector<model::Message> messages = request.messages;
    const bool tell = wants_tools(request);
    for (model::Message& message : messages) {
        if (message.role != model::Role::kTool) continue;
        message.role = model::Role::kUser;
        message.parts = {
            model::TextPart{"<tool_response>\n" + joined_text(message) + "\n</tool_response>"}};
    }
    if (!tell) return messages;
    std::string told =
        "You may call functions. Here they are, with JSON schemas of their arguments:\n<tools>\n";
    for (const model::Tool* tool : shown_tools(request)) {
        told += Json(Json::Object{{"name", shown_name(tool->name_space, tool->name)},
                                  {"description", shown_description(*tool)},
                                  {"parameters", shown_parameters(*tool)}})
                    .dump() +
                "\n";
    }
    told +=
        "</tools>\nTo call one, write its name and arguments as JSON between tags, like this:\n"
        "<tool_call>\n{\"name\": \"function\", \"arguments\": {\"argument\": "
        "\"value\"}}\n</tool_call>";
    if (!messages.empty() && role(messages[0].role) == "system") {
        const std::string own = joined_text(messages[0]);
        messages[0].parts = {model::TextPart{own.empty() ? told : own + "\n\n" + told}};
    } else {
        messages.insert(messages.begin(), model::Message{.role = model::Role::kSystem,
                                                         .parts = {model::TextPart{told}}});
    }
    return messages;
}

value JinjaTemplate::messages(const model::Request& request, const InputValues& input) const {
    auto list = mk_val<value_array>();
    std::string system;  // waits for a user turn where the template has no system role
    std::vector<model::Message> changed;
    const bool tells = tells_tools();
    if (tells || placement_.any()) {
        changed = tells ? with_tools_told(request) : request.messages;
        if (placement_.any()) changed = placed(std::move(changed), placement_);
    }
    for (const model::Message& from :
         tells || placement_.any() ? std::as_const(changed) : request.messages) {
        const bool is_system = role(from.role) == "system";
        if (is_system && !caps_.supports_system_role) {
            const std::string text = joined_text(from);
            system += system.empty() ? text : "\n" + text;
            continue;
        }
        value to = message(from, input);
        if (!system.empty() && from.role == model::Role::kUser) {
            to->insert(own("content"), content(from, system, input));
            system.clear();
        }
        list->push_back(std::move(to));
    }
    if (!system.empty()) {
        list->push_back(
            message({.role = model::Role::kUser, .parts = {model::TextPart{system}}}, input));
    }
    return list;
}

value JinjaTemplate::tools(const model::Request& request, const InputValues& input) const {
    auto list = mk_val<value_array>();
    for (const model::Tool* tool : shown_tools(request)) {
        auto function = mk_val<value_object>();
        function->insert("name", input.text(shown_name(tool->name_space, tool->name)));
        function->insert("description", input.text(tool->description));
        function->insert("parameters", input.json(shown_parameters(*tool)));
        auto object = mk_val<value_object>();
        object->insert("type", own("function"));
        object->insert("function", function);
        list->push_back(object);
    }
    return list;
}

RenderedPrompt JinjaTemplate::encode(const std::vector<jinja::string_part>& parts) const {
    RenderedPrompt prompt;
    std::vector<Mark> marks;
    std::string plain;  // since the last control token; guards are still inside
    const auto flush = [&] {
        prompt.text += without_guards(plain);
        plain.clear();
    };
    for (const jinja::string_part& part : parts) {
        if (part.is_input) {
            plain += part.val;
            continue;
        }
        std::size_t from = 0;
        for (std::size_t at = 0; at < part.val.size();) {
            const ControlToken* control = vocabulary_->control_at(part.val, at);
            if (control == nullptr) {
                ++at;
                continue;
            }
            plain.append(part.val, from, at - from);
            flush();
            const std::size_t begin = prompt.text.size();
            prompt.text += control->text;
            marks.push_back({begin, prompt.text.size(), control});
            at += control->text.size();
            from = at;
        }
        plain.append(part.val, from);
    }
    flush();
    vocabulary_->encode_marked(prompt.text, marks, prompt.tokens);
    if (vocabulary_->chats_begin_with_bos() &&
        (prompt.tokens.empty() || prompt.tokens.front() != vocabulary_->bos())) {
        prompt.tokens.insert(prompt.tokens.begin(), vocabulary_->bos());
    }
    return prompt;
}

// The engine wraps each exception into a description with the template's source; the caller needs
// the last line.
std::string last_line_of(std::string_view what) {
    const std::size_t raised = what.rfind(kRaised);
    if (raised != std::string_view::npos) return std::string(what.substr(raised + kRaised.size()));
    const std::size_t error = what.rfind("Error: ");
    return std::string(error == std::string_view::npos ? what : what.substr(error + 7));
}

Result<RenderedPrompt> JinjaTemplate::render(const model::Request& request) const {
    TRY_VOID(check(request));
    const InputValues input(*vocabulary_);
    try {
        jinja::context context(parsed_source_);
        context.set_val("messages", messages(request, input));
        if (!tells_tools() && wants_tools(request)) context.set_val("tools", tools(request, input));
        context.set_val("bos_token",
                        own(std::string(vocabulary_->piece(vocabulary_->bos(), Special::kParse))));
        context.set_val("eos_token",
                        own(std::string(vocabulary_->piece(vocabulary_->eos(), Special::kParse))));
        context.set_val("add_generation_prompt",
                        mk_val<jinja::value_bool>(request.add_generation_prompt));
        if (!request.reasoning_effort.empty()) {
            context.set_val("reasoning_effort", input.text(request.reasoning_effort));
            context.set_val("enable_thinking",
                            mk_val<jinja::value_bool>(request.reasoning_effort != "none"));
        }
        if (request.template_args.is_object()) {
            for (const auto& [name, argument] : request.template_args.as_object()) {
                context.set_val(name, input.json(argument));
            }
        }
        jinja::runtime runtime(context);
        const value results = runtime.execute(program_);
        return encode(jinja::runtime::gather_string_parts(results)->val_str.parts);
    } catch (const std::exception& e) {
        const std::string_view what = e.what();
        if (what.find(kRaised) != std::string_view::npos) {
            return err(
                Code::kInvalidArgument,
                "the model's chat template refuses this: " + without_guards(last_line_of(what)),
                "messages");
        }
        return err(Code::kUnsupported,
                   "the model's chat template cannot render this request: " +
                       without_guards(last_line_of(what)),
                   "messages");
    }
}

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> make_jinja_template(
    std::shared_ptr<const ControlTokenizer> vocabulary, const std::string& source) {
    try {
        return std::shared_ptr<const ChatTemplate>(
            std::make_shared<JinjaTemplate>(std::move(vocabulary), source));
    } catch (const std::exception& e) {
        return err(Code::kConfig, std::string("the chat template does not parse: ") + e.what());
    }
}

}  // namespace nereid::text
