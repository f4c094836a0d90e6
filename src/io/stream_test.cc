// Stream, Listener, Network: the same bodies over TCP, Unix sockets (real loop) and the simulated
// network.
#include "io/stream.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "io/real_network.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

using StreamPtr = std::unique_ptr<Stream>;

// Many tests write one string.
Task<Result<void>> write_text(Stream& s, std::string_view text,
                              TimePoint deadline = TimePoint::never()) {
    const std::array pieces{text};
    co_return co_await s.write(pieces, deadline);
}
Task<Result<std::string>> read_some(Stream& s, TimePoint deadline = TimePoint::never()) {
    std::string into(64, '\0');
    CO_TRY(const auto n, co_await s.read(into, deadline));
    into.resize(n);
    co_return into;
}
Task<Result<std::string>> read_exactly(Stream& s, std::size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
        CO_TRY(auto part, co_await read_some(s));
        if (part.empty()) break;
        out += part;
    }
    co_return out;
}
std::string pattern(std::size_t bytes, std::uint64_t seed) {
    Prng rng(seed);
    std::string out(bytes, '\0');
    for (auto& c : out) c = static_cast<char>(rng.next());
    return out;
}

template <class World>
class StreamTest : public testing::Test {
  protected:
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    // A connected pair: client, server.
    Task<std::pair<StreamPtr, StreamPtr>> connected() {
        if (!listener_) listener_ = *world_.network().listen(world_.listen_at());
        StreamPtr server;
        world_.loop.spawn([](Listener& l, StreamPtr& out) -> Task<void> {
            auto r = co_await l.accept();
            EXPECT_TRUE(r.ok());
            out = std::move(*r);
        }(*listener_, server));
        auto client = co_await world_.network().connect(listener_->local(), loop_.now() + 10s);
        EXPECT_TRUE(client.ok()) << client.error().message;
        while (!server) co_await loop_.sleep_for(100us);
        co_return std::pair{std::move(*client), std::move(server)};
    }
    World world_;
    Loop& loop_ = world_.loop;
    std::unique_ptr<Listener> listener_;
};
TYPED_TEST_SUITE(StreamTest, NetworkWorlds);

TYPED_TEST(StreamTest, CarriesBytesBothWays) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        const std::array<std::string_view, 4> pieces{"hel", "", "lo ", "there"};
        EXPECT_TRUE((co_await client->write(pieces)).ok());
        EXPECT_EQ(*co_await read_exactly(*server, 11), "hello there");
        EXPECT_TRUE((co_await write_text(*server, "answer")).ok());
        EXPECT_EQ(*co_await read_exactly(*client, 6), "answer");
        EXPECT_FALSE(client->peer().empty());
    });
}

TYPED_TEST(StreamTest, HalfClosedStillCarriesTheOtherWay) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        EXPECT_TRUE((co_await write_text(*client, "question")).ok());
        client->shutdown_write();
        EXPECT_EQ(*co_await read_exactly(*server, 100), "question");  // until the end
        EXPECT_EQ(*co_await read_some(*server), "");                  // and the end stays
        EXPECT_TRUE((co_await write_text(*server, "answer")).ok());
        EXPECT_EQ(*co_await read_exactly(*client, 6), "answer");
        server.reset();
        EXPECT_EQ(*co_await read_some(*client), "");
    });
}

// The last bytes and the end arrive as one event: the end must not wait for another.
TYPED_TEST(StreamTest, TheEndIsSeenWhenItComesWithTheLastBytes) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        co_await this->loop_.sleep_for(5ms);  // the events of the connection itself are over
        EXPECT_TRUE((co_await write_text(*client, "last")).ok());
        client->shutdown_write();
        co_await this->loop_.sleep_for(5ms);
        EXPECT_EQ(*co_await read_some(*server, this->loop_.now() + 10s), "last");
        const auto end = co_await read_some(*server, this->loop_.now() + 10s);
        EXPECT_TRUE(end.ok());
        if (end.ok()) {
            EXPECT_EQ(*end, "");
        }
    });
}

