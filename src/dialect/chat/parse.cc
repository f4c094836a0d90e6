// The policy per field. Each endpoint has one table; docs/formats/dialect-chat.md is the same table
// for readers (dialect_doc_test.cc compares them).
#include <fmt/format.h>

#include <span>

#include "dialect/chat/chat.h"
#include "dialect/chat/endpoint_fields.h"
#include "dialect/chat/parse_parts.h"
#include "dialect/field_table.h"
#include "dialect/request_fields.h"

namespace nereid::dialect::chat {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

using model::Request;

// What a handler may look at besides its own value.
struct Context {
    Request& request;
    const Json& body;
    const ParseLimits& limits;
};

// ---------------------------------------------------------------- length and ends

Result<void> max_tokens(const Json& v, Context& c) {
    // Completions with echo may ask for the prompt alone.
    const bool prompt_only = c.request.endpoint == model::Endpoint::kCompletions && c.request.echo;
    TRY(const TokenCount count, read_count(v, "max_tokens", prompt_only ? 0 : 1));
    c.request.max_output_tokens = count;
    return {};
}
Result<void> max_completion_tokens(const Json& v,
                                   Context& c) {  // after max_tokens in the table: wins
    TRY(const TokenCount count, read_count(v, "max_completion_tokens", 1));
    c.request.max_output_tokens = count;
    return {};
}
Result<void> n(const Json& v, Context& c) {
    TRY(const std::int64_t count, read_int(v, "n", 1));
    if (count > c.limits.max_n)
        return unsupported(
            "n", fmt::format("{} is above this server's maximum {}.", count, c.limits.max_n));
    c.request.n = static_cast<std::uint32_t>(count);
    return {};
}
Result<void> best_of(const Json& v, Context& c) {  // after n
    TRY(const std::int64_t count, read_int(v, "best_of", 1));
    if (count != c.request.n)
        return unsupported("best_of", "only best_of equal to n is supported.");
    return {};
}
// ---------------------------------------------------------------- output

Result<void> logprobs(const Json& v, Context& c) {
    TRY(c.request.logprobs, read_bool(v, "logprobs"));
    return {};
}
Result<void> top_logprobs(const Json& v, Context& c) {  // after logprobs
    TRY(const std::int64_t count, read_int(v, "top_logprobs", 0, kMaxTopLogprobs));
    if (!c.request.logprobs) {
        if (count == 0) return {};
        return bad_value("top_logprobs", "it is only allowed when 'logprobs' is true.");
    }
    c.request.top_logprobs = static_cast<std::uint32_t>(count);
    return {};
}
Result<void> completion_logprobs(const Json& v, Context& c) {
    if (v.is_bool()) {  // seen from clients that mean the chat form
        c.request.logprobs = v.as_bool();
        return {};
    }
    TRY(const std::int64_t count, read_int(v, "logprobs", 0, kMaxTopLogprobs));
    c.request.logprobs = true;
    c.request.top_logprobs = static_cast<std::uint32_t>(count);
    return {};
}
Result<void> echo(const Json& v, Context& c) {
    TRY(c.request.echo, read_bool(v, "echo"));
    return {};
}
Result<void> stream_options(const Json& v, Context& c) {  // after stream
    if (!v.is_object()) return wrong_type(v, "stream_options", "an object");
    if (const Json* usage = given(v, "include_usage")) {
        TRY(const bool on, read_bool(*usage, "stream_options.include_usage"));
        c.request.include_usage = on && c.request.stream;
    }
    return {};
}

// Both ways to ask for a form of output may be sent, as long as only one constrains.
Result<void> set_format(std::string_view name, Result<model::OutputFormat> parsed, Context& c) {
    TRY(model::OutputFormat format, std::move(parsed));
    if (format.kind == model::OutputFormat::Kind::kText) return {};
    if (c.request.format.kind != model::OutputFormat::Kind::kText) {
        return bad_value(std::string(name), "another field constrains the output already.");
    }
    c.request.format = std::move(format);
    return {};
}
Result<void> response_format(const Json& v, Context& c) {
    return set_format("response_format", parse_response_format(v), c);
}
template <const char* kName>
Result<void> guided(const Json& v, Context& c) {
    return set_format(kName, parse_guided(kName, v), c);
}
constexpr char kStructuredOutputs[] = "structured_outputs";
constexpr char kGuidedJson[] = "guided_json";
constexpr char kGuidedRegex[] = "guided_regex";
constexpr char kGuidedChoice[] = "guided_choice";
constexpr char kGuidedGrammar[] = "guided_grammar";
constexpr char kGuidedJsonObject[] = "guided_json_object";
constexpr char kGrammar[] = "grammar";
constexpr char kJsonSchema[] = "json_schema";
constexpr char kRegex[] = "regex";
constexpr char kEbnf[] = "ebnf";

// ---------------------------------------------------------------- conversation and tools

Result<void> messages(const Json& v, Context& c) {
    TRY(c.request.messages, parse_messages(v, c.limits.max_messages, c.request.ignored_fields));
    return {};
}
Result<void> tools(const Json& v, Context& c) {
    TRY(c.request.tools, parse_tools(v));
    return {};
}
Result<void> functions(const Json& v, Context& c) {  // after tools
    if (given(c.body, "tools") != nullptr)
        return unsupported("functions", "it cannot be combined with 'tools'.");
    TRY(c.request.tools, parse_functions(v));
    c.request.legacy_functions = true;
    c.request.parallel_tool_calls = false;  // its answer has room for one
    return {};
}
Result<void> tool_choice(const Json& v, Context& c) {  // after tools and functions
    TRY(c.request.tool_choice, parse_tool_choice(v));
    return check_tool_choice(c.request.tool_choice, c.request.tools);
}
Result<void> function_call(const Json& v, Context& c) {
    if (given(c.body, "tool_choice") != nullptr)
        return unsupported("function_call", "it cannot be combined with 'tool_choice'.");
    TRY(c.request.tool_choice, parse_function_call(v));
    return check_tool_choice(c.request.tool_choice, c.request.tools);
}
Result<void> reasoning_effort(const Json& v, Context& c) {
    TRY(c.request.reasoning_effort, read_string(v, "reasoning_effort"));
    if (c.request.reasoning_effort.size() > 32)
        return bad_value("reasoning_effort", "it is longer than 32 bytes.");
    return {};
}
// DeepSeek's switch: {"type":"enabled"|"disabled"}. An explicit reasoning_effort wins.
Result<void> thinking(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "thinking", "an object");
    TRY(const std::string type, optional_string(v, "type", "thinking"));
    if (type == "disabled") {
        if (c.request.reasoning_effort.empty()) c.request.reasoning_effort = "none";
    } else if (type != "enabled" && type != "adaptive" && !type.empty()) {
        return bad_value("thinking.type", "expected 'enabled' or 'disabled'.");
    }
    return {};
}
Result<void> add_generation_prompt(const Json& v, Context& c) {
    TRY(c.request.add_generation_prompt, read_bool(v, "add_generation_prompt"));
    return {};
}

