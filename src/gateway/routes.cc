#include "gateway/routes.h"

#include <array>

namespace nereid::gateway {
namespace {

enum Method : std::uint8_t { kGet = 1, kPost = 2, kDelete = 4 };

struct Entry {
    std::string_view path;  // `{}` is one segment, `{*}` at the end is the rest
    Route route;
    std::uint8_t methods;
};
constexpr std::array kWhole{
    Entry{"/v1/chat/completions", Route::kChat, kPost},
    Entry{"/v1/messages", Route::kMessages, kPost},
    Entry{"/v1/responses", Route::kResponses, kPost},
    Entry{"/v1/completions", Route::kCompletions, kPost},
    Entry{"/v1/embeddings", Route::kEmbeddings, kPost},
    Entry{"/v1/messages/count_tokens", Route::kCountTokens, kPost},
    Entry{"/v1/models", Route::kModels, kGet},
    Entry{"/health", Route::kHealth, kGet},
    Entry{"/ready", Route::kReady, kGet},
    Entry{"/metrics", Route::kMetrics, kGet},
    Entry{"/", Route::kRoot, kGet},
    Entry{"/chat/completions", Route::kChat, kPost},
    Entry{"/completions", Route::kCompletions, kPost},
    Entry{"/embeddings", Route::kEmbeddings, kPost},
    Entry{"/responses", Route::kResponses, kPost},
    Entry{"/anthropic/v1/messages", Route::kMessages, kPost},
    Entry{"/anthropic/v1/messages/count_tokens", Route::kCountTokens, kPost},
    Entry{"/models", Route::kModels, kGet},
    Entry{"/tokenize", Route::kTokenize, kPost},
    Entry{"/v1/tokenize", Route::kTokenize, kPost},
    Entry{"/detokenize", Route::kDetokenize, kPost},
    Entry{"/v1/detokenize", Route::kDetokenize, kPost},
    Entry{"/v1/responses/compact", Route::kCompact, kPost},
    Entry{"/v1/responses/input_tokens", Route::kInputTokens, kPost},
    Entry{"/v1/conversations", Route::kConversations, kPost},
    Entry{"/v1/messages/batches", Route::kMessageBatches, kGet | kPost},
    Entry{"/v1/files", Route::kFiles, kGet | kPost},
    Entry{"/v1/batches", Route::kBatches, kGet | kPost},
};
constexpr std::array kPatterns{
    Entry{"/v1/models/{*}", Route::kModel, kGet},
    Entry{"/v1/responses/{}", Route::kResponse, kGet | kDelete},
    Entry{"/v1/responses/{}/cancel", Route::kResponseCancel, kPost},
    Entry{"/v1/responses/{}/input_items", Route::kInputItems, kGet},
    Entry{"/v1/conversations/{}", Route::kConversation, kGet | kPost | kDelete},
    Entry{"/v1/conversations/{}/items", Route::kConversationItems, kGet | kPost},
    Entry{"/v1/conversations/{}/items/{}", Route::kConversationItem, kGet | kDelete},
    Entry{"/v1/messages/batches/{}", Route::kMessageBatch, kGet | kDelete},
    Entry{"/v1/messages/batches/{}/cancel", Route::kMessageBatchCancel, kPost},
    Entry{"/v1/messages/batches/{}/results", Route::kMessageBatchResults, kGet},
    Entry{"/v1/files/{}", Route::kFile, kGet | kDelete},
    Entry{"/v1/files/{}/content", Route::kFileContent, kGet},
    Entry{"/v1/batches/{}", Route::kBatch, kGet},
    Entry{"/v1/batches/{}/cancel", Route::kBatchCancel, kPost},
};
constexpr std::array<std::string_view, kRouteCount> kNames{"chat_completions",
                                                           "completions",
                                                           "embeddings",
                                                           "messages",
                                                           "responses",
                                                           "models",
                                                           "model",
                                                           "tokenize",
                                                           "detokenize",
                                                           "count_tokens",
                                                           "input_tokens",
                                                           "compact",
                                                           "response",
                                                           "response_cancel",
                                                           "input_items",
                                                           "conversations",
                                                           "conversation",
                                                           "conversation_items",
                                                           "conversation_item",
                                                           "message_batches",
                                                           "message_batch",
                                                           "message_batch_cancel",
                                                           "message_batch_results",
                                                           "files",
                                                           "file",
                                                           "file_content",
                                                           "batches",
                                                           "batch",
                                                           "batch_cancel",
                                                           "health",
                                                           "ready",
                                                           "metrics",
                                                           "root",
                                                           "unknown"};

std::uint8_t method_bit(std::string_view method) {
    if (method == "POST") return kPost;
    if (method == "GET" || method == "HEAD") return kGet;
    return method == "DELETE" ? kDelete : 0;
}

RouteMatch with_method(const Entry& e, std::string_view method) {
    RouteMatch out{.route = e.route, .method_allowed = (method_bit(method) & e.methods) != 0};
    if (out.method_allowed) return out;
    const auto allow = [&](std::uint8_t bit, std::string_view name) {
        if ((e.methods & bit) == 0) return;
        if (!out.allow.empty()) out.allow += ", ";
        out.allow += name;
    };
    allow(kGet, "GET, HEAD");
    allow(kPost, "POST");
    allow(kDelete, "DELETE");
    return out;
}

// Whether `path` is `pattern`; its variables go to `ids` in order.
bool matches(std::string_view pattern, std::string_view path,
             std::array<std::string_view, 2>& ids) {
    std::size_t variable = 0;
    while (!pattern.empty()) {
        if (pattern == "{*}") {
            ids[variable] = path;
            return !path.empty();
        }
        if (pattern.starts_with("{}")) {
            const auto end = path.find('/');
            ids[variable] = path.substr(0, end);
            if (ids[variable++].empty()) return false;
            path = end == std::string_view::npos ? std::string_view{} : path.substr(end);
            pattern.remove_prefix(2);
            continue;
        }
        if (path.empty() || path.front() != pattern.front()) return false;
        path.remove_prefix(1);
        pattern.remove_prefix(1);
    }
    return path.empty();
}

}  // namespace

std::string_view to_string(Route route) { return kNames[static_cast<std::size_t>(route)]; }

bool needs_key(Route route) {
    return route != Route::kHealth && route != Route::kReady && route != Route::kMetrics &&
           route != Route::kRoot;
}

bool is_messages_path(std::string_view path) {
    constexpr std::string_view kMessagesPath = "/v1/messages";
    if (!path.starts_with(kMessagesPath)) return false;
    path.remove_prefix(kMessagesPath.size());
    return path.empty() || path.front() == '/' || path.front() == '?';
}

bool speaks_messages(Route route, std::string_view path, bool anthropic_version) {
    switch (route) {
        case Route::kMessages:
        case Route::kCountTokens:
        case Route::kMessageBatches:
        case Route::kMessageBatch:
        case Route::kMessageBatchCancel:
        case Route::kMessageBatchResults:
            return true;
        case Route::kModels:
        case Route::kModel:
        case Route::kFiles:
        case Route::kFile:
        case Route::kFileContent:
        case Route::kUnknown:
            return anthropic_version || is_messages_path(path);
        default:
            return false;
    }
}

RouteMatch match_route(std::string_view method, std::string_view path) {
    if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    for (const Entry& e : kWhole) {
        if (e.path == path) return with_method(e, method);
    }
    for (const Entry& e : kPatterns) {
        std::array<std::string_view, 2> ids;
        if (!matches(e.path, path, ids)) continue;
        RouteMatch out = with_method(e, method);
        out.id = ids[0];
        out.id2 = ids[1];
        return out;
    }
    return {};
}

}  // namespace nereid::gateway
