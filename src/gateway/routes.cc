#include "gateway/routes.h"

#include <array>

namespace nereid::gateway {
namespace {

struct Entry {
    std::string_view path;
    Route route;
    bool post;  // else GET and HEAD
};
constexpr std::array kTable{
    Entry{"/v1/chat/completions", Route::kChat, true},
    Entry{"/chat/completions", Route::kChat, true},
    Entry{"/v1/completions", Route::kCompletions, true},
    Entry{"/completions", Route::kCompletions, true},
    Entry{"/v1/embeddings", Route::kEmbeddings, true},
    Entry{"/embeddings", Route::kEmbeddings, true},
    Entry{"/v1/models", Route::kModels, false},
    Entry{"/models", Route::kModels, false},
    Entry{"/tokenize", Route::kTokenize, true},
    Entry{"/v1/tokenize", Route::kTokenize, true},
    Entry{"/detokenize", Route::kDetokenize, true},
    Entry{"/v1/detokenize", Route::kDetokenize, true},
    Entry{"/health", Route::kHealth, false},
    Entry{"/ready", Route::kReady, false},
    Entry{"/metrics", Route::kMetrics, false},
    Entry{"/", Route::kRoot, false},
};
constexpr std::array<std::string_view, kRouteCount> kNames{
    "chat_completions", "completions", "embeddings", "models",  "model", "tokenize",
    "detokenize",       "health",      "ready",      "metrics", "root",  "unknown"};
constexpr std::string_view kModelPrefix = "/v1/models/";

RouteMatch with_method(Route route, bool post, std::string_view method, std::string_view id = {}) {
    const bool allowed = post ? method == "POST" : method == "GET" || method == "HEAD";
    return {route, allowed, post ? "POST" : "GET, HEAD", id};
}

}  // namespace

std::string_view to_string(Route route) { return kNames[static_cast<std::size_t>(route)]; }

bool needs_key(Route route) {
    return route != Route::kHealth && route != Route::kReady && route != Route::kMetrics &&
           route != Route::kRoot;
}

RouteMatch match_route(std::string_view method, std::string_view path) {
    if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    for (const Entry& e : kTable) {
        if (e.path == path) return with_method(e.route, e.post, method);
    }
    if (path.starts_with(kModelPrefix))
        return with_method(Route::kModel, false, method, path.substr(kModelPrefix.size()));
    return {};
}

}  // namespace nereid::gateway