// ---------------------------------------------------------------- conditional refusals

Result<void> modalities(const Json& v, Context&) {
    if (!v.is_array()) return wrong_type(v, "modalities", "an array");
    for (const Json& mode : v.as_array()) {
        if (mode != Json("text")) return unsupported("modalities", "only 'text' is supported.");
    }
    return {};
}
// Fields that change the answer, but whose "off" value says nothing.
template <const char* kName>
Result<void> only_false(const Json& v, Context&) {
    if (v == Json(false)) return {};
    return unsupported(kName, "it is not supported.");
}
constexpr char kContinueFinalMessage[] = "continue_final_message";
constexpr char kUseBeamSearch[] = "use_beam_search";

// ---------------------------------------------------------------- prompts

Result<void> suffix(const Json& v, Context& c) {
    TRY(c.request.suffix, read_string(v, "suffix"));
    if (!c.request.suffix.empty() && !c.limits.suffix)
        return unsupported("suffix", "this model cannot fill in the middle.");
    return {};
}

// A string, an array of strings, an array of token ids, or an array of arrays of token ids.
Result<void> read_prompts(const Json& v, const std::string& path, Context& c) {
    auto& prompts = c.request.prompts;
    if (v.is_string()) {
        prompts.emplace_back(v.as_string());
        return {};
    }
    if (!v.is_array()) return wrong_type(v, path, "a string or an array");
    if (v.size() == 0) return bad_value(path, "the array is empty.");
    if (v.as_array()[0].is_number()) {
        TRY(auto ids, read_token_ids(v, path));
        prompts.emplace_back(std::move(ids));
        return {};
    }
    if (v.size() > c.limits.max_prompts) {
        return bad_value(
            path, fmt::format("{} entries are more than {}.", v.size(), c.limits.max_prompts));
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
        const Json& entry = v.as_array()[i];
        const std::string entry_path = at_index(path, i);
        if (entry.is_string()) {
            prompts.emplace_back(entry.as_string());
            continue;
        }
        if (!entry.is_array())
            return wrong_type(entry, entry_path, "a string or an array of token ids");
        if (entry.size() == 0) return bad_value(entry_path, "the array is empty.");
        TRY(auto ids, read_token_ids(entry, entry_path));
        prompts.emplace_back(std::move(ids));
    }
    return {};
}
Result<void> prompt(const Json& v, Context& c) { return read_prompts(v, "prompt", c); }
Result<void> input(const Json& v, Context& c) {
    TRY_VOID(read_prompts(v, "input", c));
    for (std::size_t i = 0; i < c.request.prompts.size(); ++i) {
        const auto* text = std::get_if<std::string>(&c.request.prompts[i]);
        if (text != nullptr && text->empty())
            return bad_value(v.is_string() ? "input" : at_index("input", i), "it is empty.");
    }
    return {};
}
Result<void> encoding_format(const Json& v, Context& c) {
    TRY(c.request.encoding_format, read_string(v, "encoding_format"));
    if (c.request.encoding_format != "float" && c.request.encoding_format != "base64") {
        return bad_value("encoding_format", "expected 'float' or 'base64'.");
    }
    return {};
}
Result<void> dimensions(const Json& v, Context& c) {
    TRY(const std::int64_t count, read_int(v, "dimensions", 1, 1 << 20));
    c.request.dimensions = static_cast<std::uint32_t>(count);
    return {};
}

