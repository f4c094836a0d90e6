// The canonical request: what every API dialect is translated into and every backend is fed from.
//
// Dialects (dialect/*) parse their JSON into a Request; the gateway never looks at dialect JSON
// again. For token engines the gateway renders and tokenises it; for text engines engine/openai
// writes it out as Chat Completions. Optional fields mean "the caller did not say": the default
// belongs to whoever consumes the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace nereid::model {

enum class Role : std::uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct TextPart {
    std::string text;
};
struct ImagePart {
    std::string url;           // http(s) URL, or
    std::string file_id = {};  // of a stored file; both are empty when `bytes` is set
    std::string bytes;         // the file as it came: base64 undone, or fetched by the gateway
    std::string media_type;    // as the caller says; once decoded, what it is
    std::string detail;        // "auto", "low", "high" or empty
    std::uint32_t width = 0;   // pixels; 0 = not decoded yet (gateway/image_decode)
    std::uint32_t height = 0;
    std::string path = {};  // where it stands in the caller's own request, for errors
    // false: a note takes its place when it cannot be shown to the model, since its sender cannot
    // take it back (a tool's result, an earlier turn).
    bool required = true;
};
struct RefusalPart {
    std::string text;
};
// A file that the model reads as text. The gateway puts a TextPart in its place
// (gateway/attachments): no template, engine or server sees one.
struct DocumentPart {
    std::string url;  // as an image's
    std::string file_id;
    std::string bytes;
    std::string media_type;  // as the caller says; may be empty
    std::string name;        // file name or title; may be empty
    std::string context;     // what the caller says about it
    std::string path = {};
    bool required = true;  // as an image
};
using Part = std::variant<TextPart, ImagePart, RefusalPart, DocumentPart>;

struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;        // the model's own bytes; may be invalid JSON (case A101)
    std::string name_space = {};  // Responses' namespace tools; empty elsewhere
    bool custom = false;          // free-form input instead of JSON arguments
};

struct Message {
    Role role = Role::kUser;
    std::vector<Part> parts;                // empty for content null or absent (cases A69, A70)
    std::string reasoning = {};             // assistant history: reasoning_content
    std::vector<ToolCall> tool_calls = {};  // assistant
    std::string tool_call_id = {};          // tool
    std::string name = {};
};

struct Tool {
    std::string name;
    std::string description;
    Json parameters;  // JSON schema; null when the caller gave none
    bool strict = false;
    bool custom = false;
    Json format;  // custom tools: {"type":"text"} or a grammar
    std::string name_space = {};
};

struct ToolChoice {
    enum class Kind : std::uint8_t { kAuto, kNone, kRequired, kNamed } kind = Kind::kAuto;
    std::string name = {};                  // kNamed
    std::vector<std::string> allowed = {};  // allowed_tools; empty = all
};

struct OutputFormat {
    enum class Kind : std::uint8_t {
        kText,
        kJsonObject,
        kJsonSchema,
        kRegex,
        kGrammar
    } kind = Kind::kText;
    std::string name = {};
    Json schema = {};  // kJsonSchema
    bool strict = false;
    std::string source = {};  // kRegex: the expression; kGrammar: the text
    std::string syntax = {};  // kGrammar: "gbnf", "lark", "ebnf"
};

struct SamplingParams {
    std::optional<double> temperature;         // [0, 2]; 0 = greedy
    std::optional<double> top_p;               // (0, 1]
    std::optional<std::int32_t> top_k;         // >= 1; absent or <= 0 = off
    std::optional<double> min_p;               // [0, 1)
    std::optional<double> frequency_penalty;   // [-2, 2]
    std::optional<double> presence_penalty;    // [-2, 2]
    std::optional<double> repetition_penalty;  // > 0
    std::optional<std::uint64_t> seed;
    std::vector<std::pair<TokenId, float>> logit_bias;
    bool operator==(const SamplingParams&) const = default;
};

enum class Endpoint : std::uint8_t { kChat, kCompletions, kEmbeddings, kResponses, kMessages };

struct Request {
    Endpoint endpoint = Endpoint::kChat;
    std::string model;
    std::vector<Message> messages;  // chat-like endpoints
    // Completions and embeddings: each entry is one prompt, as text or as token ids.
    std::vector<std::variant<std::string, std::vector<TokenId>>> prompts;
    std::string suffix;  // completions fill-in-the-middle

    SamplingParams sampling;
    std::optional<TokenCount> max_output_tokens;  // absent = as much as the context leaves
    std::uint32_t n = 1;
    std::vector<std::string> stop;  // cut before the first occurrence of any
    std::vector<TokenId> stop_token_ids;
    bool ignore_eos = false;
    bool logprobs = false;
    std::uint32_t top_logprobs = 0;  // 0..20
    bool echo = false;               // completions

    bool stream = false;
    bool include_usage = false;  // a last usage frame in the stream

    std::vector<Tool> tools;
    ToolChoice tool_choice;
    bool parallel_tool_calls = true;
    bool legacy_functions = false;  // OpenAI's deprecated form: the answer is in it too
    OutputFormat format;
    std::string reasoning_effort;  // "", "none", "minimal", "low", "medium", "high", ...
    Json template_args;            // chat_template_kwargs, an object or null
    bool add_generation_prompt = true;
    bool drop_oldest_turns = false;  // a chat that does not fit loses its first turns (truncation
                                     // "auto")

    std::string user;          // user / safety_identifier
    std::string affinity_key;  // prompt_cache_key, session ids: routing only, never identity
    std::string cache_salt;    // KV is reused among requests of one caller with the same salt
    std::optional<std::int64_t> priority;  // vLLM's and SGLang's; ours serve in order
    Json metadata;
    std::string encoding_format;              // embeddings: "", "float", "base64"
    std::optional<std::uint32_t> dimensions;  // embeddings
    std::vector<std::string> ignored_fields;  // accepted and not acted on, for the access log
};

}  // namespace nereid::model
