#include "io/descriptors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <string>

#include "io/real_network.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

Descriptor file_with(const std::string& text) {
    Descriptor d(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(pwrite(d.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return d;
}
std::string content(const Descriptor& d) {
    std::array<char, 64> into;
    const auto n = pread(d.get(), into.data(), into.size(), 0);
    return {into.data(), static_cast<std::size_t>(n > 0 ? n : 0)};
}

TEST(Descriptors, TravelWithTheirBytes) {
    RealWorld world;
    run_in(world, [&]() -> Task<void> {
        auto pair = *make_socket_pair(world.loop);
        EXPECT_TRUE(accept_descriptors(*pair.second).ok());
        const Descriptor a = file_with("first");
        const Descriptor b = file_with("second");
        EXPECT_TRUE((co_await write_with_descriptor(*pair.first, "one", a.get())).ok());
        const std::array more{std::string_view("more")};
        EXPECT_TRUE((co_await pair.first->write(more)).ok());
        EXPECT_TRUE((co_await write_with_descriptor(*pair.first, "two", b.get())).ok());
        std::string got;
        std::vector<Descriptor> fds;
        while (got.size() < 10) {
            std::array<char, 100> into;
            const auto n = co_await pair.second->read(into, world.loop.now() + 5s);
            EXPECT_TRUE(n.ok());
            if (!n.ok()) co_return;
            got.append(into.data(), *n);
            for (auto& d : take_descriptors(*pair.second)) fds.push_back(std::move(d));
        }
        EXPECT_EQ(got, "onemoretwo");
        EXPECT_EQ(fds.size(), 2U);
        EXPECT_EQ(content(fds.at(0)), "first");
        EXPECT_EQ(content(fds.at(1)), "second");
        const auto who = peer_credentials(*pair.first);
        EXPECT_EQ(who->pid, getpid());
        EXPECT_EQ(who->uid, getuid());
    });
}

TEST(Descriptors, AFloodOfThemIsClosed) {
    RealWorld world;
    run_in(world, [&]() -> Task<void> {
        auto pair = *make_socket_pair(world.loop);
        EXPECT_TRUE(accept_descriptors(*pair.second).ok());
        const Descriptor a = file_with("x");
        for (int i = 0; i < 50; ++i)
            EXPECT_TRUE((co_await write_with_descriptor(*pair.first, "b", a.get())).ok());
        std::size_t bytes = 0;
        std::array<char, 100> into;
        while (bytes < 50) bytes += *co_await pair.second->read(into, world.loop.now() + 5s);
        EXPECT_EQ(take_descriptors(*pair.second).size(), 8U);
        EXPECT_TRUE(take_descriptors(*pair.second).empty());
    });
}

}  // namespace
}  // namespace nereid::io
