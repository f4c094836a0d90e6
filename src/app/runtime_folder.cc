#include "app/runtime_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace nereid::app {

namespace {

constexpr std::size_t kRoomForName = 40;  // "/nereid-XXXXXX/worker.sock" and some
constexpr std::size_t kSocketPathMax = 107;
constexpr std::string_view kPrefix = "nereid-";
constexpr std::size_t kRandomPart = 6;  // of mkdtemp

// Opens and locks `file`. -1: it cannot be opened, or another process holds it.
int lock_file(const std::string& file, int flags) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
}

bool is_ours(const std::string& folder) {
    struct stat facts{};
    return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
           facts.st_uid == ::geteuid();
}

void remove_abandoned(const std::string& base) {
    std::error_code ignored;
    for (std::filesystem::directory_iterator it(base, ignored), end; it != end;
         it.increment(ignored)) {
        const std::string name = it->path().filename();
        if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kRandomPart) continue;
        const std::string folder = it->path();
        if (!is_ours(folder)) continue;
        const int lock = lock_file(folder + "/lock", 0);
        if (lock < 0) continue;
        std::filesystem::remove_all(folder, ignored);
        ::close(lock);
    }
}

}  // namespace

Result<RuntimeFolder> RuntimeFolder::create() {
    std::string tried;
    for (const char* base : {static_cast<const char*>(std::getenv("XDG_RUNTIME_DIR")), "/tmp"}) {
        if (base == nullptr || base[0] != '/' || std::strlen(base) + kRoomForName > kSocketPathMax)
            continue;
        remove_abandoned(base);
        std::string path = fmt::format("{}/{}XXXXXX", base, kPrefix);
        if (mkdtemp(path.data()) != nullptr) {  // mode 0700
            const int lock = lock_file(path + "/lock", O_CREAT | O_EXCL);
            if (lock >= 0) return RuntimeFolder(std::move(path), lock);
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
        }
        tried = fmt::format("{}: {}", base, std::strerror(errno));
    }
    return err(Code::kIo, fmt::format("no private folder for sockets could be made ({}). Mend: set "
                                      "XDG_RUNTIME_DIR to a writable folder with a short path.",
                                      tried));
}

RuntimeFolder::RuntimeFolder(RuntimeFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

RuntimeFolder::~RuntimeFolder() {
    if (path_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    ::close(lock_);
}

Result<std::string> RuntimeFolder::write(const std::string& name,
                                         const std::string& content) const {
    std::string path = path_ + "/" + name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << content;
    file.close();
    if (!file) return err(Code::kIo, fmt::format("{}: could not be written", path));
    std::error_code ignored;
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, ignored);
    return path;
}

}  // namespace nereid::app
