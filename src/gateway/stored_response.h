// What is kept of a response, and what a turn finds of the turns before it.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "dialect/responses/responses.h"
#include "gateway/exchange.h"

namespace nereid::gateway {

// JSON that we have stored: what a caller sent, as deep as it may be, inside of ours.
Result<Json> parse_stored(std::string_view text);

inline constexpr char kResponseKind[] = "response";
inline constexpr char kConversationKind[] = "conversation";
inline constexpr char kItemKind[] = "conversation_item";

struct StoredResponse {
    Json response;      // the object
    Json::Array input;  // this turn's items
    std::string previous;
    std::string conversation;
};
// The record of a response. `response` is JSON already.
store::Record response_record(const Exchange& x, const std::string& id, std::string_view response,
                              const dialect::responses::Create& create);
// The same of one that was read before.
store::Record response_record(const Exchange& x, const std::string& id,
                              const StoredResponse& stored);
Result<StoredResponse> read_response_record(const store::Record& record);

store::Key response_key(const Exchange& x, std::string_view kind, std::string_view id);
// kNotFound in the caller's words.
io::Task<Result<StoredResponse>> load_response(Exchange& x, std::string id, std::string param);

// The items of all turns before this one, oldest first: of the conversation, or of the chain of
// previous responses. kNotFound, kConflict (still running).
io::Task<Result<Json::Array>> load_history(Exchange& x, const dialect::responses::Create& create);

// Puts the items that references of `create.input` name in their place: those of responses that are
// stored here, whose ids tell of which; at most a hundred responses. Others stay as they are.
io::Task<void> resolve_references(Exchange& x, dialect::responses::Create& create,
                                  const Json::Array& history);

// When what is stored now is to be forgotten; 0 = never.
std::int64_t expiry(const Exchange& x);
// The name of a job of this caller.
std::string job_name(const Exchange& x, std::string_view id);

// One item of a conversation as a record. Names of items are unique in their conversation.
store::Record item_record(const Exchange& x, const std::string& conversation, const Json& item);

}  // namespace nereid::gateway