TYPED_TEST(StreamTest, MegabytesArriveWholeThroughBackpressure) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        const std::string sent = pattern(5'000'000, 1);
        bool written = false;
        this->loop_.spawn([](Stream& s, const std::string& bytes, bool& flag) -> Task<void> {
            // Uneven pieces, more than fit one system call.
            std::vector<std::string_view> pieces;
            for (std::size_t at = 0, size = 1; at < bytes.size();
                 at += size, size = size % 70'000 + 997) {
                pieces.push_back(std::string_view(bytes).substr(at, size));
            }
            EXPECT_TRUE((co_await s.write(pieces)).ok());
            s.shutdown_write();
            flag = true;
        }(*client, sent, written));
        std::string got;
        std::string into(50'000, '\0');
        for (;;) {
            const auto n = co_await server->read(into);
            EXPECT_TRUE(n.ok());
            if (!n.ok() || *n == 0) break;
            got.append(into, 0, *n);
        }
        EXPECT_EQ(got.size(), sent.size());
        EXPECT_TRUE(got == sent);
        while (!written) co_await this->loop_.yield();
    });
}

TYPED_TEST(StreamTest, ReadHasADeadlineAndTheStreamStaysUsable) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        EXPECT_EQ((co_await read_some(*server, this->loop_.now() + 2ms)).code(),
                  Code::kDeadlineExceeded);
        EXPECT_TRUE((co_await write_text(*client, "late")).ok());
        EXPECT_EQ(*co_await read_exactly(*server, 4), "late");
    });
}

TYPED_TEST(StreamTest, WriteToAPeerThatDoesNotReadHitsItsDeadline) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        const std::string much(64 << 20, 'x');
        EXPECT_EQ((co_await write_text(*client, much, this->loop_.now() + 20ms)).code(),
                  Code::kDeadlineExceeded);
    });
}

TYPED_TEST(StreamTest, CloseCancelsWhatIsInFlight) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        int cancelled = 0;
        const std::string much(64 << 20, 'x');
        const auto expect_cancelled = [&cancelled](auto r) {
            EXPECT_EQ(r.code(), Code::kCancelled);
            ++cancelled;
        };
        this->loop_.spawn([](Stream& s, auto f) -> Task<void> { f(co_await read_some(s)); }(
                                                    *client, expect_cancelled));
        this->loop_.spawn([](Stream& s, const std::string& m, auto f) -> Task<void> {
            f(co_await write_text(s, m));
        }(*client, much, expect_cancelled));
        this->loop_.spawn([](Stream& s, auto f) -> Task<void> { f(co_await s.wait_hangup()); }(
                                                    *client, expect_cancelled));
        co_await this->loop_.sleep_for(1ms);
        client->close();
        EXPECT_EQ(cancelled, 0);  // never on the closer's stack
        while (cancelled < 3) co_await this->loop_.yield();
        EXPECT_EQ((co_await read_some(*client)).code(), Code::kCancelled);
        EXPECT_EQ((co_await write_text(*client, "x")).code(), Code::kCancelled);
        client->close();
    });
}

TYPED_TEST(StreamTest, DestroyedStreamCancelsWhatIsInFlight) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        bool cancelled = false;
        this->loop_.spawn([](Stream& s, bool& flag) -> Task<void> {
            flag = (co_await read_some(s)).code() == Code::kCancelled;
        }(*client, cancelled));
        client.reset();
        while (!cancelled) co_await this->loop_.yield();
        EXPECT_EQ(*co_await read_some(*server), "");  // the peer sees the end
    });
}

TYPED_TEST(StreamTest, DestroyedTasksLeaveTheStreamUsable) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        {
            auto reading = read_some(*server, this->loop_.now() + 1h).release();
            reading.resume();
            auto hanging = server->wait_hangup().release();
            hanging.resume();
            const std::string much(64 << 20, 'x');
            auto writing = write_text(*server, much, this->loop_.now() + 1h).release();
            writing.resume();
            co_await this->loop_.sleep_for(1ms);
            reading.destroy();
            hanging.destroy();
            writing.destroy();
        }
        EXPECT_TRUE((co_await write_text(*client, "still")).ok());
        EXPECT_EQ(*co_await read_exactly(*server, 5), "still");
    });
}

