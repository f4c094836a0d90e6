#include <fmt/format.h>

#include <bit>

#include "base/base64.h"
#include "dialect/chat/mirror.h"
#include "model/attachments.h"

namespace nereid::dialect::chat {
namespace {

using model::Request;

std::string_view role_name(const model::Message& message) {
    switch (message.role) {
        case model::Role::kSystem:
            return "system";
        case model::Role::kDeveloper:
            return "developer";
        case model::Role::kUser:
            return "user";
        case model::Role::kAssistant:
            return "assistant";
        case model::Role::kTool:
            return "tool";
    }
    return "user";
}

void write_part(JsonWriter& w, const model::Part& part) {
    w.begin_object();
    if (const auto* text = std::get_if<model::TextPart>(&part)) {
        w.member("type", "text").member("text", text->text);
    } else if (const auto* refusal = std::get_if<model::RefusalPart>(&part)) {
        w.member("type", "refusal").member("refusal", refusal->text);
    } else {
        const auto& image = std::get<model::ImagePart>(part);
        w.member("type", "image_url").key("image_url").begin_object();
        if (image.bytes.empty())
            w.member("url", image.url);
        else
            w.member("url", fmt::format("data:{};base64,{}", image.media_type,
                                        base64_encode(image.bytes)));
        if (!image.detail.empty()) w.member("detail", image.detail);
        w.end_object();
    }
    w.end_object();
}

void write_message(JsonWriter& w, const model::Message& message) {
    w.begin_object().member("role", role_name(message)).key("content");
    const auto* only_text =
        message.parts.size() == 1 ? std::get_if<model::TextPart>(&message.parts[0]) : nullptr;
    if (only_text != nullptr && !only_text->text.empty()) {
        w.value(only_text->text);
    } else if (message.parts.empty()) {
        if (message.tool_calls.empty())
            w.value("");  // null is not understood everywhere (A69)
        else
            w.null();
    } else {
        w.begin_array();
        for (const model::Part& part : message.parts) write_part(w, part);
        w.end_array();
    }
    if (!message.reasoning.empty()) w.member("reasoning_content", message.reasoning);
    if (!message.name.empty()) w.member("name", message.name);
    if (!message.tool_call_id.empty()) w.member("tool_call_id", message.tool_call_id);
    if (!message.tool_calls.empty()) {
        w.key("tool_calls").begin_array();
        for (const model::ToolCall& call : message.tool_calls) {
            const std::string_view kind = call.custom ? "custom" : "function";
            w.begin_object();
            if (!call.id.empty()) w.member("id", call.id);
            w.member("type", kind).key(kind).begin_object().member("name", call.name);
            w.member(call.custom ? "input" : "arguments", call.arguments).end_object().end_object();
        }
        w.end_array();
    }
    w.end_object();
}

void write_tools(JsonWriter& w, const Request& request) {
    if (request.tools.empty()) return;
    w.key("tools").begin_array();
    for (const model::Tool& tool : request.tools) {
        const std::string_view kind = tool.custom ? "custom" : "function";
        w.begin_object().member("type", kind).key(kind).begin_object().member("name", tool.name);
        if (!tool.description.empty()) w.member("description", tool.description);
        if (!tool.parameters.is_null()) w.member("parameters", tool.parameters);
        if (!tool.format.is_null()) w.member("format", tool.format);
        if (tool.strict) w.member("strict", true);
        w.end_object().end_object();
    }
    w.end_array();
}

std::string_view mode_name(model::ToolChoice::Kind kind) {
    switch (kind) {
        case model::ToolChoice::Kind::kAuto:
            return "auto";
        case model::ToolChoice::Kind::kNone:
            return "none";
        case model::ToolChoice::Kind::kRequired:
        case model::ToolChoice::Kind::kNamed:
            return "required";
    }
    return "auto";
}

std::string_view kind_of_tool(const Request& request, std::string_view name) {
    for (const model::Tool& tool : request.tools) {
        if (tool.name == name) return tool.custom ? "custom" : "function";
    }
    return "function";
}

void write_tool_choice(JsonWriter& w, const Request& request) {
    const model::ToolChoice& choice = request.tool_choice;
    const auto write_named = [&](std::string_view name) {
        const std::string_view kind = kind_of_tool(request, name);
        w.begin_object()
            .member("type", kind)
            .key(kind)
            .begin_object()
            .member("name", name)
            .end_object()
            .end_object();
    };
    if (!choice.allowed.empty()) {
        w.key("tool_choice")
            .begin_object()
            .member("type", "allowed_tools")
            .key("allowed_tools")
            .begin_object();
        w.member("mode", mode_name(choice.kind)).key("tools").begin_array();
        for (const std::string& name : choice.allowed) write_named(name);
        w.end_array().end_object().end_object();
    } else if (choice.kind == model::ToolChoice::Kind::kNamed) {
        w.key("tool_choice");
        write_named(choice.name);
    } else if (choice.kind != model::ToolChoice::Kind::kAuto) {
        w.member("tool_choice", mode_name(choice.kind));
    }
}

Result<void> write_format(JsonWriter& w, const model::OutputFormat& format) {
    using Kind = model::OutputFormat::Kind;
    switch (format.kind) {
        case Kind::kText:
            return {};
        case Kind::kJsonObject:
            w.key("response_format").begin_object().member("type", "json_object").end_object();
            return {};
        case Kind::kJsonSchema:
            if (format.name.empty() && !format.strict) {
                w.key("structured_outputs")
                    .begin_object()
                    .member("json", format.schema)
                    .end_object();
                return {};
            }
            w.key("response_format")
                .begin_object()
                .member("type", "json_schema")
                .key("json_schema")
                .begin_object();
            w.member("name", format.name).member("schema", format.schema);
            if (format.strict) w.member("strict", true);
            w.end_object().end_object();
            return {};
        case Kind::kRegex:
            w.key("structured_outputs").begin_object().member("regex", format.source).end_object();
            return {};
        case Kind::kGrammar:
            if (format.syntax == "gbnf")
                w.member("grammar", format.source);
            else if (format.syntax == "ebnf")
                w.key("structured_outputs")
                    .begin_object()
                    .member("grammar", format.source)
                    .end_object();
            else
                return err(Code::kUnsupported,
                           "this backend takes no " + format.syntax + " grammar",
                           "response_format");
            return {};
    }
    return {};
}

template <class T>
void optional_member(JsonWriter& w, std::string_view name, const std::optional<T>& value) {
    if (value) w.member(name, *value);
}

void write_ids(JsonWriter& w, const std::vector<TokenId>& ids) {
    w.begin_array();
    for (const TokenId id : ids) w.value(id);
    w.end_array();
}

void write_sampling(JsonWriter& w, const Request& request) {
    const model::SamplingParams& s = request.sampling;
    optional_member(w, "temperature", s.temperature);
    optional_member(w, "top_p", s.top_p);
    optional_member(w, "top_k", s.top_k);
    optional_member(w, "min_p", s.min_p);
    optional_member(w, "frequency_penalty", s.frequency_penalty);
    optional_member(w, "presence_penalty", s.presence_penalty);
    optional_member(w, "repetition_penalty", s.repetition_penalty);
    if (!request.cache_salt.empty()) w.member("cache_salt", request.cache_salt);
    optional_member(w, "priority", request.priority);
    if (s.seed) w.member("seed", std::bit_cast<std::int64_t>(*s.seed));
    if (!s.logit_bias.empty()) {
        w.key("logit_bias").begin_object();
        for (const auto& [id, bias] : s.logit_bias) w.key(std::to_string(id)).value(bias);
        w.end_object();
    }
}

void write_ends(JsonWriter& w, const Request& request) {
    if (request.n != 1) w.member("n", request.n);
    if (!request.stop.empty()) {
        w.key("stop").begin_array();
        for (const std::string& stop : request.stop) w.value(stop);
        w.end_array();
    }
    if (!request.stop_token_ids.empty()) {
        w.key("stop_token_ids");
        write_ids(w, request.stop_token_ids);
    }
    if (request.ignore_eos) w.member("ignore_eos", true);
    if (request.stream) {
        w.member("stream", true)
            .key("stream_options")
            .begin_object()
            .member("include_usage", true)
            .end_object();
    }
    if (!request.user.empty()) w.member("user", request.user);
    if (!request.affinity_key.empty()) w.member("prompt_cache_key", request.affinity_key);
}

void write_prompts(JsonWriter& w, std::string_view name, const Request& request) {
    const auto write_one = [&](const auto& prompt) {
        if (const auto* text = std::get_if<std::string>(&prompt))
            w.value(*text);
        else
            write_ids(w, std::get<std::vector<TokenId>>(prompt));
    };
    w.key(name);
    if (request.prompts.size() == 1) return write_one(request.prompts[0]);
    w.begin_array();
    for (const auto& prompt : request.prompts) write_one(prompt);
    w.end_array();
}

Result<void> check(const Request& request) {
    for (const model::Tool& tool : request.tools) {
        if (!tool.name_space.empty())
            return err(Code::kUnsupported, "this backend takes no namespace tools", "tools");
    }
    if (const auto documents = model::documents_of(request); !documents.empty())
        return err(Code::kUnsupported, "this backend takes no documents", documents[0]->path);
    return {};
}

Result<Outgoing> write_chat(const Request& request, std::string_view model) {
    TRY_VOID(check(request));
    Outgoing out{"/v1/chat/completions", {}};
    JsonWriter w(out.body);
    w.begin_object().member("model", model).key("messages").begin_array();
    for (const model::Message& message : request.messages) write_message(w, message);
    w.end_array();
    write_sampling(w, request);
    // The old name: every server knows it, the new one not all.
    optional_member(w, "max_tokens", request.max_output_tokens);
    write_ends(w, request);
    if (request.logprobs) w.member("logprobs", true);
    if (request.top_logprobs != 0) w.member("top_logprobs", request.top_logprobs);
    write_tools(w, request);
    write_tool_choice(w, request);
    if (!request.parallel_tool_calls) w.member("parallel_tool_calls", false);
    TRY_VOID(write_format(w, request.format));
    if (!request.reasoning_effort.empty()) w.member("reasoning_effort", request.reasoning_effort);
    if (!request.template_args.is_null()) w.member("chat_template_kwargs", request.template_args);
    if (!request.add_generation_prompt) w.member("add_generation_prompt", false);
    if (!request.metadata.is_null()) w.member("metadata", request.metadata);
    w.end_object();
    return out;
}

Result<Outgoing> write_completion(const Request& request, std::string_view model) {
    Outgoing out{"/v1/completions", {}};
    JsonWriter w(out.body);
    w.begin_object().member("model", model);
    write_prompts(w, "prompt", request);
    if (!request.suffix.empty()) w.member("suffix", request.suffix);
    if (request.echo) w.member("echo", true);
    write_sampling(w, request);
    optional_member(w, "max_tokens", request.max_output_tokens);
    write_ends(w, request);
    if (request.logprobs) w.member("logprobs", request.top_logprobs);
    TRY_VOID(write_format(w, request.format));
    w.end_object();
    return out;
}

Outgoing write_embeddings(const Request& request, std::string_view model) {
    Outgoing out{"/v1/embeddings", {}};
    JsonWriter w(out.body);
    w.begin_object().member("model", model);
    write_prompts(w, "input", request);
    if (!request.encoding_format.empty()) w.member("encoding_format", request.encoding_format);
    optional_member(w, "dimensions", request.dimensions);
    if (!request.user.empty()) w.member("user", request.user);
    w.end_object();
    return out;
}

}  // namespace

Result<Outgoing> write_request(const Request& request, std::string_view model) {
    switch (request.endpoint) {
        case model::Endpoint::kChat:
        case model::Endpoint::kResponses:
        case model::Endpoint::kMessages:
            return write_chat(request, model);
        case model::Endpoint::kCompletions:
            return write_completion(request, model);
        case model::Endpoint::kEmbeddings:
            return write_embeddings(request, model);
    }
    return err(Code::kInternal, "no such endpoint");
}

}  // namespace nereid::dialect::chat
