// The route table: method and path to Route. Pure.
//
// `/v1` may be left out for the generating endpoints (DeepSeek's clients), for the embeddings and
// for the tokenizer; a slash at the end is forgiven. Paths without a variable are compared whole,
// the busiest first; the others by their segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nereid::gateway {

enum class Route : std::uint8_t {
    kChat,
    kCompletions,
    kEmbeddings,
    kMessages,
    kResponses,
    kModels,
    kModel,  // /v1/models/{id}; the id may hold slashes
    kTokenize,
    kDetokenize,
    kCountTokens,
    kInputTokens,
    kCompact,
    kResponse,  // GET, DELETE
    kResponseCancel,
    kInputItems,
    kConversations,
    kConversation,       // GET, POST, DELETE
    kConversationItems,  // GET, POST
    kConversationItem,   // GET, DELETE; id2 = the item's
    kMessageBatches,     // GET, POST
    kMessageBatch,       // GET, DELETE
    kMessageBatchCancel,
    kMessageBatchResults,
    kFiles,  // GET, POST
    kFile,   // GET, DELETE
    kFileContent,
    kBatches,  // GET, POST
    kBatch,
    kBatchCancel,
    kHealth,
    kReady,
    kMetrics,
    kRoot,
    kUnknown,  // answered 404
};
inline constexpr std::size_t kRouteCount = static_cast<std::size_t>(Route::kUnknown) + 1;

// Stable: the label of metrics and of the access log.
std::string_view to_string(Route route);
// Whether the route answers without a key. Health, readiness and metrics are for machines of the
// operator and name neither keys nor prompts.
bool needs_key(Route route);
// Whether a request's headers and errors are in Anthropic's shape; else in OpenAI's. Files and
// models have one path for both, and a path may be none of ours: there it is whoever sends an
// `anthropic-version`.
bool speaks_messages(Route route, std::string_view path, bool anthropic_version);
// Whether a path or target is below Messages, though it may be no route.
bool is_messages_path(std::string_view path);

struct RouteMatch {
    Route route = Route::kUnknown;
    bool method_allowed = false;
    std::string allow = {};    // for 405: "GET, HEAD"; only set when the method is not allowed
    std::string_view id = {};  // the path's variables: views into `path`
    std::string_view id2 = {};
};
RouteMatch match_route(std::string_view method, std::string_view path);

}  // namespace nereid::gateway
