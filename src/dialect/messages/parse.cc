// The policy per field; docs/formats/dialect-messages.md is the same table for readers.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "dialect/messages/blocks.h"
#include "dialect/messages/messages.h"
#include "dialect/request_fields.h"

namespace nereid::dialect::messages {
namespace {

struct Context {
    model::Request& request;
    Create& create;
    const Json& body;
    const Seal& seal;
    const ParseLimits& limits;
};

Result<void> max_tokens(const Json& v, Context& c) {
    TRY(const TokenCount count, read_count(v, "max_tokens", 1));
    c.request.max_output_tokens = count;
    return {};
}

Result<void> stop_sequences(const Json& v, Context& c) {
    if (!v.is_array()) return wrong_type(v, "stop_sequences", "an array of strings");
    if (v.size() > c.limits.max_stop) {
        return bad_value("stop_sequences",
                         fmt::format("{} strings are more than {}.", v.size(), c.limits.max_stop));
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
        TRY(std::string text, read_string(v.as_array()[i], at_index("stop_sequences", i)));
        if (!text.empty()) c.request.stop.push_back(std::move(text));
    }
    return {};
}

Result<void> system_prompt(const Json& v, Context& c) {  // before messages
    TRY(model::Message message, parse_system(v, "system", c.request.ignored_fields));
    if (!message.parts.empty()) c.request.messages.push_back(std::move(message));
    return {};
}

Result<void> messages(const Json& v, Context& c) {
    return parse_messages(v, c.limits.max_messages, c.seal, c.request);
}

Result<void> tools(const Json& v, Context& c) { return parse_tools(v, c.request); }

Result<void> tool_choice(const Json& v, Context& c) {  // after tools
    return parse_tool_choice(v, c.request);
}

// How much to think, in the words that templates know: Anthropic's budgets in tokens become the
// three steps. Applied only where no effort is named (output_config).
Result<void> thinking(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "thinking", "an object");
    TRY(const std::string type, optional_string(v, "type", "thinking"));
    TRY(const std::string display, optional_string(v, "display", "thinking"));
    c.create.omit_thinking = display == "omitted";
    std::string& effort = c.request.reasoning_effort;
    if (type == "disabled") {
        effort = "none";
    } else if (type == "enabled") {
        const Json* budget = given(v, "budget_tokens");
        if (budget == nullptr) return missing("thinking.budget_tokens");
        TRY(const std::int64_t tokens, read_int(*budget, "thinking.budget_tokens", 1024));
        effort = tokens < 4096 ? "low" : tokens < 16384 ? "medium" : "high";
    } else if (type != "adaptive" && type != "between_tools") {
        return bad_value("thinking.type", "expected 'enabled', 'adaptive' or 'disabled'.");
    }
    return {};
}

Result<void> output_config(const Json& v, Context& c) {  // after thinking
    if (!v.is_object()) return wrong_type(v, "output_config", "an object");
    TRY(const std::string effort, optional_string(v, "effort", "output_config"));
    if (effort.size() > 32) return bad_value("output_config.effort", "it is longer than 32 bytes.");
    if (!effort.empty() && c.request.reasoning_effort != "none")
        c.request.reasoning_effort = effort;
    const Json* format = given(v, "format");
    if (format == nullptr) return {};
    const std::string path = "output_config.format";
    if (!format->is_object()) return wrong_type(*format, path, "an object");
    if (const Json* type = format->find("type"); type == nullptr || *type != Json("json_schema"))
        return bad_value(path + ".type", "expected 'json_schema'.");
    const Json* schema = given(*format, "schema");
    if (schema == nullptr) return missing(path + ".schema");
    if (!schema->is_object()) return wrong_type(*schema, path + ".schema", "a JSON schema");
    c.request.format.kind = model::OutputFormat::Kind::kJsonSchema;
    c.request.format.schema = *schema;
    c.request.format.strict = true;
    return {};
}

Result<void> metadata_of(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "metadata", "an object");
    c.request.metadata = v;
    TRY(c.request.user, optional_string(v, "user_id", "metadata"));
    return {};
}

// Handlers run in the order of the table.
constexpr Field<Context> kCreate[] = {
    {"model", Policy::kImplement, model_name<Context>, true},
    {"max_tokens", Policy::kImplement, max_tokens, true},
    {"system", Policy::kImplement, system_prompt},
    {"messages", Policy::kImplement, messages, true},
    {"stop_sequences", Policy::kImplement, stop_sequences},
    {"stream", Policy::kImplement, stream<Context>},
    {"temperature", Policy::kImplement, temperature<Context>},
    {"top_p", Policy::kImplement, top_p<Context>},
    {"top_k", Policy::kImplement, top_k<Context>},
    {"tools", Policy::kImplement, tools},
    {"tool_choice", Policy::kImplement, tool_choice},
    {"thinking", Policy::kImplement, thinking},
    {"output_config", Policy::kImplement, output_config},
    {"metadata", Policy::kImplement, metadata_of},

    {"seed", Policy::kExtra, seed<Context>},
    {"min_p", Policy::kExtra, min_p<Context>},
    {"repetition_penalty", Policy::kExtra, repetition_penalty<Context>},
    {"stop_token_ids", Policy::kExtra, stop_token_ids<Context>},
    {"cache_salt", Policy::kExtra, cache_salt<Context>},
    {"priority", Policy::kExtra, priority<Context>},
    {"ignore_eos", Policy::kExtra, ignore_eos<Context>},
    {"chat_template_kwargs", Policy::kExtra, template_args<Context>},

    {"betas", Policy::kAccept},
    {"cache_control", Policy::kAccept},
    {"compaction", Policy::kAccept},
    {"container", Policy::kAccept},
    {"context_management", Policy::kAccept},
    {"diagnostics", Policy::kAccept},
    {"fallbacks", Policy::kAccept},
    {"inference_geo", Policy::kAccept},
    {"mcp_servers", Policy::kAccept},
    {"service_tier", Policy::kAccept},
    {"speed", Policy::kAccept},
    {"thread", Policy::kAccept},
    {"user_profile_id", Policy::kAccept},
    {"workspace_id", Policy::kAccept},
};

Result<Create> parse(const Json& body, std::span<const Field<Context>> table, const Seal& seal,
                     const ParseLimits& limits) {
    Create create;
    create.request.endpoint = model::Endpoint::kMessages;
    Context context{create.request, create, body, seal, limits};
    TRY_VOID(read_fields(body, table, limits.strict_unknown_fields, create.request.ignored_fields,
                         context));
    return create;
}

}  // namespace

Result<Create> parse_create(const Json& body, const Seal& seal, const ParseLimits& limits) {
    TRY(Create create, parse(body, kCreate, seal, limits));
    // As Anthropic's newer models: to close that turn and open another would not be what was asked.
    const auto& messages = create.request.messages;
    if (!messages.empty() && messages.back().role == model::Role::kAssistant)
        return err(Code::kUnsupported,
                   "messages: the last one is the assistant's, and this model does not go on from "
                   "it (prefill). The conversation must end with a user message.",
                   "messages");
    return create;
}

Result<Create> parse_count(const Json& body, const Seal& seal, const ParseLimits& limits) {
    std::vector<Field<Context>> table(std::begin(kCreate), std::end(kCreate));
    for (auto& field : table) {
        if (field.name == "max_tokens") field.required = false;
    }
    return parse(body, table, seal, limits);
}

std::vector<FieldPolicy> create_fields() { return policies<Context>(kCreate); }

}  // namespace nereid::dialect::messages