TYPED_TEST(StreamTest, HangupIsSeenAtOnceAlsoBehindUnreadData) {
    this->run([&]() -> Task<void> {
        for (const bool pipelined : {false, true}) {
            auto [client, server] = co_await this->connected();
            if (pipelined) {
                EXPECT_TRUE((co_await write_text(*client, "next request")).ok());
                co_await this->loop_.sleep_for(5ms);
            }
            bool gone = false;
            this->loop_.spawn([](Stream& s, bool& flag) -> Task<void> {
                EXPECT_TRUE((co_await s.wait_hangup()).ok());
                flag = true;
            }(*server, gone));
            co_await this->loop_.sleep_for(5ms);
            EXPECT_FALSE(gone);
            client.reset();
            while (!gone) co_await this->loop_.sleep_for(100us);
            EXPECT_TRUE((co_await server->wait_hangup()).ok());  // stays so
            if (pipelined) {
                EXPECT_EQ(*co_await read_exactly(*server, 12), "next request");
            }
        }
    });
}

TYPED_TEST(StreamTest, WriteToAGonePeerFails) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        server.reset();
        Result<void> r;
        for (int i = 0; i < 1000 && r.ok(); ++i) {
            r = co_await write_text(*client, std::string(1000, 'x'), this->loop_.now() + 10s);
            co_await this->loop_.sleep_for(1ms);
        }
        EXPECT_EQ(r.code(), Code::kIo);
    });
}

TYPED_TEST(StreamTest, AcceptIsCancelledByClose) {
    this->run([&]() -> Task<void> {
        auto listener = *this->world_.network().listen(this->world_.listen_at());
        bool cancelled = false;
        this->loop_.spawn([](Listener& l, bool& flag) -> Task<void> {
            flag = (co_await l.accept()).code() == Code::kCancelled;
        }(*listener, cancelled));
        listener->close();
        while (!cancelled) co_await this->loop_.yield();
        auto waiting = this->world_.network().listen(this->world_.listen_at());
        auto accepting = (*waiting)->accept().release();
        accepting.resume();
        accepting.destroy();
    });
}

TYPED_TEST(StreamTest, AddressInUseIsAConflictThatNamesTheMend) {
    auto listener = *this->world_.network().listen(this->world_.listen_at());
    const auto again = this->world_.network().listen(listener->local());
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.code(), Code::kConflict);
    EXPECT_NE(again.error().message.find("choose"), std::string::npos) << again.error().message;
    listener->close();
    EXPECT_TRUE(this->world_.network().listen(listener->local()).ok());
}

TYPED_TEST(StreamTest, ConnectToNobodyIsUnavailable) {
    this->run([&]() -> Task<void> {
        Endpoint at;
        {
            auto listener = *this->world_.network().listen(this->world_.listen_at());
            at = listener->local();
        }
        const auto r = co_await this->world_.network().connect(at, this->loop_.now() + 10s);
        EXPECT_EQ(r.code(), Code::kUnavailable);
        EXPECT_NE(r.error().message.find(at.to_string()), std::string::npos) << r.error().message;
    });
}

