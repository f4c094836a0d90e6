// Disk: the same bodies on a folder of the real disk and on the simulated one, then the faults of
// each.
#include "io/disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/prng.h"
#include "io/aligned_buffer.h"
#include "io/real_disk.h"
#include "io/sim_disk.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

using FilePtr = std::unique_ptr<File>;

// Goes last: operations may run until the loop and the threads have gone.
struct RootFolder {
    std::string root = testing::TempDir() + "nereid-disk-" + std::to_string(getpid());
    RootFolder() { std::filesystem::create_directories(root); }
    ~RootFolder() { std::filesystem::remove_all(root); }
};
struct RealDiskWorld : RootFolder, RealWorld {
    RealDisk real{loop, 2};
    Disk& disk() { return real; }
};
struct UringDiskWorld : RootFolder, RealWorld {
    RealDisk real{loop, {.threads = 1, .direct = false, .uring = true, .depth = 8}};
    Disk& disk() { return real; }
};
struct SimDiskWorld : SimWorld {
    SimDisk sim{scheduler, {}};
    SimDiskView view{sim, loop};
    std::string root = "/data";
    SimDiskWorld() {
        run_in(*this,
               [this]() -> Task<void> { EXPECT_TRUE((co_await view.make_folders(root)).ok()); });
    }
    Disk& disk() { return view; }
};

Task<Result<void>> put(Disk& disk, std::string path, std::string text) {
    CO_TRY(auto f, co_await disk.open(path, OpenMode::kCreate));
    CO_TRY_VOID(co_await f->write_at(text, 0));
    co_return co_await f->sync();
}
Task<Result<std::string>> get(Disk& disk, std::string path) {
    CO_TRY(auto f, co_await disk.open(path, OpenMode::kRead));
    CO_TRY(const auto size, co_await f->size());
    std::string out(size, '\0');
    CO_TRY(const auto n, co_await f->read_at(out, 0));
    out.resize(n);
    co_return out;
}

template <class World>
class DiskTest : public testing::Test {
  protected:
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    std::string path(const std::string& name) { return world_.root + "/" + name; }
    World world_;
};
using Disks = testing::Types<RealDiskWorld, UringDiskWorld, SimDiskWorld>;
TYPED_TEST_SUITE(DiskTest, Disks);

TYPED_TEST(DiskTest, ReadsWhatWasWritten) {
    this->run([&]() -> Task<void> {
        auto f = *co_await this->world_.disk().open(this->path("a"), OpenMode::kCreate);
        EXPECT_TRUE((co_await f->write_at(std::string_view("hello"), 10)).ok());
        EXPECT_EQ(*co_await f->size(), 15U);
        std::string into(20, 'x');
        EXPECT_EQ(*co_await f->read_at(into, 0), 15U);
        EXPECT_EQ(into.substr(0, 15), std::string(10, '\0') + "hello");
        EXPECT_EQ(*co_await f->read_at(into, 15), 0U);
        EXPECT_EQ(*co_await f->read_at(into, 1'000'000), 0U);
        EXPECT_TRUE((co_await f->truncate(12)).ok());
        EXPECT_EQ(*co_await f->size(), 12U);
        EXPECT_TRUE((co_await f->sync()).ok());
    });
}

