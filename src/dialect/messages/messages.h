// The Messages dialect (Anthropic's): a pure translator of requests, answers and errors.
//
// Fields, blocks, events: docs/formats/dialect-messages.md (from Anthropic's published SDK types
// and real clients). The answer has one choice. Reasoning comes back as thinking blocks with a
// signature (A89); blocks that clients return are opened again by the same Seal, and those of other
// servers are left out (A90, A91).
#pragma once

#include <cstdint>
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

namespace nereid::dialect::messages {

struct ParseLimits {
    std::size_t max_messages = 100'000;
    std::size_t max_stop = 16;
    bool strict_unknown_fields = false;
};

struct Create {
    model::Request request;
    bool omit_thinking = false;  // thinking.display "omitted": the signature hides the text
};

// Of POST /v1/messages. kInvalidArgument / kUnsupported with `param`. Never throws.
Result<Create> parse_create(const Json& body, const Seal& seal, const ParseLimits& limits = {});
// Of POST /v1/messages/count_tokens: the same request without the fields of an answer.
Result<Create> parse_count(const Json& body, const Seal& seal, const ParseLimits& limits = {});

std::vector<FieldPolicy> create_fields();

// 529 where Anthropic's clients wait for it, else as code_info says.
int error_status(const Error& error);
// {"type":"error","error":{"type","message"},"request_id"}; no request_id when it is empty
// (frames).
std::string error_body(const Error& error, std::string_view request_id);
std::string error_body(std::string_view type, std::string_view message,
                       std::string_view request_id);
// "invalid_request_error", ... of a status that the HTTP layer chose.
std::string_view error_type(int status);

struct ResponseMeta {
    std::string id;     // "msg_..."
    std::string model;  // as the client named it
    bool omit_thinking = false;
    TokenCount prompt_tokens = 0;  // for message_start; 0 = not known before the end
};

std::unique_ptr<Encoder> make_encoder(ResponseMeta meta, const Seal& seal);
std::unique_ptr<Whole> make_whole(ResponseMeta meta, const Seal& seal);

}  // namespace nereid::dialect::messages
