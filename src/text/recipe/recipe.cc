#include "text/recipe/recipe.h"

#include <dlfcn.h>
#include <nereid_recipe.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <variant>

#include "base/check.h"
#include "base/json.h"
#include "text/parser_core.h"

namespace nereid::text {

struct Recipe::Calls {
    decltype(&nr_string_free) string_free = nullptr;
    decltype(&nr_render) render = nullptr;
    decltype(&nr_parser_new) parser_new = nullptr;
    decltype(&nr_parser_push) parser_push = nullptr;
    decltype(&nr_parser_finish) parser_finish = nullptr;
    decltype(&nr_parser_free) parser_free = nullptr;
    decltype(&nr_tokenizer_new) tokenizer_new = nullptr;
    decltype(&nr_tokenizer_encode) tokenizer_encode = nullptr;
    decltype(&nr_tokenizer_parse) tokenizer_parse = nullptr;
    decltype(&nr_tokenizer_free) tokenizer_free = nullptr;
    decltype(&nr_ids_free) ids_free = nullptr;

    std::string take(char* string) const {
        std::string text = string == nullptr ? "" : string;
        string_free(string);
        return text;
    }
    Error error(std::int32_t code, char* message) const {
        std::string text = take(message);
        if (code == NR_INVALID) return {Code::kInvalidArgument, std::move(text), "messages"};
        return {Code::kInternal, "deepseek-recipe: " + text};
    }
};

namespace {

constexpr std::array kPlaces = {"libnereid_recipe.so",
#ifdef NEREID_RECIPE_LIBRARY
                                NEREID_RECIPE_LIBRARY
#endif
};

template <class F>
bool resolve(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
}

class RecipeParser final : public OutputParser {
  public:
    RecipeParser(std::shared_ptr<const Recipe::Calls> calls, const ParserOptions& options,
                 nr_parser* parser)
        : calls_(std::move(calls)), options_(options), writer_(options_), parser_(parser) {}
    ~RecipeParser() override { calls_->parser_free(parser_); }
    RecipeParser(const RecipeParser&) = delete;
    RecipeParser& operator=(const RecipeParser&) = delete;

    void push(std::string_view text, std::vector<model::Event>& out) override {
        char* events = nullptr;
        char* message = nullptr;
        const auto code = calls_->parser_push(parser_, text.data(), text.size(), &events, &message);
        take(code, events, message, out);
    }
    bool finish(std::vector<model::Event>& out) override {
        char* events = nullptr;
        char* message = nullptr;
        const auto code = calls_->parser_finish(parser_, &events, &message);
        take(code, events, message, out);
        writer_.end(out);
        return writer_.begun() > 0;
    }

  private:
    void take(std::int32_t code, char* events, char* message, std::vector<model::Event>& out) {
        CHECK_MSG(code == NR_OK, calls_->take(message));
        writer_.new_push(out.size());
        const auto parsed = Json::parse(calls_->take(events));
        CHECK_MSG(parsed.ok(), "deepseek-recipe gave no JSON");
        for (const Json& event : parsed->as_array()) {
            const std::string& kind = event.as_array()[0].as_string();
            const std::string& text = event.as_array()[1].as_string();
            if (kind == "name") {
                writer_.end(out);
                nameless_ = text.empty();  // a call of nothing: what it says is text
                if (!nameless_) writer_.begin(text, out);
            } else if (kind == "arguments" && !nameless_) {
                writer_.arguments(text, out);
            } else if (text.empty()) {
                continue;
            } else if (kind == "reasoning") {
                out.emplace_back(model::ReasoningDelta{.choice = options_.choice, .text = text});
            } else {
                writer_.end(out);
                out.emplace_back(model::TextDelta{.choice = options_.choice, .text = text});
            }
        }
    }