// Against a plain string.
TYPED_TEST(DiskTest, RandomWritesAgreeWithAString) {
    this->run([&]() -> Task<void> {
        Prng rng(4);
        auto f = *co_await this->world_.disk().open(this->path("r"), OpenMode::kCreate);
        std::string model;
        for (int i = 0; i < 300; ++i) {
            const auto at = rng.below(5000);
            if (rng.chance(0.1)) {
                EXPECT_TRUE((co_await f->truncate(at)).ok());
                model.resize(at, '\0');
                continue;
            }
            const std::string bytes(1 + rng.below(700), static_cast<char>('a' + rng.below(26)));
            EXPECT_TRUE((co_await f->write_at(bytes, at)).ok());
            if (model.size() < at + bytes.size()) model.resize(at + bytes.size(), '\0');
            model.replace(at, bytes.size(), bytes);
        }
        std::string into(10'000, '\0');
        into.resize(*co_await f->read_at(into, 0));
        EXPECT_TRUE(into == model);
    });
}

TYPED_TEST(DiskTest, OpenModesAndFolders) {
    this->run([&]() -> Task<void> {
        Disk& disk = this->world_.disk();
        EXPECT_EQ((co_await disk.open(this->path("none"), OpenMode::kRead)).code(),
                  Code::kNotFound);
        EXPECT_EQ((co_await disk.open(this->path("none"), OpenMode::kReadWrite)).code(),
                  Code::kNotFound);
        EXPECT_EQ((co_await disk.open(this->path("no/folder"), OpenMode::kCreate)).code(),
                  Code::kNotFound);
        EXPECT_TRUE((co_await disk.open(this->path("x"), OpenMode::kCreateExclusive)).ok());
        EXPECT_EQ((co_await disk.open(this->path("x"), OpenMode::kCreateExclusive)).code(),
                  Code::kConflict);
        EXPECT_TRUE((co_await disk.make_folders(this->path("d/e/f"))).ok());
        EXPECT_TRUE((co_await disk.make_folders(this->path("d/e/f"))).ok());
        EXPECT_EQ((co_await disk.make_folders(this->path("x/y"))).ok(), false);
        EXPECT_TRUE((co_await put(disk, this->path("d/e/f/z"), "z")).ok());
        EXPECT_TRUE((co_await put(disk, this->path("d/b"), "b")).ok());
        EXPECT_EQ(*co_await disk.list(this->path("d")), (std::vector<std::string>{"b", "e"}));
        EXPECT_EQ((co_await disk.list(this->path("q"))).code(), Code::kNotFound);
    });
}

TYPED_TEST(DiskTest, RenameReplacesAndRemoveRemoves) {
    this->run([&]() -> Task<void> {
        Disk& disk = this->world_.disk();
        EXPECT_TRUE((co_await put(disk, this->path("old"), "old")).ok());
        EXPECT_TRUE((co_await put(disk, this->path("new"), "new")).ok());
        EXPECT_TRUE((co_await disk.rename(this->path("new"), this->path("old"))).ok());
        EXPECT_EQ(*co_await get(disk, this->path("old")), "new");
        EXPECT_EQ((co_await disk.rename(this->path("new"), this->path("old"))).code(),
                  Code::kNotFound);
        EXPECT_TRUE((co_await disk.remove(this->path("old"))).ok());
        EXPECT_EQ((co_await disk.remove(this->path("old"))).code(), Code::kNotFound);
        EXPECT_EQ((co_await get(disk, this->path("old"))).code(), Code::kNotFound);
    });
}

TYPED_TEST(DiskTest, ManyOperationsAtOnce) {
    this->run([&]() -> Task<void> {
        auto f = *co_await this->world_.disk().open(this->path("m"), OpenMode::kCreate);
        int left = 100;
        for (int i = 0; i < 100; ++i) {
            this->world_.loop.spawn([](File& file, int n, int& count) -> Task<void> {
                const std::string bytes(1000, static_cast<char>('A' + n % 26));
                EXPECT_TRUE(
                    (co_await file.write_at(bytes, static_cast<std::uint64_t>(n) * 1000)).ok());
                --count;
            }(*f, i, left));
        }
        while (left > 0) co_await this->world_.loop.sleep_for(1ms);
        EXPECT_EQ(*co_await f->size(), 100'000U);
    });
}

TYPED_TEST(DiskTest, DestroyedOperationsLeaveTheirBuffersAlone) {
    this->run([&]() -> Task<void> {
        Disk& disk = this->world_.disk();
        EXPECT_TRUE((co_await put(disk, this->path("f"), std::string(100'000, 'x'))).ok());
        auto f = *co_await disk.open(this->path("f"), OpenMode::kReadWrite);
        for (int i = 0; i < 50; ++i) {
            auto buffer = std::make_unique<std::string>(100'000, '\0');
            auto reading = f->read_at(*buffer, 0).release();
            reading.resume();
            auto opening = disk.open(this->path("f"), OpenMode::kRead).release();
            opening.resume();
            if (i % 2 == 0) co_await this->world_.loop.yield();
            reading.destroy();
            opening.destroy();
            buffer.reset();
        }
        EXPECT_EQ(*co_await f->size(), 100'000U);
    });
}

TYPED_TEST(DiskTest, AFileInUseMayBeDestroyed) {
    this->run([&]() -> Task<void> {
        auto f = *co_await this->world_.disk().open(this->path("f"), OpenMode::kCreate);
        bool done = false;
        this->world_.loop.spawn([](File& file, bool& flag) -> Task<void> {
            EXPECT_TRUE((co_await file.write_at(std::string_view("abc"), 0)).ok());
            flag = true;
        }(*f, done));
        f.reset();
        while (!done) co_await this->world_.loop.sleep_for(1ms);
        EXPECT_EQ(*co_await get(this->world_.disk(), this->path("f")), "abc");
    });
}

TYPED_TEST(DiskTest, PiecesLieOneAfterAnother) {
    this->run([&]() -> Task<void> {
        auto f = *co_await this->world_.disk().open(this->path("p"), OpenMode::kCreate);
        EXPECT_TRUE((co_await f->allocate(10)).ok());
        EXPECT_EQ(*co_await f->size(), 10U);
        EXPECT_TRUE((co_await f->allocate(5)).ok());
        EXPECT_EQ(*co_await f->size(), 10U);
        const std::string_view one = "one";
        const std::string_view two = "two and";
        EXPECT_TRUE((co_await f->write_pieces({one, {}, two}, 2)).ok());
        EXPECT_EQ(*co_await f->size(), 12U);
        std::string a(1, 'x');
        std::string b(6, 'x');
        std::string c(20, 'x');
        EXPECT_EQ(*co_await f->read_pieces({a, b, c}, 1), 11U);
        EXPECT_EQ(a + b + c.substr(0, 4), std::string(1, '\0') + "onetwo and");
    });
}

// K10: two nodes in one folder.
TYPED_TEST(DiskTest, ALockedFileIsOnesOnly_K10) {
    this->run([&]() -> Task<void> {
        Disk& disk = this->world_.disk();
        auto first = co_await disk.open(this->path("l"), OpenMode::kCreateLocked);
        EXPECT_TRUE(first.ok());
        EXPECT_EQ((co_await disk.open(this->path("l"), OpenMode::kCreateLocked)).code(),
                  Code::kConflict);
        EXPECT_TRUE((co_await disk.open(this->path("l"), OpenMode::kRead)).ok());
        first->reset();
        EXPECT_TRUE((co_await disk.open(this->path("l"), OpenMode::kCreateLocked)).ok());
    });
}

// ------------------------------------------------------------------ real faults

// O_DIRECT through the ring and through threads: what one writes the other reads; unaligned is
// refused, also where the file system would take it.
TEST(RealDisk, DirectIo_K40) {
    for (const bool uring : {false, true}) {
        RootFolder folder;
        RealWorld world;
        RealDisk disk(world.loop, {.threads = 1, .direct = true, .uring = uring, .depth = 4});
        EXPECT_EQ(disk.backend() == "io_uring", uring);  // this kernel has it
        run_in(world, [&]() -> Task<void> {
            auto f = *co_await disk.open(folder.root + "/d", OpenMode::kCreateExclusive);
            AlignedBuffer out(64 << 10);
            AlignedBuffer in(64 << 10);
            Prng rng(5);
            for (char& c : out.span()) c = static_cast<char>(rng.next());
            EXPECT_TRUE((co_await f->allocate(1 << 20)).ok());
            EXPECT_TRUE((co_await f->write_pieces({out.first(4096), out.span()}, 8192)).ok());
            EXPECT_TRUE((co_await f->sync()).ok());
            EXPECT_EQ(*co_await f->read_pieces({in.span()}, 12288), in.size());
            EXPECT_TRUE(std::ranges::equal(in.span(), out.span()));
            EXPECT_EQ((co_await f->write_at(out.first(100), 0)).code(), Code::kInvalidArgument);
            EXPECT_EQ((co_await f->write_at(out.span().subspan(1, 4096), 0)).code(),
                      Code::kInvalidArgument);
            EXPECT_EQ((co_await f->read_at(in.first(4096), 512)).code(), Code::kInvalidArgument);
            // A file that ends inside a page.
            EXPECT_TRUE((co_await f->truncate(10'000)).ok());
            EXPECT_EQ(*co_await f->read_at(in.span(), 8192), 10'000U - 8192U);
        });
    }
}

// More at once than the ring holds; files go while operations run; every second one is destroyed.
TEST(RealDisk, RingUnderPressure) {
    UringDiskWorld world;
    run_in(world, [&]() -> Task<void> {
        EXPECT_TRUE((co_await put(world.real, world.root + "/f", std::string(1 << 20, 'x'))).ok());
        auto f = *co_await world.real.open(world.root + "/f", OpenMode::kReadWrite);
        int left = 0;
        std::vector<std::string> buffers(100, std::string(10'000, '-'));
        std::vector<Task<Result<std::size_t>>::Handle> doomed;
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            if (i % 2 == 0) {
                ++left;
                world.loop.spawn([](File& file, std::string& into, int& count) -> Task<void> {
                    EXPECT_EQ(*co_await file.read_at(into, 5), 10'000U);
                    EXPECT_EQ(into, std::string(10'000, 'x'));
                    --count;
                }(*f, buffers[i], left));
            } else {
                doomed.push_back(f->read_at(buffers[i], 0).release());
                doomed.back().resume();
            }
        }
        co_await world.loop.yield();
        for (auto& h : doomed) h.destroy();
        for (std::size_t i = 1; i < buffers.size(); i += 2) buffers[i].assign(10'000, '!');
        while (left > 0) co_await world.loop.sleep_for(1ms);
        f.reset();
        for (std::size_t i = 1; i < buffers.size(); i += 2)
            EXPECT_EQ(buffers[i], std::string(10'000, '!'));
    });
}

TEST(RealDisk, FullDeviceIsNoSpace) {
    RealDiskWorld world;
    run_in(world, [&]() -> Task<void> {
        auto f = *co_await world.disk().open("/dev/full", OpenMode::kReadWrite);
        const auto r = co_await f->write_at(std::string_view("x"), 0);
        EXPECT_EQ(r.code(), Code::kNoSpace);
        EXPECT_EQ(r.error().message, "write /dev/full: No space left on device");
    });
}

TEST(RealDisk, ShortWriteIsContinuedUntilItsError) {
    // A limit on the file size makes pwrite short first and fail then.
    RealDiskWorld world;
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto old = signal(SIGXFSZ, SIG_IGN);
    run_in(world, [&]() -> Task<void> {
        auto f = *co_await world.disk().open(world.root + "/f", OpenMode::kCreate);
        const rlimit limit{.rlim_cur = 1500, .rlim_max = before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        EXPECT_EQ((co_await f->write_at(std::string(1000, 'x'), 0)).ok(), true);
        EXPECT_EQ((co_await f->write_at(std::string(1000, 'y'), 1000)).code(), Code::kIo);
        setrlimit(RLIMIT_FSIZE, &before);
        EXPECT_EQ(*co_await f->size(), 1500U);
    });
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, old);
}

TEST(RealDisk, ReadFile) {
    RealDiskWorld world;
    EXPECT_EQ(read_file(world.root + "/none", 10).code(), Code::kNotFound);
    EXPECT_EQ(read_file(world.root, 10).code(), Code::kIo);  // a folder
    run_in(world, [&]() -> Task<void> {
        EXPECT_TRUE((co_await put(world.disk(), world.root + "/f", "0123456789")).ok());
    });
    EXPECT_EQ(*read_file(world.root + "/f", 10), "0123456789");
    EXPECT_EQ(read_file(world.root + "/f", 9).code(), Code::kTooLarge);
    EXPECT_FALSE(read_file("/proc/self/status", 1 << 20)->empty());  // says that its size is 0
    if (geteuid() != 0) {
        chmod((world.root + "/f").c_str(), 0);
        EXPECT_EQ(read_file(world.root + "/f", 10).code(), Code::kPermissionDenied);
    }
}

// Opening a FIFO for reading blocks the thread until a writer comes: an operation that is surely
// under way.
TEST(RealDisk, DestroyingARunningOperationWaitsForItsThread) {
    RealDiskWorld world;
    run_in(world, [&]() -> Task<void> {
        const std::string path = world.root + "/fifo";
        EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
        auto opening = world.disk().open(path, OpenMode::kRead).release();
        opening.resume();
        co_await world.loop.sleep_for(5ms);
        std::atomic<bool> destroying = false;
        std::thread writer([&] {
            destroying.wait(false);
            poll(nullptr, 0, 20);  // lets a destroy() that does not wait free the frame first
            close(open(path.c_str(), O_WRONLY));
        });
        destroying = true;
        destroying.notify_one();
        opening.destroy();
        writer.join();
    });
}

TEST(RealDisk, TheLoopMayEndWhileOperationsRun) {
    std::string root;
    {
        RealDiskWorld world;
        for (int i = 0; i < 20; ++i) {
            world.loop.spawn([](RealDiskWorld& w, int n) -> Task<void> {
                [[maybe_unused]] auto r = co_await put(w.disk(), w.root + "/" + std::to_string(n),
                                                       std::string(10'000, 'x'));
            }(world, i));
        }
    }
}

// ------------------------------------------------------------------ simulated faults

TEST(SimDisk, CrashKeepsWhatWasSyncedAndMayLoseOrTearTheRest) {
    std::set<std::string> outcomes;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        SimScheduler scheduler(seed);
        SimDisk disk(scheduler, {});
        auto loop = std::make_unique<SimLoop>(scheduler);
        auto view = std::make_unique<SimDiskView>(disk, *loop);
        bool done = false;
        loop->spawn([](Disk& d, bool& flag) -> Task<void> {
            EXPECT_TRUE((co_await d.make_folders("/d")).ok());
            EXPECT_TRUE((co_await put(d, "/d/f", std::string(2048, 'a'))).ok());
            auto f = *co_await d.open("/d/f", OpenMode::kReadWrite);
            EXPECT_TRUE((co_await f->write_at(std::string(2048, 'b'), 1024)).ok());
            flag = true;
        }(*view, done));
        ASSERT_EQ(scheduler.run_until([&] { return done; }, 1h), SimEnd::kDone);
        loop.reset();
        disk.crash();
        loop = std::make_unique<SimLoop>(scheduler);
        view = std::make_unique<SimDiskView>(disk, *loop);
        std::string after;
        loop->spawn([](Disk& d, std::string& out) -> Task<void> { out = *co_await get(d, "/d/f"); }(
                                                      *view, after));
        scheduler.run_until_idle();
        ASSERT_EQ(after.substr(0, 1024), std::string(1024, 'a'));  // synced and never overwritten
        const auto b = static_cast<std::size_t>(std::ranges::count(after, 'b'));
        EXPECT_EQ(b % 512, 0U);
        // A prefix of the sectors, or holes in them.
        const bool hole = after.substr(1024).find("ab") != std::string::npos ||
                          (after.size() > 2048 && after.find('\0') != std::string::npos);
        outcomes.insert(b == 0 ? "lost" : b == 2048 ? "kept" : hole ? "holes" : "torn");
    }
    EXPECT_EQ(outcomes, (std::set<std::string>{"holes", "kept", "lost", "torn"}));
}

TEST(SimDisk, FilesOfBeforeTheCrashAreDead) {
    SimDiskWorld world;
    run_in(world, [&]() -> Task<void> {
        auto f = *co_await world.disk().open("/data/f", OpenMode::kCreate);
        world.loop.spawn([](File& file) -> Task<void> {
            EXPECT_EQ((co_await file.write_at(std::string_view("abc"), 0)).code(),
                      Code::kIo);  // under way
        }(*f));
        world.sim.crash();
        EXPECT_EQ((co_await f->size()).code(), Code::kIo);
        EXPECT_EQ(*co_await get(world.disk(), "/data/f"), "");
    });
}

TEST(SimDisk, FullBadAndRottenDisks) {
    SimDiskWorld world;
    run_in(world, [&]() -> Task<void> {
        world.sim.set_capacity(1000);
        auto f = *co_await world.disk().open("/data/f", OpenMode::kCreate);
        EXPECT_TRUE((co_await f->write_at(std::string(900, 'x'), 0)).ok());
        EXPECT_EQ((co_await f->write_at(std::string(200, 'y'), 900)).code(), Code::kNoSpace);
        EXPECT_LE(world.sim.used(), 1000U);
        EXPECT_TRUE((co_await f->write_at(std::string(100, 'z'), 0)).ok());  // over what is there
        world.sim.fail_operations(1);
        EXPECT_EQ((co_await f->sync()).code(), Code::kIo);
        EXPECT_TRUE((co_await f->sync()).ok());
        const std::string before = *co_await get(world.disk(), "/data/f");
        EXPECT_TRUE(world.sim.flip_bits("/data/f", 1));
        const std::string after = *co_await get(world.disk(), "/data/f");
        int different = 0;
        for (std::size_t i = 0; i < before.size(); ++i) different += before[i] != after[i] ? 1 : 0;
        EXPECT_EQ(different, 1);
        EXPECT_FALSE(world.sim.flip_bits("/data/none", 1));
    });
}

}  // namespace
}  // namespace nereid::io
