#include "engine/openai/base_url.h"

#include <gmock/gmock.h>

namespace nereid::engine::openai {
namespace {

TEST(BaseUrl, AsPeopleWriteThem) {
    struct Case {
        const char* url;
        const char* host;
        int port;
        bool tls;
        const char* prefix;
    };
    const Case cases[] = {
        {"http://127.0.0.1:9001", "127.0.0.1", 9001, false, ""},
        {"http://127.0.0.1:9001/", "127.0.0.1", 9001, false, ""},
        {"http://h:1/v1", "h", 1, false, ""},
        {"http://h:1/v1/", "h", 1, false, ""},
        {"https://api.example.org", "api.example.org", 443, true, ""},
        {"http://h/openai/v1", "h", 80, false, "/openai"},
        {"http://h/a/b//", "h", 80, false, "/a/b"},
        {"http://[::1]:8000", "::1", 8000, false, ""},
        {"http://[::1]", "::1", 80, false, ""},
    };
    for (const Case& c : cases) {
        const auto url = parse_base_url(c.url);
        ASSERT_TRUE(url.ok()) << c.url;
        EXPECT_EQ(url->endpoint.host, c.host) << c.url;
        EXPECT_EQ(url->endpoint.port, c.port) << c.url;
        EXPECT_EQ(url->tls, c.tls) << c.url;
        EXPECT_EQ(url->prefix, c.prefix) << c.url;
    }
}

TEST(BaseUrl, RefusalsNameTheUrlAndTheMend) {
    for (const char* bad : {"", "127.0.0.1:9001", "ftp://h", "http://", "http://:80", "http://h:",
                            "http://h:0", "http://h:x", "http://h:65536", "http://[::1",
                            "http://[::1]x", "http://h/?q", "http://u@h", "http://h h"}) {
        const auto url = parse_base_url(bad);
        ASSERT_FALSE(url.ok()) << bad;
        EXPECT_EQ(url.error().code, Code::kConfig);
        EXPECT_THAT(url.error().message, testing::HasSubstr("\"" + std::string(bad) + "\""));
        EXPECT_THAT(url.error().message, testing::HasSubstr("Mend: "));
    }
}

}  // namespace
}  // namespace nereid::engine::openai