TYPED_TEST(StreamTest, ManyConnectionsAtOnce) {
    this->run([&]() -> Task<void> {
        auto listener = *this->world_.network().listen(this->world_.listen_at());
        int served = 0;
        int answered = 0;
        this->loop_.spawn([](Loop& loop, Listener& l, int& n) -> Task<void> {
            for (;;) {
                auto s = co_await l.accept();
                if (!s.ok()) co_return;
                loop.spawn([](StreamPtr stream, int& count) -> Task<void> {
                    auto text = co_await read_exactly(*stream, 4);
                    EXPECT_TRUE((co_await write_text(*stream, *text)).ok());
                    ++count;
                }(std::move(*s), n));
            }
        }(this->loop_, *listener, served));
        for (int i = 0; i < 200; ++i) {
            this->loop_.spawn([](Loop& loop, Network& net, Endpoint to, int& n) -> Task<void> {
                auto s = co_await net.connect(to, loop.now() + 10s);
                EXPECT_TRUE(s.ok());
                EXPECT_TRUE((co_await write_text(**s, "ping")).ok());
                EXPECT_EQ(*co_await read_exactly(**s, 4), "ping");
                ++n;
            }(this->loop_, this->world_.network(), listener->local(), answered));
        }
        while (answered < 200) co_await this->loop_.sleep_for(1ms);
        EXPECT_EQ(served, 200);
        listener->close();
        co_await this->loop_.sleep_for(1ms);
    });
}

// ------------------------------------------------------------------ what only the real one has

struct Folder {
    std::string path = testing::TempDir() + "nereid-io-" + std::to_string(getpid());
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
};

TEST(RealNetwork, StaleUnixSocketFileIsReplacedALiveOneAndAPlainFileAreNot) {
    const Folder folder;
    TcpWorld world;
    const Endpoint at{.host = {}, .port = 0, .unix_path = folder.path + "/s.sock"};
    {
        // What a process that was killed leaves.
        sockaddr_un un{};
        un.sun_family = AF_UNIX;
        at.unix_path.copy(un.sun_path, sizeof un.sun_path - 1);
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&un), sizeof un), 0);
        close(fd);
    }
    ASSERT_TRUE(std::filesystem::exists(at.unix_path));
    {
        auto listener = world.network().listen(at);
        ASSERT_TRUE(listener.ok()) << listener.error().message;
        EXPECT_EQ(world.network().listen(at).code(), Code::kConflict);
    }
    EXPECT_FALSE(std::filesystem::exists(at.unix_path));
    std::filesystem::create_directory(at.unix_path);
    EXPECT_EQ(world.network().listen(at).code(), Code::kConflict);
}

TEST(RealNetwork, RefusesWhatIsNoAddress) {
    TcpWorld world;
    EXPECT_EQ(world.network().listen({}).code(), Code::kInvalidArgument);
    EXPECT_EQ(
        world.network().listen({.host = {}, .port = 0, .unix_path = std::string(200, 'x')}).code(),
        Code::kInvalidArgument);
    EXPECT_EQ(world.network().listen({.host = "203.0.113.1", .port = 0, .unix_path = {}}).code(),
              Code::kInvalidArgument);
}

TEST(RealNetwork, ResolvesNames) {
    TcpWorld world;
    run_in(world, [&]() -> Task<void> {
        auto listener = *world.network().listen({.host = "localhost", .port = 0, .unix_path = {}});
        const Endpoint to{.host = "localhost", .port = listener->local().port, .unix_path = {}};
        auto r = co_await world.network().connect(to, world.loop.now() + 10s);
        EXPECT_TRUE(r.ok()) << r.error().message;
        r = co_await world.network().connect(
            {.host = "no-such-name.invalid", .port = 1, .unix_path = {}}, world.loop.now() + 10s);
        EXPECT_FALSE(r.ok());
        // Given up at the deadline, also when the resolver still works on it.
        r = co_await world.network().connect(
            {.host = "no-such-name.invalid", .port = 1, .unix_path = {}}, world.loop.now());
        EXPECT_EQ(r.code(), Code::kDeadlineExceeded);
    });
}

TEST(RealNetwork, SeveralLoopsMayShareAPort) {
    TcpWorld world;
    auto first = *world.network().listen({.host = "127.0.0.1", .port = 0, .unix_path = {}}, true);
    EXPECT_TRUE(world.network().listen(first->local(), true).ok());
}

