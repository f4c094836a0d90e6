// The route table: method and path to Route. Pure.
//
// `/v1` may be left out for chat and completions (DeepSeek's clients), for the embeddings and for
// the tokenizer; a slash at the end is forgiven. Routes are few: a linear search over them is
// cheaper than a hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nereid::gateway {

enum class Route : std::uint8_t {
    kChat,
    kCompletions,
    kEmbeddings,
    kModels,
    kModel,  // /v1/models/{id}; the id may hold slashes
    kTokenize,
    kDetokenize,
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

struct RouteMatch {
    Route route = Route::kUnknown;
    bool method_allowed = false;
    std::string_view allow = {};  // for 405: "GET, HEAD"
    std::string_view id = {};     // kModel: a view into `path`
};
RouteMatch match_route(std::string_view method, std::string_view path);

}  // namespace nereid::gateway