// ---------------------------------------------------------------- tables

// Handlers run in the order of the table, whatever the order in the body.
constexpr Field<Context> kChat[] = {
    {"model", Policy::kImplement, model_name<Context>, true},
    {"messages", Policy::kImplement, messages, true},
    {"temperature", Policy::kImplement, temperature<Context>},
    {"top_p", Policy::kImplement, top_p<Context>},
    {"frequency_penalty", Policy::kImplement, frequency_penalty<Context>},
    {"presence_penalty", Policy::kImplement, presence_penalty<Context>},
    {"seed", Policy::kImplement, seed<Context>},
    {"logit_bias", Policy::kImplement, logit_bias<Context>},
    {"max_tokens", Policy::kImplement, max_tokens},
    {"max_completion_tokens", Policy::kImplement, max_completion_tokens},
    {"n", Policy::kImplement, n},
    {"stop", Policy::kImplement, stop<Context>},
    {"logprobs", Policy::kImplement, logprobs},
    {"top_logprobs", Policy::kImplement, top_logprobs},
    {"stream", Policy::kImplement, stream<Context>},
    {"stream_options", Policy::kImplement, stream_options},
    {"tools", Policy::kImplement, tools},
    {"functions", Policy::kImplement, functions},
    {"tool_choice", Policy::kImplement, tool_choice},
    {"function_call", Policy::kImplement, function_call},
    {"parallel_tool_calls", Policy::kImplement, parallel_tool_calls<Context>},
    {"response_format", Policy::kImplement, response_format},
    {"reasoning_effort", Policy::kImplement, reasoning_effort},
    {"user", Policy::kImplement, user<Context>},
    {"safety_identifier", Policy::kImplement, safety_identifier<Context>},
    {"prompt_cache_key", Policy::kImplement, prompt_cache_key<Context>},
    {"metadata", Policy::kImplement, metadata<Context>},

    {"top_k", Policy::kExtra, top_k<Context>},
    {"min_p", Policy::kExtra, min_p<Context>},
    {"repetition_penalty", Policy::kExtra, repetition_penalty<Context>},
    {"stop_token_ids", Policy::kExtra, stop_token_ids<Context>},
    {"cache_salt", Policy::kExtra, cache_salt<Context>},
    {"priority", Policy::kExtra, priority<Context>},
    {"ignore_eos", Policy::kExtra, ignore_eos<Context>},
    {"thinking", Policy::kExtra, thinking},
    {"chat_template_kwargs", Policy::kExtra, template_args<Context>},
    {"add_generation_prompt", Policy::kExtra, add_generation_prompt},
    {"structured_outputs", Policy::kExtra, guided<kStructuredOutputs>},
    {"guided_json", Policy::kExtra, guided<kGuidedJson>},
    {"guided_regex", Policy::kExtra, guided<kGuidedRegex>},
    {"guided_choice", Policy::kExtra, guided<kGuidedChoice>},
    {"guided_grammar", Policy::kExtra, guided<kGuidedGrammar>},
    {"guided_json_object", Policy::kExtra, guided<kGuidedJsonObject>},
    {"grammar", Policy::kExtra, guided<kGrammar>},
    {"json_schema", Policy::kExtra, guided<kJsonSchema>},
    {"regex", Policy::kExtra, guided<kRegex>},
    {"ebnf", Policy::kExtra, guided<kEbnf>},

    {"service_tier", Policy::kAccept},
    {"store", Policy::kAccept},
    {"prediction", Policy::kAccept},
    {"verbosity", Policy::kAccept},
    {"prompt_cache_options", Policy::kAccept},
    {"prompt_cache_retention", Policy::kAccept},
    {"user_id", Policy::kAccept},

    {"audio", Policy::kRefuse},
    {"modalities", Policy::kRefuse, modalities},
    {"web_search_options", Policy::kRefuse},
    {"moderation", Policy::kRefuse},
    {"chat_template", Policy::kRefuse},
    {"continue_final_message", Policy::kRefuse, only_false<kContinueFinalMessage>},
    {"use_beam_search", Policy::kRefuse, only_false<kUseBeamSearch>},
};