    std::shared_ptr<const Recipe::Calls> calls_;
    ParserOptions options_;
    CallWriter writer_;
    bool nameless_ = false;  // of the open call
    nr_parser* parser_;
};

class RecipeEncoder final : public Recipe::Encoder {
  public:
    RecipeEncoder(std::shared_ptr<const Recipe::Calls> calls, nr_tokenizer* tokenizer)
        : calls_(std::move(calls)), tokenizer_(tokenizer) {}
    ~RecipeEncoder() override { calls_->tokenizer_free(tokenizer_); }
    RecipeEncoder(const RecipeEncoder&) = delete;
    RecipeEncoder& operator=(const RecipeEncoder&) = delete;

    Result<std::vector<TokenId>> encode(std::string_view text,
                                        std::span<const Recipe::SpecialSpan> marks) const override {
        std::vector<std::uint64_t> numbers;
        for (const auto& [begin, end, id] : marks)
            numbers.insert(numbers.end(), {begin, end, static_cast<std::uint64_t>(id)});
        return ids_of([&](std::uint32_t** ids, std::size_t* count, char** message) {
            return calls_->tokenizer_encode(tokenizer_, text.data(), text.size(), numbers.data(),
                                            marks.size(), ids, count, message);
        });
    }
    Result<std::vector<TokenId>> parse(std::string_view text) const override {
        return ids_of([&](std::uint32_t** ids, std::size_t* count, char** message) {
            return calls_->tokenizer_parse(tokenizer_, text.data(), text.size(), ids, count,
                                           message);
        });
    }

  private:
    template <class F>
    Result<std::vector<TokenId>> ids_of(F call) const {
        std::uint32_t* ids = nullptr;
        std::size_t count = 0;
        char* message = nullptr;
        const std::int32_t code = call(&ids, &count, &message);
        if (code != NR_OK) return calls_->error(code, message);
        std::vector<TokenId> tokens(ids, ids + count);
        calls_->ids_free(ids, count);
        return tokens;
    }

