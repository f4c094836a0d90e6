// ZeroMQ's wire: framing in any pieces, the handshake, refusals. Against libzmq itself:
// tests/e2e/test_routing.py.
#include "io/zmtp.h"

#include <gtest/gtest.h>

#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::io::zmtp {
namespace {

TEST(Zmtp, MessagesInAnyPieces) {
    const Message first{"topic", std::string("\0\0\0\0\0\0\0\x2a", 8), std::string(70'000, 'x')};
    const Message second{""};
    std::string bytes;
    encode(first, bytes);
    encode(second, bytes);
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{7}, std::size_t{4096}, bytes.size()}) {
        Decoder decoder;
        std::vector<Message> got;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
            decoder.feed(std::string_view(bytes).substr(at, piece));
            for (;;) {
                auto item = decoder.next();
                ASSERT_TRUE(item.ok());
                if (!*item) break;
                EXPECT_FALSE((*item)->command);
                got.push_back((*item)->frames);
            }
        }
        ASSERT_EQ(got.size(), 2u);
        EXPECT_EQ(got[0], first);
        EXPECT_EQ(got[1], second);
    }
}

TEST(Zmtp, DamagedFramesAreRefused) {
    const auto next = [](std::string_view bytes) {
        Decoder d;
        d.feed(bytes);
        return d.next();
    };
    EXPECT_EQ(next(std::string_view("\x08\x01x", 3)).code(), Code::kCorrupt);
    EXPECT_EQ(next(std::string_view("\x05\x01x", 3)).code(), Code::kCorrupt);
    EXPECT_EQ(next(std::string_view("\x02\x7f\xff\xff\xff\xff\xff\xff\xff", 9)).code(),
              Code::kCorrupt);
    EXPECT_FALSE(*next(std::string_view("\x00\x05xx", 4)));
    std::string many;
    for (std::size_t i = 0; i < kMaxFrames + 1; ++i) many += std::string_view("\x01\x00", 2);
    EXPECT_EQ(next(many).code(), Code::kCorrupt);
}

TEST(Zmtp, Handshake) {
    EXPECT_TRUE(check_greeting(greeting()).ok());
    std::string other = greeting();
    other.replace(12, 5, "CURVE");
    EXPECT_EQ(check_greeting(other).code(), Code::kUnsupported);
    other = greeting();
    other[10] = 2;
    EXPECT_EQ(check_greeting(other).code(), Code::kCorrupt);
    const auto ready = [](std::string_view type) {
        std::string body("\x05READY\x0bSocket-Type");
        body += std::string("\0\0\0", 3) + static_cast<char>(type.size()) + std::string(type);
        return body;
    };
    EXPECT_TRUE(check_ready(ready("PUB"), SocketType::kSub).ok());
    EXPECT_TRUE(check_ready(ready("ROUTER"), SocketType::kDealer).ok());
    EXPECT_EQ(check_ready(ready("ROUTER"), SocketType::kSub).code(), Code::kConflict);
    EXPECT_EQ(check_ready("\x05READY", SocketType::kSub).code(), Code::kCorrupt);
    EXPECT_EQ(check_ready("\x05"
                          "ERROR\x02no",
                          SocketType::kSub)
                  .code(),
              Code::kUnavailable);
    const std::string cut = ready("PUB");
    for (std::size_t n = 0; n < cut.size(); ++n) {
        EXPECT_FALSE(check_ready(std::string_view(cut).substr(0, n), SocketType::kSub).ok()) << n;
    }
}

TEST(Zmtp, Endpoints) {
    EXPECT_EQ(parse_endpoint("tcp://engine-1:5557")->port, 5557);
    EXPECT_EQ(parse_endpoint("tcp://engine-1:5557")->host, "engine-1");
    EXPECT_EQ(parse_endpoint("tcp://[::1]:5557")->host, "::1");
    EXPECT_EQ(parse_endpoint("ipc:///run/x")->unix_path, "/run/x");
    for (const char* text : {"", "tcp://", "tcp://:1", "tcp://a", "tcp://a:0", "tcp://a:99999",
                             "tcp://a:1x", "http://a:1", "ipc://"}) {
        EXPECT_EQ(parse_endpoint(text).code(), Code::kInvalidArgument) << text;
    }
}

}  // namespace
}  // namespace nereid::io::zmtp
