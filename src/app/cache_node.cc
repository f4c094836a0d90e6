#include "app/cache_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace nereid::app {

namespace fs = std::filesystem;

namespace {

constexpr ByteCount kLeastDisk = ByteCount{64} << 20;
constexpr Duration kPatience = 2s;  // with a service before this one that is still sealing

// What is free now and what the cache has already, of which it takes half: others need room, too.
ByteCount room(const std::string& folder) {
    std::error_code ec;
    const auto space = fs::space(folder, ec);
    if (ec) return 0;
    ByteCount own = 0;
    for (const auto& entry : fs::directory_iterator(folder, ec)) {
        std::error_code gone;
        const auto size = entry.file_size(gone);
        if (!gone) own += size;
    }
    return (space.available + own) / 2;
}

// Its folder, made for this user alone, or why there is none.
Result<void> make_folder(const std::string& folder) {
    std::error_code ec;
    if (fs::is_directory(folder, ec)) return {};
    fs::create_directories(folder, ec);
    if (!ec) fs::permissions(folder, fs::perms::owner_all, ec);
    if (ec) return err(Code::kIo, folder + ": " + ec.message());
    return {};
}

}  // namespace

void CacheNodeOptions::bind(io::ConfigBinder& b) {
    b.knob("cache.enabled", enabled,
           {.doc = "Prompts that were computed are kept beyond the life of an engine process, in "
                   "memory and on disk (llama.cpp engines)."});
    b.knob("cache.node", node,
           {.doc = "Unix socket of a running `nereid cache serve` to use; empty: a node of this "
                   "service's own, by the keys below."});
    b.knob("cache.folder", folder,
           {.doc = "Where the disk's part lies, for one service at a time. Empty: "
                   "$XDG_CACHE_HOME/nereid/kv or ~/.cache/nereid/kv. It holds what prompts became, "
                   "not encrypted, readable by this user only."});
    b.knob("cache.memory", memory, {.min = 16 << 20, .doc = "Memory of the node, as it fills."});
    b.knob("cache.capacity", capacity,
           {.min = 0,
            .doc = "Disk that the cache may fill, at most half of what is free; 0B: memory only."});
    b.knob("cache.ttl", ttl, {.min = 3600, .doc = "How long a prompt that nobody uses is kept."});
}

std::string default_cache_folder() {
    const char* xdg = std::getenv("XDG_CACHE_HOME");
    if (xdg != nullptr && *xdg != '\0') return std::string(xdg) + "/nereid/kv";
    const char* home = std::getenv("HOME");
    if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/nereid/kv";
    return {};
}

Result<std::unique_ptr<CacheNode>> CacheNode::start(const CacheNodeOptions& options,
                                                    EngineOptions& engine,
                                                    const std::string& runtime_folder,
                                                    ops::Registry& metrics, ops::Logger& log) {
    std::unique_ptr<CacheNode> self;
    if (!options.enabled || engine.kind != "llama" || !engine.cache.empty()) return self;
    if (!options.node.empty()) {
        engine.cache = options.node;
        return self;
    }
    kv::CacheServerOptions server;
    server.socket_path = runtime_folder + "/cache.sock";
    server.arena_bytes = options.memory.value / 4096 * 4096;
    server.node.default_ttl = options.ttl;
    server.ssd.folder = options.folder.empty() ? default_cache_folder() : options.folder;
    server.ssd.capacity_bytes = options.capacity.value;
    if (options.capacity.value == 0) server.ssd.folder.clear();
    const auto without_disk = [&](const std::string& why) {
        log.warn("the KV cache has no disk: prompts are kept in memory only",
                 {{"folder", server.ssd.folder}, {"error", why}});
        server.ssd.folder.clear();
    };
    const auto unusable = [&](const std::string& why) -> Result<void> {
        if (!options.folder.empty())
            return err(Code::kConfig,
                       fmt::format("cache.folder: {}. Mend: name a folder of this user's on a "
                                   "local disk, or cache.capacity = \"0B\".",
                                   why));
        without_disk(why);
        return {};
    };
    if (!server.ssd.folder.empty()) {
        if (const auto made = make_folder(server.ssd.folder); !made.ok()) {
            TRY_VOID(unusable(made.error().message));
        } else if (const ByteCount most = room(server.ssd.folder); most < kLeastDisk) {
            without_disk("the disk is full");
        } else {
            server.ssd.capacity_bytes = std::min(server.ssd.capacity_bytes, most);
        }
    }
    self.reset(new CacheNode(metrics));
    auto started = kv::NodeThread::start(server, &self->probe_, kPatience);
    if (!started.ok() && !server.ssd.folder.empty()) {
        if (started.code() == Code::kConflict)
            without_disk("another service uses it");
        else
            TRY_VOID(unusable(started.error().message));
        started = kv::NodeThread::start(server, &self->probe_);
    }
    TRY(self->node_, std::move(started));
    engine.cache = server.socket_path;
    return self;
}

}  // namespace nereid::app
