// What the tests of SegmentStore share: payloads that follow from their key, a listener that
// remembers, and worlds with a disk.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "io/aligned_buffer.h"
#include "io/real_disk.h"
#include "io/sim_disk.h"
#include "io/test_worlds.h"
#include "kv/ssd/store.h"

namespace nereid::kv::ssd {

inline std::string payload_of(std::uint64_t key, std::size_t bytes) {
    Prng rng(key * 0x9e3779b97f4a7c15 + 1);
    std::string out(bytes, '\0');
    for (std::size_t i = 0; i < bytes; i += 8) {
        const std::uint64_t v = rng.next();
        std::memcpy(out.data() + i, &v, std::min<std::size_t>(8, bytes - i));
    }
    return out;
}

inline model::Namespace ns_of(std::uint8_t n) {
    model::Namespace ns;
    ns.digest.fill(n);
    return ns;
}
inline model::BlockKey key_of(std::uint64_t n) {
    model::BlockKey key;
    std::memcpy(key.bytes.data(), &n, sizeof n);
    key.bytes[15] = 0x55;
    return key;
}

// A buffer as the arena gives them: aligned, its last page its own.
struct Block {
    io::AlignedBuffer buffer;
    std::size_t length;
    explicit Block(std::size_t bytes) : buffer(bytes), length(bytes) {}
    explicit Block(const std::string& text) : Block(text.size()) {
        std::memset(buffer.data(), 0x77, buffer.size());
        std::memcpy(buffer.data(), text.data(), text.size());
    }
    std::span<std::uint8_t> bytes() {
        return {reinterpret_cast<std::uint8_t*>(buffer.data()), length};
    }
    std::string text() const { return {buffer.data(), length}; }
};

inline RecordInfo info_for(std::uint64_t key, const std::string& payload, WallTime now,
                           Duration ttl, std::uint32_t depth = 0, std::uint8_t ns = 1) {
    return {.ns = ns_of(ns),
            .key = key_of(key),
            .kind = ObjectKind::kHistory,
            .block = depth,
            .length = static_cast<std::uint32_t>(payload.size()),
            .payload_crc = crc32c(as_bytes(payload)),
            .expiry = expiry_hour(now, ttl),
            .ttl = ttl};
}

struct Listener final : SsdListener {
    struct Moved {
        ObjectKey key;
        Location from;
        Location to;
        ExpiryHour expiry;
    };
    std::vector<std::pair<ScanEntry, GoneCause>> gone;
    std::vector<Moved> moved;
    std::vector<bool> writable;
    void on_gone(std::span<const ScanEntry> entries, GoneCause cause) override {
        for (const auto& e : entries) gone.emplace_back(e, cause);
    }
    void on_moved(ObjectKey key, Location from, Location to, ExpiryHour expiry) override {
        moved.push_back({key, from, to, expiry});
    }
    void on_writable(bool on) override { writable.push_back(on); }
};

struct SimStoreWorld {
    io::SimScheduler scheduler{11};
    io::SimLoop loop{scheduler};
    io::SimDisk sim{scheduler, {}};
    io::SimDiskView view{sim, loop};
    std::string root = "/kv";
    io::Disk& disk() { return view; }
    bool run_until(const std::function<bool()>& done) {
        return scheduler.run_until(done, std::chrono::hours(24 * 365)) == io::SimEnd::kDone;
    }
};
struct RealStoreFolder {
    std::string root = testing::TempDir() + "nereid-kv-" + std::to_string(getpid());
    ~RealStoreFolder() { std::filesystem::remove_all(root); }
};
struct UringStoreWorld : RealStoreFolder, io::RealWorld {
    io::RealDisk real{loop, {.threads = 2, .direct = true, .uring = true}};
    io::Disk& disk() { return real; }
};
struct ThreadStoreWorld : RealStoreFolder, io::RealWorld {
    io::RealDisk real{loop, {.threads = 3, .direct = true, .uring = false}};
    io::Disk& disk() { return real; }
};

}  // namespace nereid::kv::ssd
