// The Chat Completions dialect (with Completions and Embeddings): pure translators in both
// directions.
//
// Inwards: the caller's JSON -> model::Request, and model::Event -> the caller's JSON / SSE frames.
// Fields, limits and shapes: docs/formats/dialect-chat.md (from OpenAI's published SDK types); the
// policy per field (implement, accept, refuse) is a table there and in parse.cc. Mirrored
// (mirror.h): for text backends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/units.h"
#include "dialect/answer.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::dialect::chat {

struct ParseLimits {
    std::uint32_t max_n = 16;
    std::size_t max_messages = 100'000;
    std::size_t max_stop = 16;           // OpenAI allows 4; real clients send more
    std::size_t max_prompts = 2048;      // completions and embeddings
    bool strict_unknown_fields = false;  // true: an unknown top-level field is kInvalidArgument
    bool suffix = false;  // completions: the engine can fill in the middle; else kUnsupported
};

// kInvalidArgument / kUnsupported with `param` naming the field ("messages[2].content"). Never
// throws.
Result<model::Request> parse_chat(const Json& body, const ParseLimits& limits = {});
Result<model::Request> parse_completion(const Json& body, const ParseLimits& limits = {});
Result<model::Request> parse_embeddings(const Json& body, const ParseLimits& limits = {});

// "stop", "length", "tool_calls" (or "function_call"), "content_filter"
std::string_view finish_name(model::FinishReason reason, bool legacy_functions = false);

struct ResponseMeta {
    std::string id;            // "chatcmpl-..." / "cmpl-..."
    std::string model;         // as the client named it
    std::int64_t created = 0;  // Unix seconds
    std::string system_fingerprint;
    bool include_usage = false;
    bool logprobs = false;
    std::uint32_t n = 1;
    model::Endpoint endpoint = model::Endpoint::kChat;
    std::string encoding_format = {};  // embeddings
    std::vector<std::string> echo =
        {};  // completions: prompt text per prompt, prepended to its choices
    // Completions with echo and logprobs: the prompt's tokens per prompt. A NaN logprob (the first
    // token's) is null.
    std::vector<std::vector<model::TokenLogprob>> echo_logprobs = {};
    bool service_tier = false;      // say it: "default"
    bool legacy_functions = false;  // the first call as `function_call`, others are not said
};
// Whether the request named a service tier; then its answer says which one it had.
bool names_service_tier(const model::Request& request);

// Streaming: each call appends whole SSE frames ("data: {...}\n\n") to `out`; the caller writes
// what one call appended with one write(). Done appends the usage frame (when asked for) and
// [DONE]; Failed appends an error frame and no [DONE] (A26). Order per choice as the SDK expects: a
// role delta first, finish_reason in a chunk of its own.
class StreamEncoder final : public Encoder {
  public:
    explicit StreamEncoder(ResponseMeta meta);
    ~StreamEncoder() override;
    void on(const model::Event& event, std::string& out) override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Not streaming: collects events; body() after Done. kInternal when called before.
class Collector final : public Whole {
  public:
    explicit Collector(ResponseMeta meta);
    ~Collector() override;
    void on(const model::Event& event) override;
    Result<std::string> body() const override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct ModelCard {
    std::string id;
    std::int64_t created = 0;
    std::string owned_by;
    TokenCount context = 0;
    Json capabilities = {};  // an object, shown as it is; null = not known
};
// Also satisfies the Anthropic SDK (facts/api §4). `has_more`: this is a page of a longer list.
std::string models_body(std::span<const ModelCard> models, bool has_more);
std::string model_body(const ModelCard& model);

}  // namespace nereid::dialect::chat
