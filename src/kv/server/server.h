// CacheServer: a cache node as a process offers it: the node of kv/node, its memory, its SSD tier,
// and kv-wire over a Unix socket (docs/formats/kv-wire.md).
//
// Who may connect: processes of the same user, and of the users named in the options (SO_PEERCRED).
// Who may open a namespace: who brings its capability, an HMAC by the node's secret that the
// gateway hands out; with an empty secret everybody who may connect. The arena is sealed before its
// descriptor leaves, so that clients can only read it; what they want to put lies in staging
// regions of their own, which must be memfds sealed against shrinking.
//
// A client that sends nonsense, floods, does not read or dies is dropped; the node then frees at
// once what it held, and the rest of the world does not notice (cases K28, K29, K30).
//
// Threads: the loop's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/disk.h"
#include "io/real_loop.h"
#include "io/stream.h"
#include "kv/node/node.h"
#include "kv/node/runner.h"
#include "kv/ssd/store.h"
#include "kv/wire/wire.h"

namespace nereid::kv {

struct CacheServerOptions {
    std::string socket_path;
    ByteCount arena_bytes = ByteCount{1} << 30;
    std::uint64_t index_entries = 1 << 20;
    NodeOptions node;          // `ssd` follows from ssd_folder, `epoch` from the clock
    ssd::StoreOptions ssd;     // folder empty: no SSD tier
    std::string secret;        // of the capabilities; empty: none are asked for
    std::vector<uid_t> users;  // besides our own
    std::uint32_t max_clients = 256;
    std::uint32_t max_regions = 8;                     // of a client
    ByteCount max_region_bytes = ByteCount{4} << 30;   // of one
    ByteCount max_unsent_bytes = ByteCount{16} << 20;  // of a client that does not read
    bool huge_pages = true;
};

struct CacheServerCounters {
    std::uint64_t accepted = 0;
    std::uint64_t refused_users = 0;
    std::uint64_t refused_full = 0;
    std::uint64_t refused_capabilities = 0;
    std::uint64_t dropped_corrupt = 0;  // nonsense on the wire
    std::uint64_t dropped_slow = 0;
    std::uint64_t bad_regions = 0;
};

wire::Capability capability_of(std::string_view secret, const model::Namespace& ns);

class CacheServer {
  public:
    // `disk` is used when ssd.folder is not empty; of kv's own (io_uring, direct). kNoSpace
    // (memory), kConflict (socket or folder in use), kConfig, kIo. All arguments outlive the
    // server.
    static io::Task<Result<std::unique_ptr<CacheServer>>> start(io::RealLoop& loop,
                                                                io::Network& network,
                                                                io::Disk& disk,
                                                                CacheServerOptions options,
                                                                NodeProbe* probe = nullptr);
    ~CacheServer();
    CacheServer(const CacheServer&) = delete;
    CacheServer& operator=(const CacheServer&) = delete;

    // Closes the clients, writes what waits for SSD, seals its segments.
    io::Task<void> stop();
    // One object: node counters, what is held, tiers, curve, clients.
    std::string stats_json() const;
    const CacheServerCounters& counters() const;
    const NodeRunner& runner() const;
    std::size_t clients() const;
    ssd::SegmentStore* store();  // null without SSD

  private:
    struct Impl;
    explicit CacheServer(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

}  // namespace nereid::kv
