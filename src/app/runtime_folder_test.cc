#include "app/runtime_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace nereid::app {
namespace {

mode_t mode_of(const std::string& path) {
    struct stat s{};
    EXPECT_EQ(stat(path.c_str(), &s), 0);
    return s.st_mode & 0777;
}

TEST(RuntimeFolder, IsPrivateAndGoesWithItsOwner) {
    std::string path;
    {
        auto folder = RuntimeFolder::create();
        ASSERT_TRUE(folder.ok());
        path = folder->path();
        EXPECT_EQ(mode_of(path), 0700u);
        const auto file = folder->write("worker.toml", "[engine]\n");
        ASSERT_TRUE(file.ok());
        EXPECT_EQ(mode_of(*file), 0600u);
        std::string line;
        std::getline(std::ifstream(*file) >> std::ws, line);
        EXPECT_EQ(line, "[engine]");
        const RuntimeFolder moved = std::move(*folder);
        EXPECT_EQ(moved.path(), path);
    }
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(RuntimeFolder, TwoDoNotMeet) {
    const auto a = RuntimeFolder::create();
    const auto b = RuntimeFolder::create();
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NE(a->path(), b->path());
    EXPECT_LT(a->path().size() + std::string("/worker.sock").size(), 108u);
}

// A service that was killed leaves its folder; the lock in it tells that its owner is dead.
TEST(RuntimeFolder, TheNextOneRemovesWhatTheDeadLeft) {
    const auto alive = RuntimeFolder::create();
    ASSERT_TRUE(alive.ok());
    const std::string base = std::filesystem::path(alive->path()).parent_path();
    std::string dead = base + "/nereid-XXXXXX";
    std::string foreign = base + "/nereid-XXXXXX";  // no lock in it: not known to be ours
    ASSERT_NE(mkdtemp(dead.data()), nullptr);
    ASSERT_NE(mkdtemp(foreign.data()), nullptr);
    std::ofstream(dead + "/lock") << "";
    std::ofstream(dead + "/worker.toml") << "x";
    const auto next = RuntimeFolder::create();
    ASSERT_TRUE(next.ok());
    EXPECT_FALSE(std::filesystem::exists(dead));
    EXPECT_TRUE(std::filesystem::exists(foreign));
    EXPECT_TRUE(std::filesystem::exists(alive->path()));
    std::filesystem::remove_all(foreign);
}

TEST(RuntimeFolder, AFileThatCannotBeWrittenIsAnError) {
    const auto folder = RuntimeFolder::create();
    ASSERT_TRUE(folder.ok());
    EXPECT_EQ(folder->write("no/such/place", "x").code(), Code::kIo);
}

}  // namespace
}  // namespace nereid::app