constexpr Field<Context> kCompletion[] = {
    {"model", Policy::kImplement, model_name<Context>, true},
    {"prompt", Policy::kImplement, prompt, true},
    {"suffix", Policy::kImplement, suffix},
    {"echo", Policy::kImplement, echo},
    {"temperature", Policy::kImplement, temperature<Context>},
    {"top_p", Policy::kImplement, top_p<Context>},
    {"frequency_penalty", Policy::kImplement, frequency_penalty<Context>},
    {"presence_penalty", Policy::kImplement, presence_penalty<Context>},
    {"seed", Policy::kImplement, seed<Context>},
    {"logit_bias", Policy::kImplement, logit_bias<Context>},
    {"max_tokens", Policy::kImplement, max_tokens},
    {"n", Policy::kImplement, n},
    {"best_of", Policy::kImplement, best_of},
    {"stop", Policy::kImplement, stop<Context>},
    {"logprobs", Policy::kImplement, completion_logprobs},
    {"stream", Policy::kImplement, stream<Context>},
    {"stream_options", Policy::kImplement, stream_options},
    {"user", Policy::kImplement, user<Context>},
    {"prompt_cache_key", Policy::kImplement, prompt_cache_key<Context>},

    {"response_format", Policy::kExtra, response_format},
    {"top_k", Policy::kExtra, top_k<Context>},
    {"min_p", Policy::kExtra, min_p<Context>},
    {"repetition_penalty", Policy::kExtra, repetition_penalty<Context>},
    {"stop_token_ids", Policy::kExtra, stop_token_ids<Context>},
    {"cache_salt", Policy::kExtra, cache_salt<Context>},
    {"priority", Policy::kExtra, priority<Context>},
    {"ignore_eos", Policy::kExtra, ignore_eos<Context>},
    {"structured_outputs", Policy::kExtra, guided<kStructuredOutputs>},
    {"guided_json", Policy::kExtra, guided<kGuidedJson>},
    {"guided_regex", Policy::kExtra, guided<kGuidedRegex>},
    {"guided_choice", Policy::kExtra, guided<kGuidedChoice>},
    {"guided_grammar", Policy::kExtra, guided<kGuidedGrammar>},
    {"guided_json_object", Policy::kExtra, guided<kGuidedJsonObject>},
    {"grammar", Policy::kExtra, guided<kGrammar>},
    {"json_schema", Policy::kExtra, guided<kJsonSchema>},
    {"regex", Policy::kExtra, guided<kRegex>},
    {"ebnf", Policy::kExtra, guided<kEbnf>},

    {"use_beam_search", Policy::kRefuse, only_false<kUseBeamSearch>},
};

constexpr Field<Context> kEmbedding[] = {
    {"model", Policy::kImplement, model_name<Context>, true},
    {"input", Policy::kImplement, input, true},
    {"encoding_format", Policy::kImplement, encoding_format},
    {"dimensions", Policy::kImplement, dimensions},
    {"user", Policy::kImplement, user<Context>},
    {"priority", Policy::kAccept},
};

Result<Request> parse(const Json& body, model::Endpoint endpoint,
                      std::span<const Field<Context>> table, const ParseLimits& limits) {
    Request request;
    request.endpoint = endpoint;
    Context context{request, body, limits};
    TRY_VOID(
        read_fields(body, table, limits.strict_unknown_fields, request.ignored_fields, context));
    return request;
}

}  // namespace

Result<Request> parse_chat(const Json& body, const ParseLimits& limits) {
    return parse(body, model::Endpoint::kChat, kChat, limits);
}

Result<Request> parse_completion(const Json& body, const ParseLimits& limits) {
    return parse(body, model::Endpoint::kCompletions, kCompletion, limits);
}

Result<Request> parse_embeddings(const Json& body, const ParseLimits& limits) {
    return parse(body, model::Endpoint::kEmbeddings, kEmbedding, limits);
}

std::vector<FieldPolicy> chat_fields() { return policies<Context>(kChat); }
std::vector<FieldPolicy> completion_fields() { return policies<Context>(kCompletion); }
std::vector<FieldPolicy> embedding_fields() { return policies<Context>(kEmbedding); }

}  // namespace nereid::dialect::chat
