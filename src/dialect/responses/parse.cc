// The policy per field; docs/formats/dialect-responses.md is the same table for readers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "dialect/chat/parse_parts.h"
#include "dialect/request_fields.h"
#include "dialect/responses/responses.h"
#include "dialect/responses/tools.h"

namespace nereid::dialect::responses {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

struct Context {
    model::Request& request;
    Create& create;
    const Json& body;
    std::string_view id;
    const ParseLimits& limits;
};

Result<void> input(const Json& v, Context& c) {
    TRY(c.create.input, read_items(v, "input", c.id, c.limits.max_items));
    for (std::size_t i = 0; i < c.create.input.size(); ++i)
        TRY_VOID(add_item_tools(c.create.input[i], at_index("input", i), c.create));
    return {};
}
Result<void> instructions(const Json& v, Context& c) {
    TRY(c.create.instructions, read_string(v, "instructions"));
    return {};
}
Result<void> max_output_tokens(const Json& v, Context& c) {
    TRY(c.request.max_output_tokens, read_count(v, "max_output_tokens", 1));
    return {};
}
Result<void> top_logprobs(const Json& v, Context& c) {  // before include
    TRY(const std::int64_t count, read_int(v, "top_logprobs", 0, kMaxTopLogprobs));
    c.request.top_logprobs = static_cast<std::uint32_t>(count);
    c.request.logprobs = count > 0;
    return {};
}
Result<void> include(const Json& v, Context& c) {
    if (!v.is_array()) return wrong_type(v, "include", "an array of strings");
    for (std::size_t i = 0; i < v.size(); ++i) {
        TRY(const std::string what, read_string(v.as_array()[i], at_index("include", i)));
        if (what == "reasoning.encrypted_content")
            c.create.include_encrypted = true;
        else if (what == "message.output_text.logprobs")
            c.request.logprobs = true;
        else
            note_ignored("include." + what.substr(0, 48), c.request.ignored_fields);
    }
    return {};
}
Result<void> tools(const Json& v, Context& c) { return parse_tools(v, "tools", c.create); }
Result<void> tool_choice(const Json& v, Context& c) {  // after tools and input
    c.create.tool_choice = v;
    const bool alone = given(c.body, "previous_response_id") == nullptr &&
                       given(c.body, "conversation") == nullptr;
    if (!alone) return {};
    return parse_tool_choice(std::exchange(c.create.tool_choice, {}), c.create);
}
Result<void> text(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "text", "an object");
    const Json* format = given(v, "format");
    if (format == nullptr) return {};
    const std::string path = "text.format";
    if (!format->is_object()) return wrong_type(*format, path, "an object");
    TRY(const std::string type, optional_string(*format, "type", path));
    if (type == "text") return {};
    if (type == "json_object") {
        c.request.format.kind = model::OutputFormat::Kind::kJsonObject;
        return {};
    }
    if (type != "json_schema")
        return bad_value(
            path + ".type",
            fmt::format("'{}' is not 'text', 'json_object' or 'json_schema'.", type.substr(0, 64)));
    const Json* schema = given(*format, "schema");
    if (schema == nullptr) return missing(path + ".schema");
    TRY(c.request.format, chat::schema_format(*schema, path + ".schema"));
    TRY(c.request.format.name, optional_string(*format, "name", path));
    if (const Json* strict = given(*format, "strict")) {
        TRY(c.request.format.strict, read_bool(*strict, path + ".strict"));
    }
    return {};
}
Result<void> reasoning(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "reasoning", "an object");
    TRY(c.request.reasoning_effort, optional_string(v, "effort", "reasoning"));
    if (c.request.reasoning_effort.size() > 32)
        return bad_value("reasoning.effort", "it is longer than 32 bytes.");
    TRY(const std::string summary, optional_string(v, "summary", "reasoning"));
    constexpr std::array<std::string_view, 5> kSummaries{"", "none", "auto", "concise", "detailed"};
    const auto known = std::ranges::find(kSummaries, summary);
    if (known == kSummaries.end())
        return bad_value("reasoning.summary", "it is none of auto, concise, detailed, none.");
    c.create.summary = known - kSummaries.begin() > 1;
    return {};
}
Result<void> store(const Json& v, Context& c) {
    TRY(c.create.store, read_bool(v, "store"));
    return {};
}
Result<void> background(const Json& v, Context& c) {  // after store
    TRY(c.create.background, read_bool(v, "background"));
    if (c.create.background && !c.create.store)
        return bad_value("background", "a background response must be stored; 'store' is false.");
    return {};
}
Result<void> previous_response_id(const Json& v, Context& c) {
    TRY(c.create.previous_response_id, read_string(v, "previous_response_id"));
    return {};
}
Result<void> conversation(const Json& v, Context& c) {  // after previous_response_id
    if (v.is_object()) {
        const Json* id = given(v, "id");
        if (id == nullptr) return missing("conversation.id");
        TRY(c.create.conversation, read_string(*id, "conversation.id"));
    } else {
        TRY(c.create.conversation, read_string(v, "conversation"));
    }
    if (!c.create.previous_response_id.empty())
        return bad_value("conversation", "it cannot be combined with 'previous_response_id'.");
    return {};
}
Result<void> max_tool_calls(const Json& v, Context&) {
    // Counts calls of hosted tools, of which there are none.
    TRY([[maybe_unused]] const std::int64_t count, read_int(v, "max_tool_calls", 1));
    return {};
}
Result<void> truncation(const Json& v, Context& c) {
    TRY(const std::string kind, read_string(v, "truncation"));
    if (kind != "auto" && kind != "disabled")
        return bad_value("truncation", "it is not 'auto' or 'disabled'.");
    c.request.drop_oldest_turns = kind == "auto";
    return {};
}
// Handlers run in the order of the table.
constexpr Field<Context> kCreate[] = {
    {"model", Policy::kImplement, model_name<Context>, true},
    {"tools", Policy::kImplement, tools},
    {"input", Policy::kImplement, input},
    {"instructions", Policy::kImplement, instructions},
    {"max_output_tokens", Policy::kImplement, max_output_tokens},
    {"temperature", Policy::kImplement, temperature<Context>},
    {"top_p", Policy::kImplement, top_p<Context>},
    {"frequency_penalty", Policy::kImplement, frequency_penalty<Context>},
    {"presence_penalty", Policy::kImplement, presence_penalty<Context>},
    {"top_logprobs", Policy::kImplement, top_logprobs},
    {"include", Policy::kImplement, include},
    {"stream", Policy::kImplement, stream<Context>},
    {"tool_choice", Policy::kImplement, tool_choice},
    {"parallel_tool_calls", Policy::kImplement, parallel_tool_calls<Context>},
    {"text", Policy::kImplement, text},
    {"reasoning", Policy::kImplement, reasoning},
    {"store", Policy::kImplement, store},
    {"background", Policy::kImplement, background},
    {"previous_response_id", Policy::kImplement, previous_response_id},
    {"conversation", Policy::kImplement, conversation},
    {"max_tool_calls", Policy::kImplement, max_tool_calls},
    {"truncation", Policy::kImplement, truncation},
    {"metadata", Policy::kImplement, metadata<Context>},
    {"user", Policy::kImplement, user<Context>},
    {"safety_identifier", Policy::kImplement, safety_identifier<Context>},
    {"prompt_cache_key", Policy::kImplement, prompt_cache_key<Context>},

    {"seed", Policy::kExtra, seed<Context>},
    {"top_k", Policy::kExtra, top_k<Context>},
    {"min_p", Policy::kExtra, min_p<Context>},
    {"repetition_penalty", Policy::kExtra, repetition_penalty<Context>},
    {"logit_bias", Policy::kExtra, logit_bias<Context>},
    {"stop", Policy::kExtra, stop<Context>},
    {"stop_token_ids", Policy::kExtra, stop_token_ids<Context>},
    {"cache_salt", Policy::kExtra, cache_salt<Context>},
    {"priority", Policy::kExtra, priority<Context>},
    {"ignore_eos", Policy::kExtra, ignore_eos<Context>},
    {"chat_template_kwargs", Policy::kExtra, template_args<Context>},

    {"access_programs", Policy::kAccept},
    {"client_metadata", Policy::kAccept},
    {"context_management", Policy::kAccept},
    {"moderation", Policy::kAccept},
    {"prompt_cache_options", Policy::kAccept},
    {"prompt_cache_retention", Policy::kAccept},
    {"service_tier", Policy::kAccept},
    {"stream_options", Policy::kAccept},

    {"prompt", Policy::kRefuse},
};

