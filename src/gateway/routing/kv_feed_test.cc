// An engine that publishes KV events, in memory: gaps and replays, new lives, damage, reconnection.
#include "gateway/routing/kv_feed.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <set>

#include "io/http_testing.h"

namespace nereid::gateway {
namespace {

using io::zmtp::Message;

std::string number(std::uint64_t n) { return router::encode_replay_request(n); }

// [0, [{"type": "BlockStored", one block of two tokens, parent}]] or removed or cleared.
std::string stored(unsigned char hash, unsigned char parent) {
    std::string out("\x92\0", 2);
    out +=
        "\x91\x85\xa4type\xab"
        "BlockStored\xac"
        "block_hashes\x91";
    out.push_back(static_cast<char>(hash));
    out += "\xb1parent_block_hash";
    out.push_back(parent == 0 ? '\xc0' : static_cast<char>(parent));
    out += "\xa9token_ids\x92";
    out.push_back(static_cast<char>(hash));
    out.push_back('\x07');
    out +=
        "\xaa"
        "block_size\x02";
    return out;
}

class Publisher {
  public:
    explicit Publisher(io::Loop& loop) : network(loop) {}

    io::Task<void> serve() {
        auto door = network.listener();
        for (;;) {
            auto stream = co_await door->accept();
            if (!stream.ok()) co_return;
            loop_tasks.emplace_back();
            loop_tasks.back().start(talk(*std::move(stream)));
        }
    }
    // While there is no subscriber the next connection is one; others ask for replays.
    io::Task<void> talk(std::unique_ptr<io::Stream> stream) {
        const bool subscriber = sub == nullptr;
        if (subscriber) sub = stream.get();
        std::string hello = io::zmtp::greeting();
        const std::string type = subscriber ? "PUB" : "ROUTER";
        const std::string body = std::string("\x05READY\x0bSocket-Type") +
                                 std::string("\0\0\0", 3) + static_cast<char>(type.size()) + type;
        hello += std::string("\x04") + static_cast<char>(body.size()) + body;
        const std::string_view pieces[] = {hello};
        (void)co_await stream->write(pieces);
        std::array<char, 4096> buffer{};
        std::string heard;
        for (;;) {
            const auto n = co_await stream->read(buffer);
            if (!n.ok() || *n == 0) break;
            heard.append(buffer.data(), *n);
            // A request: an empty frame, and one of 8 bytes.
            const auto request = heard.find(std::string("\x01\0\0\x08", 4));
            if (subscriber || request == heard.npos || heard.size() < request + 12) continue;
            ++replays;
            std::string out;
            for (const auto& [n2, payload] : kept) io::zmtp::encode({"", number(n2), payload}, out);
            io::zmtp::encode({"", std::string(8, '\xff'), ""}, out);
            const std::string_view answer[] = {out};
            (void)co_await stream->write(answer);
            heard.clear();
        }
        if (subscriber) sub = nullptr;
    }
    io::Task<void> write(std::string out) {
        const std::string_view pieces[] = {out};
        (void)co_await sub->write(pieces);
    }
    void publish(std::uint64_t n, const std::string& payload) {
        std::string out;
        io::zmtp::encode({"t", number(n), payload}, out);
        writing.start(write(std::move(out)));
    }

    io::TestNetwork network;
    io::Stream* sub = nullptr;
    std::vector<std::pair<std::uint64_t, std::string>> kept;
    int replays = 0;
    std::deque<io::RootTask> loop_tasks;
    io::RootTask accepting, writing;
};

class KvFeedTest : public testing::Test {
  protected:
    void start(bool with_replay = true) {
        publisher.accepting.start(publisher.serve());
        KvFeed::Options options{.events = {"e", 1, {}}, .replay = {}, .block_tokens = 2};
        if (with_replay) options.replay = io::Endpoint{"r", 2, {}};
        feed = std::make_unique<KvFeed>(
            loop, publisher.network, options,
            KvFeed::Sink{.stored =
                             [this](router::BlockHash, std::span<const router::BlockHash> blocks) {
                                 held.insert(blocks.begin(), blocks.end());
                             },
                         .removed =
                             [this](std::span<const router::BlockHash> blocks) {
                                 for (const auto b : blocks) held.erase(b);
                             },
                         .cleared = [this] { held.clear(); }},
            probe.server("e"));
        loop.settle();
        ASSERT_NE(publisher.sub, nullptr);
        EXPECT_EQ(count("connected"), 1);
    }
    void publish(std::uint64_t n, const std::string& payload) {
        publisher.publish(n, payload);
        loop.settle();
    }
    double count(std::string_view kind) {
        const std::string name =
            kind == "connected"
                ? R"(nereid_router_kv_events_connected{backend="e"})"
                : R"(nereid_router_kv_events_total{backend="e",kind=")" + std::string(kind) + "\"}";
        const std::string all = "\n" + metrics.render();
        const auto at = all.find("\n" + name + " ");
        return at == std::string::npos ? -1 : std::stod(all.substr(at + name.size() + 2));
    }

    io::TestLoop loop;
    ops::Registry metrics;
    KvFeedProbe probe{metrics};
    Publisher publisher{loop};
    std::set<router::BlockHash> held;
    std::unique_ptr<KvFeed> feed;
};

TEST_F(KvFeedTest, R20_GapsAreReplayed) {
    start();
    publish(0, stored(1, 0));
    publish(1, stored(2, 1));
    EXPECT_EQ(held.size(), 2u);
    publisher.kept = {{2, stored(3, 2)}, {3, stored(4, 3)}, {4, stored(5, 4)}};
    publish(4, stored(5, 4));  // 2 and 3 were lost
    EXPECT_EQ(publisher.replays, 1);
    EXPECT_EQ(held.size(), 5u);
    EXPECT_EQ(count("gap"), 1);
    EXPECT_EQ(count("reset"), 0);
    publish(5, stored(6, 5));
    EXPECT_EQ(held.size(), 6u);
}

TEST_F(KvFeedTest, R20_WhatIsLostForGoodClearsTheRank) {
    start();
    publish(0, stored(1, 0));
    publisher.kept = {{7, stored(9, 0)}};
    publish(7, stored(9, 0));
    EXPECT_EQ(count("reset"), 1);
    EXPECT_EQ(held.size(), 1u);
    publish(0, stored(3, 0));  // the engine began again
    EXPECT_EQ(count("reset"), 2);
    EXPECT_EQ(held.size(), 1u);
}

TEST_F(KvFeedTest, WithoutAReplaySocketAGapClears) {
    start(false);
    publish(0, stored(1, 0));
    publish(3, stored(9, 0));
    EXPECT_EQ(count("reset"), 1);
    EXPECT_EQ(held.size(), 1u);
}

TEST_F(KvFeedTest, DamageIsCountedAndTheConnectionIsMadeAgain) {
    start();
    publish(0, "\xff\xff");
    EXPECT_EQ(count("corrupt"), 1);
    publish(1, stored(1, 0));
    EXPECT_EQ(held.size(), 1u);
    publisher.sub->close();
    loop.settle();
    EXPECT_EQ(count("connected"), 0);
    loop.advance(200ms);
    EXPECT_EQ(count("connected"), 1);
    publish(2, stored(2, 1));
    EXPECT_EQ(held.size(), 2u);
    feed.reset();
    EXPECT_EQ(count("connected"), 0);
}

}  // namespace
}  // namespace nereid::gateway
