#include "app/cache_command.h"

#include <nereid_kv.h>

#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "app/serve.h"
#include "base/json.h"
#include "cli/command.h"
#include "io/config.h"
#include "io/real_disk.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "kv/server/server.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid cache: the KV cache of this machine\n\n"
    "usage: nereid cache serve --socket PATH [--folder PATH] [OPTIONS]   run a node\n"
    "       nereid cache stats --socket PATH    counters, what is held, tiers, hit curve, as JSON\n"
    "       nereid cache ls --socket PATH       objects in memory, as JSON\n"
    "       nereid cache scrub --socket PATH    a running node reads everything on SSD once\n"
    "       nereid cache verify --folder PATH   the same for a folder that no node uses\n\n"
    "scrub and verify exit with 1 when something is damaged; the node forgets it and it is "
    "computed "
    "anew.\n\n";

const Aliases kAliases = {{"socket", "kv.socket"},
                          {"folder", "kv.folder"},
                          {"memory", "kv.memory"},
                          {"capacity", "kv.capacity"}};

struct CacheOptions {
    std::string socket;
    std::string folder;
    io::SizeBytes memory{ByteCount{1} << 30};
    io::SizeBytes capacity{ByteCount{64} << 30};
    std::int64_t index_entries = 1 << 20;
    Duration ttl = std::chrono::hours(7 * 24);
    io::SizeBytes tenant_quota{0};
    std::string secret_file;
    std::vector<std::string> users;

    void bind(io::ConfigBinder& b) {
        b.knob("kv.socket", socket, {.doc = "Unix socket of the cache node."});
        b.knob("kv.folder", folder, {.doc = "Where the SSD tier lies; empty: memory only."});
        b.knob("kv.memory", memory,
               {.min = 4 << 20, .doc = "Memory of the arena, shared with the engines."});
        b.knob("kv.capacity", capacity,
               {.min = 16 << 20, .doc = "Disk that the SSD tier may use."});
        b.knob("kv.index_entries", index_entries,
               {.unit = "objects",
                .min = 1000,
                .max = 4e9,
                .doc = "Room of the index, 21 bytes each, committed as it fills."});
        b.knob("kv.ttl", ttl, {.min = 3600, .doc = "Life of objects whose put names none."});
        b.knob("kv.tenant_quota", tenant_quota,
               {.min = 0, .doc = "Memory that one tenant may fill; 0: all of it."});
        b.knob("kv.secret_file", secret_file,
               {.doc = "File with the secret of the namespaces' capabilities; empty: every process "
                       "of the user may open every namespace."});
        b.knob("kv.users", users, {.doc = "Numbers of other users that may connect."});
    }
};

Result<kv::CacheServerOptions> server_options(const CacheOptions& o) {
    kv::CacheServerOptions out;
    out.socket_path = o.socket;
    out.arena_bytes = o.memory.value / 4096 * 4096;
    out.index_entries = static_cast<std::uint64_t>(o.index_entries);
    out.node.default_ttl = o.ttl;
    out.node.tenant_quota_bytes = o.tenant_quota.value;
    out.ssd.folder = o.folder;
    out.ssd.capacity_bytes = o.capacity.value;
    if (!o.secret_file.empty()) {
        TRY(out.secret, io::read_file(o.secret_file, 4096));
        while (!out.secret.empty() && out.secret.back() == '\n') out.secret.pop_back();
        if (out.secret.size() < 16)
            return err(Code::kConfig, o.secret_file + ": a secret of 16 bytes or more is needed");
    }
    for (const auto& user : o.users) {
        char* end = nullptr;
        const auto uid = std::strtoul(user.c_str(), &end, 10);
        if (user.empty() || *end != '\0')
            return err(Code::kConfig, "kv.users: '" + user + "' is not a user's number (id -u)");
        out.users.push_back(static_cast<uid_t>(uid));
    }
    return out;
}

Result<void> need(const std::string& value, std::string_view option, std::string_view what) {
    if (!value.empty()) return {};
    return err(Code::kConfig, fmt::format("--{} is missing. Mend: give {}.", option, what));
}

struct Running {
    std::unique_ptr<kv::CacheServer> server;
    Result<void> result;
    bool ending = false;
};

io::Task<void> begin(io::RealLoop& loop, io::Network& network, io::Disk& disk,
                     kv::CacheServerOptions options, Running& running) {
    auto server = co_await kv::CacheServer::start(loop, network, disk, std::move(options));
    if (!server.ok()) {
        running.result = server.error();
        loop.stop();
        co_return;
    }
    running.server = std::move(*server);
    std::fputs("ready\n", stdout);
    std::fflush(stdout);
}

io::Task<void> end(io::RealLoop& loop, Running& running) {
    if (running.server) co_await running.server->stop();
    loop.stop();
}

Result<void> serve(const CacheOptions& o) {
    TRY_VOID(need(o.socket, "socket", "the path of the Unix socket to listen on"));
    TRY(auto options, server_options(o));
    io::RealLoop loop;
    io::RealNetwork network(loop);
    io::RealDisk disk(loop, {.threads = 2, .direct = true, .uring = true});
    Running running;
    const io::SignalWatch watch(loop, {SIGTERM, SIGINT}, [&](int) {
        if (!std::exchange(running.ending, true)) loop.spawn(end(loop, running));
    });
    loop.spawn(begin(loop, network, disk, std::move(options), running));
    loop.run();
    running.server.reset();
    return running.result;
}

