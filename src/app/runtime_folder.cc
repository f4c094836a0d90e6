#include "app/runtime_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace nereid::app {

namespace {

constexpr std::size_t kRoomForName = 40;  // "/nereid-XXXXXX/worker.sock" and some
constexpr std::size_t kSocketPathMax = 107;

}  // namespace

Result<RuntimeFolder> RuntimeFolder::create() {
    std::string tried;
    for (const char* base : {static_cast<const char*>(std::getenv("XDG_RUNTIME_DIR")), "/tmp"}) {
        if (base == nullptr || base[0] != '/' || std::strlen(base) + kRoomForName > kSocketPathMax)
            continue;
        std::string path = fmt::format("{}/nereid-XXXXXX", base);
        if (mkdtemp(path.data()) != nullptr) return RuntimeFolder(std::move(path));  // mode 0700
        tried = fmt::format("{}: {}", base, std::strerror(errno));
    }
    return err(Code::kIo, fmt::format("no private folder for sockets could be made ({}). Mend: set "
                                      "XDG_RUNTIME_DIR to a writable folder with a short path.",
                                      tried));
}

RuntimeFolder::RuntimeFolder(RuntimeFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

RuntimeFolder::~RuntimeFolder() {
    if (path_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
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
