// The policy per field. Each endpoint has one table; docs/formats/dialect-chat.md is the same table
// for readers (dialect_doc_test.cc compares them).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "dialect/chat/chat.h"
#include "dialect/chat/field_table.h"
#include "dialect/chat/fields.h"
#include "dialect/chat/parse_parts.h"

namespace nereid::dialect::chat {
namespace {

constexpr std::size_t kMaxIgnored = 64;
constexpr std::int64_t kMaxTopLogprobs = 20;

using model::Request;

// What a handler may look at besides its own value.
struct Context {
    Request& request;
    const Json& body;
    const ParseLimits& limits;
};

// ---------------------------------------------------------------- sampling

Result<void> temperature(const Json& v, Context& c) {
    TRY(c.request.sampling.temperature, read_number(v, "temperature", 0, 2));
    return {};
}
Result<void> top_p(const Json& v, Context& c) {
    TRY(c.request.sampling.top_p, read_number(v, "top_p", 0, 1, true));
    return {};
}
Result<void> top_k(const Json& v, Context& c) {
    TRY(const std::int64_t k, read_int(v, "top_k", -1, std::numeric_limits<std::int32_t>::max()));
    if (k > 0) c.request.sampling.top_k = static_cast<std::int32_t>(k);  // 0 and -1 mean "off"
    return {};
}
Result<void> min_p(const Json& v, Context& c) {
    TRY(c.request.sampling.min_p, read_number(v, "min_p", 0, 1));
    return {};
}
Result<void> frequency_penalty(const Json& v, Context& c) {
    TRY(c.request.sampling.frequency_penalty, read_number(v, "frequency_penalty", -2, 2));
    return {};
}
Result<void> presence_penalty(const Json& v, Context& c) {
    TRY(c.request.sampling.presence_penalty, read_number(v, "presence_penalty", -2, 2));
    return {};
}
Result<void> repetition_penalty(const Json& v, Context& c) {
    TRY(c.request.sampling.repetition_penalty,
        read_number(v, "repetition_penalty", 0, std::numeric_limits<double>::infinity(), true));
    return {};
}
Result<void> seed(const Json& v, Context& c) {
    TRY(const std::int64_t s, read_int(v, "seed", std::numeric_limits<std::int64_t>::min()));
    c.request.sampling.seed = static_cast<std::uint64_t>(s);  // two's complement: -1 is 2^64 - 1
    return {};
}

Result<void> logit_bias(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "logit_bias", "an object");
    std::map<TokenId, float> bias;  // ordered by id, the last of equal keys wins
    for (const auto& [key, value] : v.as_object()) {
        TokenId id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc{} || end != key.data() + key.size() || id < 0) {
            return bad_value("logit_bias",
                             fmt::format("the key '{}' is not a token id.", key.substr(0, 32)));
        }
        TRY(const double b, read_number(value, member_path("logit_bias", key), -100, 100));
        bias[id] = static_cast<float>(b);
    }
    c.request.sampling.logit_bias.assign(bias.begin(), bias.end());
    return {};
}

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
Result<void> stop(const Json& v, Context& c) {
    if (v.is_string()) {
        if (!v.as_string().empty()) c.request.stop.push_back(v.as_string());
        return {};
    }
    if (!v.is_array()) return wrong_type(v, "stop", "a string or an array of strings");
    if (v.size() > c.limits.max_stop) {
        return bad_value(
            "stop", fmt::format("{} stop strings are more than {}.", v.size(), c.limits.max_stop));
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
        TRY(std::string text, read_string(v.as_array()[i], at_index("stop", i)));
        if (!text.empty()) c.request.stop.push_back(std::move(text));
    }
    return {};
}
Result<void> stop_token_ids(const Json& v, Context& c) {
    TRY(c.request.stop_token_ids, read_token_ids(v, "stop_token_ids"));
    return {};
}
Result<void> ignore_eos(const Json& v, Context& c) {
    TRY(c.request.ignore_eos, read_bool(v, "ignore_eos"));
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
Result<void> stream(const Json& v, Context& c) {
    TRY(c.request.stream, read_bool(v, "stream"));
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

Result<void> model_name(const Json& v, Context& c) {
    TRY(c.request.model, read_string(v, "model"));
    if (c.request.model.empty()) return bad_value("model", "it is empty.");
    return {};
}
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
Result<void> parallel_tool_calls(const Json& v, Context& c) {
    TRY(c.request.parallel_tool_calls, read_bool(v, "parallel_tool_calls"));
    return {};
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
Result<void> template_args(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "chat_template_kwargs", "an object");
    c.request.template_args = v;
    return {};
}
Result<void> add_generation_prompt(const Json& v, Context& c) {
    TRY(c.request.add_generation_prompt, read_bool(v, "add_generation_prompt"));
    return {};
}

// ---------------------------------------------------------------- who asks

Result<void> user(const Json& v, Context& c) {
    TRY(c.request.user, read_string(v, "user"));
    return {};
}
Result<void> safety_identifier(const Json& v, Context& c) {  // after user: wins
    TRY(c.request.user, read_string(v, "safety_identifier"));
    return {};
}
Result<void> prompt_cache_key(const Json& v, Context& c) {
    TRY(c.request.affinity_key, read_string(v, "prompt_cache_key"));
    return {};
}
Result<void> metadata(const Json& v, Context& c) {
    if (!v.is_object()) return wrong_type(v, "metadata", "an object");
    c.request.metadata = v;
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

using Handler = Result<void> (*)(const Json&, Context&);

struct Field {
    std::string_view name;
    Policy policy;
    Handler handler = nullptr;  // kImplement, and conditional kRefuse
    bool required = false;
};

// Handlers run in the order of the table, whatever the order in the body.
constexpr Field kChat[] = {
    {"model", Policy::kImplement, model_name, true},
    {"messages", Policy::kImplement, messages, true},
    {"temperature", Policy::kImplement, temperature},
    {"top_p", Policy::kImplement, top_p},
    {"frequency_penalty", Policy::kImplement, frequency_penalty},
    {"presence_penalty", Policy::kImplement, presence_penalty},
    {"seed", Policy::kImplement, seed},
    {"logit_bias", Policy::kImplement, logit_bias},
    {"max_tokens", Policy::kImplement, max_tokens},
    {"max_completion_tokens", Policy::kImplement, max_completion_tokens},
    {"n", Policy::kImplement, n},
    {"stop", Policy::kImplement, stop},
    {"logprobs", Policy::kImplement, logprobs},
    {"top_logprobs", Policy::kImplement, top_logprobs},
    {"stream", Policy::kImplement, stream},
    {"stream_options", Policy::kImplement, stream_options},
    {"tools", Policy::kImplement, tools},
    {"functions", Policy::kImplement, functions},
    {"tool_choice", Policy::kImplement, tool_choice},
    {"function_call", Policy::kImplement, function_call},
    {"parallel_tool_calls", Policy::kImplement, parallel_tool_calls},
    {"response_format", Policy::kImplement, response_format},
    {"reasoning_effort", Policy::kImplement, reasoning_effort},
    {"user", Policy::kImplement, user},
    {"safety_identifier", Policy::kImplement, safety_identifier},
    {"prompt_cache_key", Policy::kImplement, prompt_cache_key},
    {"metadata", Policy::kImplement, metadata},

    {"top_k", Policy::kExtra, top_k},
    {"min_p", Policy::kExtra, min_p},
    {"repetition_penalty", Policy::kExtra, repetition_penalty},
    {"stop_token_ids", Policy::kExtra, stop_token_ids},
    {"ignore_eos", Policy::kExtra, ignore_eos},
    {"thinking", Policy::kExtra, thinking},
    {"chat_template_kwargs", Policy::kExtra, template_args},
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
    {"cache_salt", Policy::kAccept},
    {"priority", Policy::kAccept},
    {"user_id", Policy::kAccept},

    {"audio", Policy::kRefuse},
    {"modalities", Policy::kRefuse, modalities},
    {"web_search_options", Policy::kRefuse},
    {"moderation", Policy::kRefuse},
    {"chat_template", Policy::kRefuse},
    {"continue_final_message", Policy::kRefuse, only_false<kContinueFinalMessage>},
    {"use_beam_search", Policy::kRefuse, only_false<kUseBeamSearch>},
};

constexpr Field kCompletion[] = {
    {"model", Policy::kImplement, model_name, true},
    {"prompt", Policy::kImplement, prompt, true},
    {"suffix", Policy::kImplement, suffix},
    {"echo", Policy::kImplement, echo},
    {"temperature", Policy::kImplement, temperature},
    {"top_p", Policy::kImplement, top_p},
    {"frequency_penalty", Policy::kImplement, frequency_penalty},
    {"presence_penalty", Policy::kImplement, presence_penalty},
    {"seed", Policy::kImplement, seed},
    {"logit_bias", Policy::kImplement, logit_bias},
    {"max_tokens", Policy::kImplement, max_tokens},
    {"n", Policy::kImplement, n},
    {"best_of", Policy::kImplement, best_of},
    {"stop", Policy::kImplement, stop},
    {"logprobs", Policy::kImplement, completion_logprobs},
    {"stream", Policy::kImplement, stream},
    {"stream_options", Policy::kImplement, stream_options},
    {"user", Policy::kImplement, user},
    {"prompt_cache_key", Policy::kImplement, prompt_cache_key},

    {"response_format", Policy::kExtra, response_format},
    {"top_k", Policy::kExtra, top_k},
    {"min_p", Policy::kExtra, min_p},
    {"repetition_penalty", Policy::kExtra, repetition_penalty},
    {"stop_token_ids", Policy::kExtra, stop_token_ids},
    {"ignore_eos", Policy::kExtra, ignore_eos},
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

    {"cache_salt", Policy::kAccept},
    {"priority", Policy::kAccept},

    {"use_beam_search", Policy::kRefuse, only_false<kUseBeamSearch>},
};

constexpr Field kEmbedding[] = {
    {"model", Policy::kImplement, model_name, true},
    {"input", Policy::kImplement, input, true},
    {"encoding_format", Policy::kImplement, encoding_format},
    {"dimensions", Policy::kImplement, dimensions},
    {"user", Policy::kImplement, user},
    {"priority", Policy::kAccept},
};

void note_ignored(std::string_view name, Request& request) {
    if (request.ignored_fields.size() < kMaxIgnored)
        request.ignored_fields.emplace_back(name.substr(0, 64));
}

// One pass over the body finds the last occurrence of each field, so that a body of many members
// costs no more.
Result<void> find_fields(const Json& body, std::span<const Field> table,
                         std::span<const Json*> found, Context& context) {
    for (const auto& [name, value] : body.as_object()) {
        const auto field = std::ranges::find(table, std::string_view(name), &Field::name);
        if (field != table.end()) {
            found[static_cast<std::size_t>(field - table.begin())] = &value;
            continue;
        }
        if (context.limits.strict_unknown_fields) {
            return err(
                Code::kInvalidArgument,
                fmt::format("Unrecognized request argument supplied: {}", name.substr(0, 64)),
                name.substr(0, 64));
        }
        if (!value.is_null()) note_ignored(name, context.request);
    }
    return {};
}

Result<Request> parse(const Json& body, model::Endpoint endpoint, std::span<const Field> table,
                      const ParseLimits& limits) {
    if (!body.is_object()) {
        return err(Code::kInvalidArgument,
                   fmt::format("The body must be a JSON object, not {}.", body.kind_name()));
    }
    Request request;
    request.endpoint = endpoint;
    Context context{request, body, limits};
    std::array<const Json*, 96> found{};
    CHECK(table.size() <= found.size());
    TRY_VOID(find_fields(body, table, std::span(found).first(table.size()), context));
    for (std::size_t i = 0; i < table.size(); ++i) {
        const Field& field = table[i];
        if (found[i] == nullptr || found[i]->is_null()) {  // SDKs send null for "not given"
            if (field.required) return missing(std::string(field.name));
            continue;
        }
        if (field.handler != nullptr) {
            TRY_VOID(field.handler(*found[i], context));
        } else if (field.policy == Policy::kRefuse) {
            return unsupported(std::string(field.name), "it is not supported.");
        } else {
            note_ignored(field.name, request);
        }
    }
    return request;
}

std::vector<FieldPolicy> policies(std::span<const Field> table) {
    std::vector<FieldPolicy> out;
    for (const Field& field : table) out.push_back({field.name, field.policy});
    return out;
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

std::vector<FieldPolicy> chat_fields() { return policies(kChat); }
std::vector<FieldPolicy> completion_fields() { return policies(kCompletion); }
std::vector<FieldPolicy> embedding_fields() { return policies(kEmbedding); }

}  // namespace nereid::dialect::chat
