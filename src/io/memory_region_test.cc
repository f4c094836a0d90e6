#include "io/memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace nereid::io {
namespace {

TEST(MemoryRegion, AnonymousIsZeroAndPrivate) {
    auto region = MemoryRegion::anonymous(8 << 20, true);
    ASSERT_TRUE(region.ok()) << region.error().message;
    EXPECT_EQ(region->size(), 8U << 20);
    EXPECT_EQ(region->fd(), -1);
    EXPECT_EQ(region->bytes()[4 << 20], 0);
    region->bytes()[4 << 20] = 1;
    MemoryRegion moved = std::move(*region);
    EXPECT_EQ(moved.bytes()[4 << 20], 1);
    EXPECT_FALSE(MemoryRegion::anonymous(0, false).ok());
}

TEST(MemoryRegion, ASealedRegionIsSeenByReadersAndWritableByItsOwnerAlone) {
    auto owner = MemoryRegion::shared("nereid-test", 4 << 20, true);
    ASSERT_TRUE(owner.ok()) << owner.error().message;
    ASSERT_TRUE(owner->seal_writes().ok());
    auto reader = MemoryRegion::map(::dup(owner->fd()), 4 << 20, false);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    owner->bytes()[123] = 42;
    EXPECT_EQ(reader->bytes()[123], 42);

    const auto writer = MemoryRegion::map(::dup(owner->fd()), 4 << 20, true);
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.code(), Code::kPermissionDenied);
    EXPECT_LT(::pwrite(owner->fd(), "x", 1, 0), 0);
    EXPECT_NE(::mprotect(reader->bytes().data(), 4096, PROT_READ | PROT_WRITE), 0);
    EXPECT_NE(::ftruncate(owner->fd(), 0), 0);
}

TEST(MemoryRegion, ARegionThatItsOwnerCouldShrinkIsRefused) {
    const int fd = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, 4096), 0);
    EXPECT_EQ(MemoryRegion::map(::dup(fd), 4096, false).code(), Code::kInvalidArgument);
    ASSERT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_TRUE(MemoryRegion::map(::dup(fd), 4096, true).ok());
    EXPECT_EQ(MemoryRegion::map(::dup(fd), 8192, false).code(), Code::kInvalidArgument);
    ::close(fd);
    EXPECT_EQ(MemoryRegion::map(::open("/dev/zero", O_RDONLY), 4096, false).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(MemoryRegion::map(-1, 4096, false).code(), Code::kInvalidArgument);
}

TEST(MemoryRegion, AskingForTooMuchIsAnError) {
    const auto region = MemoryRegion::shared("nereid-test", 1ULL << 60, false);
    EXPECT_FALSE(region.ok());
}

}  // namespace
}  // namespace nereid::io
