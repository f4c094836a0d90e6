// The Responses dialect (OpenAI's): a pure translator of requests, items, answers and errors.
//
// Fields, items, events: docs/formats/dialect-responses.md (from OpenAI's published SDK types, the
// Open Responses schema, and Codex's own requests). State is the gateway's: it gives the items of
// earlier turns to add_messages and keeps what finished_response gives.
//
// Tools. Engines know functions only: a member of a namespace is shown to them as `ns__name`, a
// custom (free-form) tool as a function with one string `input` (A79), the client's tool_search as
// a function; ToolNames turns their calls back into items with `name` and `namespace` apart (A77,
// A102). Hosted tools (web search and the like) are dropped and noted; forcing one is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "dialect/answer.h"
#include "dialect/field_table.h"
#include "dialect/seal.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::dialect::responses {

struct ParseLimits {
    std::size_t max_items = 100'000;
    std::size_t max_stop = 16;
    bool strict_unknown_fields = false;
};

enum class ToolKind : std::uint8_t { kFunction, kCustom, kSearch };
struct ToolName {
    std::string name;
    std::string name_space;
    ToolKind kind = ToolKind::kFunction;
    std::size_t at = 0;  // in Create::request.tools
};
// By the name that engines see.
using ToolNames = std::map<std::string, ToolName, std::less<>>;

struct Create {
    model::Request request;  // without messages: see add_messages
    Json::Array input;       // this turn's items, each with a type; those without an id got one
    std::string instructions;
    std::string previous_response_id;
    std::string conversation;
    bool store = true;
    bool background = false;
    bool include_encrypted = false;  // include: reasoning.encrypted_content
    bool summary = false;            // reasoning.summary: thoughts are said as one, not as content
    Json settings;                   // the members of a response object that repeat the request
    ToolNames tools;
    Json tool_choice;  // read with the history, where earlier turns may have brought what it names
};

// Of POST /v1/responses. `id` is the response's, for the ids of its input items. kInvalidArgument /
// kUnsupported with `param`. Never throws.
Result<Create> parse_create(const Json& body, std::string_view id, const ParseLimits& limits = {});
std::vector<FieldPolicy> create_fields();

// `input` of any endpoint that takes items: a string or an array. What comes out can be stored.
Result<Json::Array> read_items(const Json& input, const std::string& path, std::string_view id,
                               std::size_t max_items = 100'000);

// Appends instructions, `history` (items of earlier turns, oldest first) and the turn's own input
// to create.request.messages. Unknown items are left out and noted. kInvalidArgument with the
// item's path; kUnsupported for parts that nothing here can read.
// kNotFound for a reference to an item that is not in the history. The input is then as it is to be
// stored: see settle_items.
Result<void> add_messages(Create& create, const Json::Array& history, const Seal& seal);

// Without references to what the history holds, and no id twice in both: an item whose id is taken
// gets one of its own.
void settle_items(Json::Array& items, const Json::Array& history);

// Whether items can be history: the error that add_messages would give for them, at `path`.
Result<void> check_items(const Json::Array& items, const std::string& path, const Seal& seal);

struct ResponseMeta {
    std::string id;     // "resp_..."
    std::string model;  // as the client named it
    std::int64_t created = 0;
    bool queued = false;                     // background: the stream says so first
    std::function<std::int64_t()> now = {};  // Unix seconds, for completed_at; null = created
};

// The answer as an item list. Both a stream and, with result(), the stored object.
class Answer : public Encoder, public Whole {
  public:
    // Streaming: frames `event: TYPE`, sequence numbers from 0; ends with exactly one of
    // response.completed, .incomplete, .failed (A29).
    void on(const model::Event& event, std::string& out) override = 0;
    // Not streaming.
    void on(const model::Event& event) override = 0;
    // The response object as it is now: status in_progress, completed, incomplete or failed. After
    // a failure it has `error`, and body() the Error.
    virtual std::string result() const = 0;
    virtual bool ended() const = 0;
    virtual bool failed() const = 0;
};
// `create` must outlive the answer.
std::unique_ptr<Answer> make_answer(ResponseMeta meta, const Create& create, const Seal& seal);

// A response object that has not begun, or was ended from outside: status queued, in_progress,
// cancelled or failed. `error` is only said with failed.
std::string response_object(const ResponseMeta& meta, const Create& create, std::string_view status,
                            const Error* error = nullptr);

void write_usage(JsonWriter& w, const model::Usage& usage);

// error.code in OpenAI's words.
std::string_view response_error_code(const Error& error);

}  // namespace nereid::dialect::responses