    std::shared_ptr<const Recipe::Calls> calls_;
    nr_tokenizer* tokenizer_;
};

std::string_view model_name(DeepSeekVersion version) {
    return version == DeepSeekVersion::kV4 ? "DeepSeek-V4-Pro" : "DeepSeek-V4.1-Flash";
}

Json text_of(const model::Message& message) {
    std::string text;
    for (const model::Part& part : message.parts) {
        const std::string* piece = nullptr;
        if (const auto* plain = std::get_if<model::TextPart>(&part)) piece = &plain->text;
        if (const auto* refusal = std::get_if<model::RefusalPart>(&part)) piece = &refusal->text;
        if (piece == nullptr) continue;
        if (!text.empty()) text += '\n';
        text += *piece;
    }
    return Json(std::move(text));
}

Json function_tool(std::string_view name, std::string_view description, Json parameters) {
    return Json(Json::Object{{"type", "function"},
                             {"function", Json::Object{{"name", name},
                                                       {"description", description},
                                                       {"parameters", std::move(parameters)}}}});
}

// The content with its images in their places. The library marks a place and looks at no bytes.
Json content_of(const model::Message& message) {
    const auto shows = [](const model::Part& part) {
        return std::holds_alternative<model::ImagePart>(part);
    };
    if (std::ranges::none_of(message.parts, shows)) return text_of(message);
    Json::Array parts;
    for (const model::Part& part : message.parts) {
        if (shows(part)) {
            parts.push_back(Json(
                Json::Object{{"type", "image_url"},
                             {"image_url", Json::Object{{"url", "data:image/png;base64,AAAA"}}}}));
        } else {
            const model::Message alone{.role = message.role, .parts = {part}};
            parts.push_back(Json(Json::Object{{"type", "text"}, {"text", text_of(alone)}}));
        }
    }
    return Json(std::move(parts));
}

Json message_json(const model::Message& m) {
    Json message;
    switch (m.role) {
        case model::Role::kSystem:
        case model::Role::kDeveloper:
            message.set("role", "system");
            break;
        case model::Role::kUser:
            message.set("role", "user");
            break;
        case model::Role::kAssistant:
            message.set("role", "assistant");
            break;
        case model::Role::kTool:
            message.set("role", "tool");
            message.set("tool_call_id", m.tool_call_id);
            break;
    }
    message.set("content", content_of(m));
    if (m.role != model::Role::kAssistant) return message;
    if (!m.reasoning.empty()) message.set("reasoning_content", m.reasoning);
    if (m.tool_calls.empty()) return message;
    Json::Array calls;
    for (const model::ToolCall& call : m.tool_calls) {
        const std::string arguments = call.custom
                                          ? Json(Json::Object{{"input", call.arguments}}).dump()
                                      : call.arguments.empty() ? "{}"
                                                               : call.arguments;
        calls.push_back(Json(
            Json::Object{{"id", call.id},
                         {"type", "function"},
                         {"function", Json::Object{{"name", shown_name(call.name_space, call.name)},
                                                   {"arguments", arguments}}}}));
    }
    message.set("tool_calls", Json(std::move(calls)));
    return message;
}

std::string rounded_effort(const std::string& effort) {
    if (effort == "minimal" || effort == "low") return "low";
    if (effort == "max" || effort == "ultra") return "max";
    return "high";
}

bool speaks_of_json(const model::Request& request) {
    for (const model::Message& message : request.messages) {
        const std::string text = text_of(message).as_string();
        for (const char* word : {"json", "JSON", "Json"}) {
            if (text.find(word) != std::string::npos) return true;
        }
    }
    return false;
}

std::optional<bool> asked_thinking(const model::Request& request) {
    for (const char* name : {"thinking", "enable_thinking"}) {
        const Json* value = request.template_args.find(name);
        if (value != nullptr && value->is_bool()) return value->as_bool();
    }
    if (request.reasoning_effort.empty()) return std::nullopt;
    return request.reasoning_effort != "none";
}

class RecipeTemplate final : public ChatTemplate {
  public:
    RecipeTemplate(std::shared_ptr<const Recipe> recipe, std::shared_ptr<const Tokenizer> tokenizer,
                   const std::string& source)
        : recipe_(std::move(recipe)),
          tokenizer_(std::move(tokenizer)),
          source_(source),
          version_(deepseek_version(source)) {}

    Result<RenderedPrompt> render(const model::Request& request) const override {
        if (request.messages.empty())
            return err(Code::kInvalidArgument, "messages is empty", "messages");
        TRY(const Recipe::Rendered rendered, recipe_->render(recipe_body(request, version_)));
        RenderedPrompt prompt;
        std::size_t at = 0;
        const std::string_view text = rendered.prompt;
        for (const auto& [begin, end] : rendered.special) {
            tokenizer_->encode(text.substr(at, begin - at), Special::kPlain, prompt.tokens);
            const std::string_view spelled = text.substr(begin, end - begin);
            const bool image = spelled == kImage;
            const TokenId id = image ? image_token() : control_token(*tokenizer_, spelled);
            if (id >= 0) {
                prompt.tokens.push_back(id);
            } else {
                // <think> is an ordinary token of some vocabularies; a template's own text.
                tokenizer_->encode(spelled, Special::kParse, prompt.tokens);
            }
            at = end;
        }
        tokenizer_->encode(text.substr(at), Special::kPlain, prompt.tokens);
        prompt.text = rendered.prompt;
        return prompt;
    }
    const std::string& source() const override { return source_; }
    bool supports_tools() const override { return true; }

  private:
    // What engines put an image in the place of. The library writes another marker, which V4's
    // vocabulary has for other ends, and names the id (IMAGE_SPECIAL_TOKEN_ID of its Python side);
    // DeepInfer looks for these two spellings (deepinfer/multimodal_tokens.py).
    TokenId image_token() const {
        for (const char* spelled : {"<image>", "<\uff5cdeepseek_image\uff5c>"}) {
            const TokenId id = control_token(*tokenizer_, spelled);
            if (id >= 0) return id;
        }
        return kImageId;
    }