Json or_null(const Json& body, std::string_view name) {
    const Json* v = body.find(name);
    return v == nullptr ? Json() : *v;
}
Json or_else(const Json& body, std::string_view name, Json fallback) {
    const Json* v = given(body, name);
    return v == nullptr ? std::move(fallback) : *v;
}

// Every key that the Open Responses schema wants to see, whether or not the client gave it.
Json settings_of(const Json& body, const Create& create) {
    const model::Request& r = create.request;
    Json out(Json::Object{});
    out.set("instructions", or_null(body, "instructions"));
    out.set("previous_response_id", or_null(body, "previous_response_id"));
    if (!create.conversation.empty())
        out.set("conversation", Json(Json::Object{{"id", create.conversation}}));
    Json tools(Json::Array{});
    if (const Json* given_tools = given(body, "tools")) {
        for (const Json& tool : given_tools->as_array()) {
            Json shown = tool;
            if (const Json* type = tool.find("type");
                type != nullptr && *type == Json("function")) {
                if (tool.find("description") == nullptr) shown.set("description", Json());
                if (tool.find("parameters") == nullptr) shown.set("parameters", Json());
                if (tool.find("strict") == nullptr || tool.find("strict")->is_null())
                    shown.set("strict", false);
            }
            tools.as_array().push_back(std::move(shown));
        }
    }
    out.set("tools", std::move(tools));
    out.set("tool_choice", or_else(body, "tool_choice", "auto"));
    out.set("truncation", or_else(body, "truncation", "disabled"));
    out.set("parallel_tool_calls", r.parallel_tool_calls);
    Json text_settings = or_else(body, "text", Json(Json::Object{}));
    if (given(text_settings, "format") == nullptr)
        text_settings.set("format", Json(Json::Object{{"type", "text"}}));
    out.set("text", std::move(text_settings));
    out.set("temperature", r.sampling.temperature.value_or(1.0));
    out.set("top_p", r.sampling.top_p.value_or(1.0));
    out.set("presence_penalty", r.sampling.presence_penalty.value_or(0.0));
    out.set("frequency_penalty", r.sampling.frequency_penalty.value_or(0.0));
    out.set("top_logprobs", r.top_logprobs);
    Json thought(Json::Object{});
    const Json asked = or_else(body, "reasoning", Json(Json::Object{}));
    thought.set("effort", or_null(asked, "effort"));
    thought.set("summary", or_null(asked, "summary"));
    out.set("reasoning", std::move(thought));
    out.set("max_output_tokens", or_null(body, "max_output_tokens"));
    out.set("max_tool_calls", or_null(body, "max_tool_calls"));
    out.set("store", create.store);
    out.set("background", create.background);
    out.set("service_tier", "default");
    out.set("metadata", or_else(body, "metadata", Json(Json::Object{})));
    out.set("user", or_null(body, "user"));
    out.set("safety_identifier", or_null(body, "safety_identifier"));
    out.set("prompt_cache_key", or_null(body, "prompt_cache_key"));
    return out;
}

}  // namespace

Result<Create> parse_create(const Json& body, std::string_view id, const ParseLimits& limits) {
    Create create;
    create.request.endpoint = model::Endpoint::kResponses;
    Context context{create.request, create, body, id, limits};
    TRY_VOID(read_fields<Context>(body, kCreate, limits.strict_unknown_fields,
                                  create.request.ignored_fields, context));
    create.settings = settings_of(body, create);
    return create;
}

std::vector<FieldPolicy> create_fields() { return policies<Context>(kCreate); }

}  // namespace nereid::dialect::responses
