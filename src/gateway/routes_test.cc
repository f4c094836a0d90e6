#include "gateway/routes.h"

#include <gtest/gtest.h>

#include <set>

#include "gateway/record.h"

namespace nereid::gateway {
namespace {

TEST(Routes, Table) {
    struct Case {
        const char *method, *path;
        Route route;
        bool allowed;
    };
    const Case cases[] = {
        {"POST", "/v1/chat/completions", Route::kChat, true},
        {"POST", "/chat/completions", Route::kChat, true},
        {"POST", "/v1/chat/completions/", Route::kChat, true},
        {"GET", "/v1/chat/completions", Route::kChat, false},
        {"POST", "/v1/completions", Route::kCompletions, true},
        {"POST", "/v1/embeddings", Route::kEmbeddings, true},
        {"GET", "/v1/models", Route::kModels, true},
        {"GET", "/v1/models/", Route::kModels, true},
        {"POST", "/v1/models", Route::kModels, false},
        {"GET", "/v1/models/org/name", Route::kModel, true},
        {"DELETE", "/v1/models/x", Route::kModel, false},
        {"POST", "/tokenize", Route::kTokenize, true},
        {"POST", "/v1/detokenize", Route::kDetokenize, true},
        {"HEAD", "/", Route::kRoot, true},
        {"GET", "/health", Route::kHealth, true},
        {"HEAD", "/ready", Route::kReady, true},
        {"POST", "/metrics", Route::kMetrics, false},
        {"GET", "/v1", Route::kUnknown, false},
        {"POST", "/V1/chat/completions", Route::kUnknown, false},
        {"GET", "", Route::kUnknown, false},
        {"GET", "//", Route::kRoot, true},
    };
    for (const Case& c : cases) {
        const RouteMatch m = match_route(c.method, c.path);
        EXPECT_EQ(to_string(m.route), to_string(c.route)) << c.path;
        EXPECT_EQ(m.method_allowed, c.allowed) << c.method << c.path;
    }
    EXPECT_EQ(match_route("GET", "/v1/models/org/name").id, "org/name");
    EXPECT_EQ(match_route("GET", "/v1/chat/completions").allow, "POST");
    EXPECT_EQ(match_route("POST", "/health").allow, "GET, HEAD");
}

TEST(Routes, SharedPathsSpeakAsTheirCallerDoes) {
    for (const bool versioned : {false, true}) {
        EXPECT_TRUE(speaks_messages(Route::kMessages, "/anthropic/v1/messages", versioned));
        EXPECT_TRUE(speaks_messages(Route::kUnknown, "/v1/messages/x", versioned));
        EXPECT_FALSE(speaks_messages(Route::kChat, "/v1/chat/completions", versioned));
        EXPECT_FALSE(speaks_messages(Route::kResponse, "/v1/responses/x", versioned));
        EXPECT_EQ(speaks_messages(Route::kUnknown, "/v1/messagesx", versioned), versioned);
        for (const Route shared :
             {Route::kModels, Route::kModel, Route::kFiles, Route::kFile, Route::kFileContent})
            EXPECT_EQ(speaks_messages(shared, "/v1/x", versioned), versioned);
    }
}

TEST(Routes, NamesDiffer) {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < kRouteCount; ++i) names.insert(to_string(static_cast<Route>(i)));
    EXPECT_EQ(names.size(), kRouteCount);
}

TEST(RequestId, OnlySaneOnesAreKept) {
    EXPECT_EQ(sane_request_id("abc-1_2.3:x"), "abc-1_2.3:x");
    for (const std::string& bad : {std::string(), std::string("a b"), std::string("a\nb"),
                                   std::string(129, 'a'), std::string("\"")}) {
        EXPECT_EQ(sane_request_id(bad), "");
    }
}

}  // namespace
}  // namespace nereid::gateway