    static constexpr std::string_view kImage = "<\uff5cimage\uff5c>";
    static constexpr TokenId kImageId = 129264;
    std::shared_ptr<const Recipe> recipe_;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::string source_;
    DeepSeekVersion version_;
};

}  // namespace

DeepSeekVersion deepseek_version(std::string_view chat_template) {
    return chat_template.find("<\uff5cSystem\uff5c>") != std::string_view::npos
               ? DeepSeekVersion::kV41
               : DeepSeekVersion::kV4;
}

Recipe::Recipe(std::unique_ptr<const Calls> calls) : calls_(std::move(calls)) {}

Result<std::shared_ptr<const Recipe>> Recipe::load() {
    static std::mutex mutex;
    static std::shared_ptr<const Recipe> loaded;
    const std::lock_guard lock(mutex);
    if (loaded) return loaded;
    std::string why;
    for (const char* place : kPlaces) {
        void* library = dlopen(place, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            why = dlerror();
            continue;
        }
        auto calls = std::make_unique<Calls>();
        const bool whole = resolve(library, "nr_string_free", calls->string_free) &&
                           resolve(library, "nr_render", calls->render) &&
                           resolve(library, "nr_parser_new", calls->parser_new) &&
                           resolve(library, "nr_parser_push", calls->parser_push) &&
                           resolve(library, "nr_parser_finish", calls->parser_finish) &&
                           resolve(library, "nr_parser_free", calls->parser_free) &&
                           resolve(library, "nr_tokenizer_new", calls->tokenizer_new) &&
                           resolve(library, "nr_tokenizer_encode", calls->tokenizer_encode) &&
                           resolve(library, "nr_tokenizer_parse", calls->tokenizer_parse) &&
                           resolve(library, "nr_tokenizer_free", calls->tokenizer_free) &&
                           resolve(library, "nr_ids_free", calls->ids_free);
        if (!whole) {
            why = std::string(place) + " is of another version";
            continue;
        }
        loaded = std::shared_ptr<const Recipe>(new Recipe(std::move(calls)));
        return loaded;
    }
    return err(Code::kConfig,
               "this model needs libnereid_recipe.so, which could not be loaded (" + why +
                   "). Mend: `./dev recipe` builds it (once; about 5 minutes on 2 cores)");
}

Result<Recipe::Rendered> Recipe::render(const std::string& body) const {
    char* out = nullptr;
    char* message = nullptr;
    const std::int32_t code = calls_->render(body.data(), body.size(), &out, &message);
    if (code != NR_OK) return calls_->error(code, message);
    TRY(const Json json, Json::parse(calls_->take(out)));
    Rendered rendered;
    rendered.prompt = json.find("prompt")->as_string();
    for (const Json& range : json.find("special")->as_array()) {
        rendered.special.emplace_back(static_cast<std::size_t>(*range.as_array()[0].as_int()),
                                      static_cast<std::size_t>(*range.as_array()[1].as_int()));
    }
    rendered.thinking = json.find("thinking")->as_bool();
    rendered.in_calls = json.find("in_calls")->as_bool();
    return rendered;
}

Result<std::shared_ptr<const Recipe::Encoder>> Recipe::encoder(
    const std::string& tokenizer_json) const {
    nr_tokenizer* tokenizer = nullptr;
    char* message = nullptr;
    const std::int32_t code =
        calls_->tokenizer_new(tokenizer_json.data(), tokenizer_json.size(), &tokenizer, &message);
    if (code != NR_OK) return calls_->error(code, message);
    return std::shared_ptr<const Encoder>(std::make_shared<RecipeEncoder>(calls_, tokenizer));
}

// The parser needs of the request only whether it thinks, calls, or is inside a block of calls.
std::unique_ptr<OutputParser> Recipe::parser(const ParserOptions& options) const {
    const bool tools = options.tools != nullptr && !options.tools->empty();
    Json body(Json::Object{
        {"model", model_name(DeepSeekVersion::kV41)},
        {"messages", Json::Array{Json(Json::Object{{"role", "user"}, {"content", "?"}})}},
        {"thinking", Json::Object{{"type", options.in_reasoning ? "enabled" : "disabled"}}}});
    if (tools) {
        body.set(
            "tools",
            Json::Array{function_tool(
                "f", "", Json(Json::Object{{"type", "object"}, {"properties", Json::Object{}}}))});
        if (options.in_calls) body.set("tool_choice", "required");
    }
    const std::string text = body.dump();
    nr_parser* parser = nullptr;
    char* message = nullptr;
    const std::int32_t code = calls_->parser_new(text.data(), text.size(), &parser, &message);
    CHECK_MSG(code == NR_OK, calls_->take(message));
    return std::make_unique<RecipeParser>(calls_, options, parser);
}

std::string recipe_body(const model::Request& request, DeepSeekVersion version) {
    using Choice = model::ToolChoice::Kind;
    Json::Array messages;
    for (const model::Message& message : request.messages)
        messages.push_back(message_json(message));
    Json body(Json::Object{{"model", model_name(version)}, {"messages", std::move(messages)}});
    const Choice choice = request.tool_choice.kind;
    const bool forced = choice == Choice::kRequired || choice == Choice::kNamed;
    const bool tools = !request.tools.empty() && choice != Choice::kNone;
    const std::optional<bool> thinking = asked_thinking(request);
    if (tools) {
        Json::Array list;
        for (const model::Tool& tool : request.tools) {
            const auto& allowed = request.tool_choice.allowed;
            if (!allowed.empty() && std::ranges::find(allowed, tool.name) == allowed.end())
                continue;
            Json parameters = tool.parameters;
            if (tool.custom) {
                parameters = Json(Json::Object{
                    {"type", "object"},
                    {"properties", Json::Object{{"input", Json::Object{{"type", "string"}}}}},
                    {"required", Json::Array{"input"}}});
            } else if (!parameters.is_object()) {
                parameters = Json(Json::Object{{"type", "object"}, {"properties", Json::Object{}}});
            }
            list.push_back(function_tool(shown_name(tool.name_space, tool.name),
                                         shown_description(tool), std::move(parameters)));
        }
        body.set("tools", Json(std::move(list)));
        if (choice == Choice::kRequired) body.set("tool_choice", "required");
        if (choice == Choice::kNamed) {
            body.set(
                "tool_choice",
                Json(Json::Object{{"type", "function"},
                                  {"function", Json::Object{{"name", request.tool_choice.name}}}}));
        }
    }
    const bool thinks = thinking.value_or(!(tools && forced));
    body.set("thinking", Json(Json::Object{{"type", thinks ? "enabled" : "disabled"}}));
    if (thinks && !request.reasoning_effort.empty() && request.reasoning_effort != "none")
        body.set("reasoning_effort", rounded_effort(request.reasoning_effort));
    using Format = model::OutputFormat::Kind;
    if (request.format.kind == Format::kJsonObject && speaks_of_json(request))
        body.set("response_format", Json(Json::Object{{"type", "json_object"}}));
    if (request.format.kind == Format::kJsonSchema) {
        const std::string name = request.format.name.empty() ? "answer" : request.format.name;
        body.set(
            "response_format",
            Json(Json::Object{
                {"type", "json_schema"},
                {"json_schema", Json::Object{{"name", name}, {"schema", request.format.schema}}}}));
    }
    return body.dump();
}

std::shared_ptr<const ChatTemplate> make_recipe_template(std::shared_ptr<const Recipe> recipe,
                                                         std::shared_ptr<const Tokenizer> tokenizer,
                                                         const std::string& source) {
    return std::make_shared<RecipeTemplate>(std::move(recipe), std::move(tokenizer), source);
}

}  // namespace nereid::text