TEST(RealNetwork, ConnectHasADeadlineAgainstASilentNetwork) {
    TcpWorld world;
    run_in(world, [&]() -> Task<void> {
        // Linux drops the SYN to a listener whose backlog is full, so the one that does not fit
        // hangs.
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in in{};
        in.sin_family = AF_INET;
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof in;
        EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&in), size), 0);
        EXPECT_EQ(listen(fd, 0), 0);
        getsockname(fd, reinterpret_cast<sockaddr*>(&in), &size);
        const Endpoint to{.host = "127.0.0.1", .port = ntohs(in.sin_port), .unix_path = {}};
        std::vector<StreamPtr> held;
        Code last{};
        for (int i = 0; i < 10; ++i) {
            auto r = co_await world.network().connect(to, world.loop.now() + 20ms);
            if (!r.ok()) {
                last = r.code();
                break;
            }
            held.push_back(std::move(*r));
        }
        EXPECT_EQ(last, Code::kDeadlineExceeded);
        close(fd);
    });
}

TEST(RealNetwork, AcceptPausesWithoutDescriptorsAndRecovers) {
    TcpWorld world;
    run_in(world, [&]() -> Task<void> {
        auto listener = *world.network().listen({.host = "127.0.0.1", .port = 0, .unix_path = {}});
        auto client = *co_await world.network().connect(listener->local(), world.loop.now() + 10s);
        rlimit before{};
        getrlimit(RLIMIT_NOFILE, &before);
        const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
        StreamPtr server;
        world.loop.spawn([](Listener& l, StreamPtr& out) -> Task<void> {
            out = *co_await l.accept();
        }(*listener, server));
        EXPECT_EQ(server, nullptr);
        EXPECT_EQ(world.net.counters().accept_pauses, 1U);
        setrlimit(RLIMIT_NOFILE, &before);
        while (!server) co_await world.loop.sleep_for(1ms);
        EXPECT_TRUE((co_await write_text(*client, "hi")).ok());
        EXPECT_EQ(*co_await read_exactly(*server, 2), "hi");
    });
}

// Data that is there, and room that is there, are not used up in one go: the posted call runs in
// between.
TEST(RealNetwork, OperationsThatNeverWaitStillLetOthersRun) {
    TcpWorld world;
    run_in(world, [&]() -> Task<void> {
        auto pair = *make_socket_pair(world.loop);
        int writes = 0;
        int reads = 0;
        int writes_seen = -1;
        int reads_seen = -1;
        world.loop.post([&] { writes_seen = writes; });
        // 150 fit into the socket buffer, skb overhead included.
        for (; writes < 150; ++writes) {
            EXPECT_TRUE((co_await write_text(*pair.first, std::string(100, 'x'))).ok());
        }
        world.loop.post([&] { reads_seen = reads; });
        std::string into(100, '\0');
        for (; reads < 150; ++reads) {
            EXPECT_EQ(*co_await pair.second->read(into), 100U);
        }
        EXPECT_GE(writes_seen, 0);
        EXPECT_LT(writes_seen, 150);
        EXPECT_GE(reads_seen, 0);
        EXPECT_LT(reads_seen, 150);
    });
}

TEST(RealNetwork, AFloodingPeerDoesNotStarveTheLoop) {
    TcpWorld world;
    run_in(world, [&]() -> Task<void> {
        auto pair = *make_socket_pair(world.loop);
        bool stop = false;
        std::uint64_t got = 0;
        world.loop.spawn([](Stream& s, bool& flag) -> Task<void> {
            const std::string block(1000, 'x');
            while (!flag && (co_await write_text(s, block)).ok()) {
            }
            s.shutdown_write();
        }(*pair.first, stop));
        world.loop.spawn([](Stream& s, std::uint64_t& n) -> Task<void> {
            std::string into(100, '\0');
            for (;;) {
                const auto r = co_await s.read(into);
                if (!r.ok() || *r == 0) co_return;
                n += *r;
            }
        }(*pair.second, got));
        co_await world.loop.sleep_for(5ms);  // fires although both sides always have work
        EXPECT_GT(got, 0U);
        stop = true;
        while (world.loop.live_tasks() > 1) co_await world.loop.yield();
    });
}

}  // namespace
}  // namespace nereid::io