// One question to a running node; its JSON.
Result<std::string> ask(nereid_kv* kv, std::uint8_t what) {
    constexpr int kMs = 60'000;
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    if (nereid_kv_submit_stats(kv, what, &tag) != 0 || nereid_kv_wait(kv, tag, kMs, &c) != 0)
        return err(Code::kUnavailable, nereid_kv_error(kv));
    return std::string(c.text);
}

struct Connection {
    nereid_kv* kv = nullptr;
    Connection() = default;
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection() { nereid_kv_close(kv); }
    Result<void> open(const std::string& socket) {
        TRY_VOID(need(socket, "socket", "the path of the node's Unix socket"));
        if (nereid_kv_connect(socket.c_str(), "nereid cache", 0, 5000, &kv) != 0)
            return err(Code::kUnavailable, nereid_kv_error(nullptr));
        return {};
    }
};

Result<int> print(const std::string& socket, std::uint8_t what) {
    Connection connection;
    TRY_VOID(connection.open(socket));
    TRY(const auto text, ask(connection.kv, what));
    std::puts(text.c_str());
    return cli::kOk;
}

int report_damage(std::int64_t records, std::int64_t corrupt) {
    fmt::print("{{\"records\":{},\"corrupt\":{}}}\n", records, corrupt);
    return corrupt == 0 ? cli::kOk : 1;
}

Result<int> scrub(const std::string& socket) {
    Connection connection;
    TRY_VOID(connection.open(socket));
    std::int64_t records = 0;
    std::int64_t corrupt = 0;
    for (bool wrapped = false; !wrapped;) {
        TRY(const auto text, ask(connection.kv, 2));
        TRY(const auto json, Json::parse(text));
        const Json* done = json.find("wrapped");
        if (done == nullptr) return err(Code::kUnsupported, "this node has no SSD tier");
        wrapped = done->as_bool();
        records += json.find("records")->as_int().value_or(0);
        corrupt += json.find("corrupt")->as_int().value_or(0);
    }
    return report_damage(records, corrupt);
}

io::Task<void> verify_all(io::RealLoop& loop, io::Disk& disk, std::string folder,
                          Result<kv::ssd::ScrubReport>& out) {
    using kv::ssd::SegmentStore;
    kv::ssd::ScrubReport sum;
    auto store = co_await SegmentStore::open(loop, disk, {.folder = std::move(folder)});
    if (!store.ok()) {
        out = store.error();
    } else {
        for (bool done = false; !done;) {
            const auto batch = co_await (*store)->scan_next();
            done = !batch.ok() || batch->done;
        }
        while (!sum.wrapped) {
            const auto r = co_await (*store)->scrub_next();
            sum.records += r.records;
            sum.corrupt += r.corrupt;
            sum.wrapped = r.wrapped;
        }
        co_await (*store)->quiesce();
        out = sum;
    }
    loop.stop();
}

Result<int> verify(const std::string& folder) {
    TRY_VOID(need(folder, "folder", "the folder of an SSD tier that no node uses"));
    io::RealLoop loop;
    io::RealDisk disk(loop, {.threads = 2, .direct = true, .uring = true});
    Result<kv::ssd::ScrubReport> report = kv::ssd::ScrubReport{};
    loop.spawn(verify_all(loop, disk, folder, report));
    loop.run();
    TRY(const auto r, std::move(report));
    return report_damage(static_cast<std::int64_t>(r.records),
                         static_cast<std::int64_t>(r.corrupt));
}

Result<int> run(const std::string& verb, const CacheOptions& o) {
    if (verb == "stats") return print(o.socket, 0);
    if (verb == "ls") return print(o.socket, 1);
    if (verb == "scrub") return scrub(o.socket);
    if (verb == "verify") return verify(o.folder);
    if (verb == "serve") {
        TRY_VOID(serve(o));
        return cli::kOk;
    }
    return err(Code::kConfig,
               "cache does not know '" + verb + "'. Mend: one of serve, stats, ls, scrub, verify.");
}

}  // namespace

void bind_cache(io::ConfigBinder& b) {
    static CacheOptions options;
    options.bind(b);
}

int cache_command(std::span<const std::string> args) {
    CacheOptions options;
    const auto bind = [&options](io::ConfigBinder& b) { options.bind(b); };
    if (args.empty() || args[0] == "--help" || args[0] == "-h") {
        const std::string help = std::string(kUsage) + io::config_help(bind, kAliases);
        std::fputs(help.c_str(), stdout);
        return cli::kOk;
    }
    auto invocation = cli::parse_invocation(args.subspan(1));
    if (!invocation.ok()) return cli::report(invocation.error());
    const auto loaded =
        io::load_config(bind, {invocation->config_path, invocation->knobs, kAliases});
    if (!loaded.ok()) return cli::report(loaded.error());
    const auto result = run(args[0], options);
    return result.ok() ? *result : cli::report(result.error());
}

}  // namespace nereid::app
