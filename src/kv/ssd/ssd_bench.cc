// What bench/kv-node.py measures of the tiers, one mode per run; the last line is one JSON object.
//
//     kv_ssd_bench write   FOLDER BYTES BLOCK DEPTH_BYTES   appends until BYTES are sealed
//     kv_ssd_bench read    FOLDER SECONDS BLOCK DEPTH       random reads of what `write` left
//     kv_ssd_bench restart FOLDER ENTRIES BLOCK ROUNDS      footers of ENTRIES records into an
//     index kv_ssd_bench dram    BYTES BLOCK ROUNDS               copies out of an arena against
//     memcpy
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/prng.h"
#include "io/aligned_buffer.h"
#include "io/memory_region.h"
#include "io/real_disk.h"
#include "io/real_loop.h"
#include "io/sim_disk.h"
#include "io/sim_loop.h"
#include "kv/index/index.h"
#include "kv/ssd/segment.h"
#include "kv/ssd/store.h"
#include "kv/tier/arena.h"

namespace nereid::kv::ssd {
namespace {

using io::Task;

double cpu_seconds() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto s = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return s(u.ru_utime) + s(u.ru_stime);
}

model::BlockKey key_of(std::uint64_t n) {
    model::BlockKey key;
    for (std::size_t half = 0; half < 2; ++half) {
        const std::uint64_t v = keyed_u64(n, half);
        std::memcpy(key.bytes.data() + 8 * half, &v, sizeof v);
    }
    return key;
}
const model::Namespace kNs{.digest = {1, 2, 3}};

struct World {
    io::RealLoop loop;
    io::RealDisk disk{loop, {.threads = 2, .direct = true, .uring = true}};
    std::unique_ptr<SegmentStore> store;

    template <class F>
    void run(F f) {
        bool done = false;
        loop.spawn([](F& body, bool& flag) -> Task<void> {
            co_await body();
            flag = true;
        }(f, done));
        CHECK(loop.run_until([&] { return done; }, 10min));
    }
    Task<void> open(std::string folder) {
        auto r = co_await SegmentStore::open(loop, disk,
                                             {.folder = std::move(folder),
                                              .capacity_bytes = ByteCount{1} << 40,
                                              .queue_bytes = ByteCount{1} << 30});
        CHECK_MSG(r.ok(), r.ok() ? "" : r.error().message);
        store = std::move(*r);
    }
};

// A source of payloads: enough different ones that nothing is cached, cheap to make.
class Source {
  public:
    explicit Source(std::size_t block) : block_(block), memory_(round_to_page(block) * kCount) {
        Prng rng(1);
        for (std::size_t i = 0; i + 8 <= memory_.size(); i += 8) {
            const std::uint64_t v = rng.next();
            std::memcpy(memory_.data() + i, &v, 8);
        }
        for (std::size_t i = 0; i < kCount; ++i) crcs_.push_back(crc32c(payload(i)));
    }
    std::span<const std::uint8_t> payload(std::uint64_t i) const {
        return {reinterpret_cast<const std::uint8_t*>(memory_.data()) +
                    i % kCount * round_to_page(block_),
                block_};
    }
    std::uint32_t crc(std::uint64_t i) const { return crcs_[i % kCount]; }

  private:
    static constexpr std::size_t kCount = 64;
    std::size_t block_;
    io::AlignedBuffer memory_;
    std::vector<std::uint32_t> crcs_;
};

int write(const std::string& folder, std::uint64_t bytes, std::size_t block, std::uint64_t depth) {
    World w;
    const Source source(block);
    std::uint64_t next = 0;
    const std::uint64_t count = bytes / block;
    w.run([&]() -> Task<void> {
        co_await w.open(folder);
        while (!(*co_await w.store->scan_next()).done) {
        }
    });
    const TimePoint begin = w.loop.now();
    const double cpu = cpu_seconds();
    w.run([&]() -> Task<void> {
        const std::uint64_t streams = std::max<std::uint64_t>(1, depth / block);
        std::uint64_t running = streams;
        const ExpiryHour expiry = expiry_hour(w.loop.wall_now(), 72h);
        for (std::uint64_t i = 0; i < streams; ++i) {
            w.loop.spawn([](World& world, const Source& from, std::size_t length, std::uint64_t& at,
                            std::uint64_t end, ExpiryHour hour, std::uint64_t& left) -> Task<void> {
                while (at < end) {
                    const std::uint64_t n = at++;
                    RecordInfo info{.ns = kNs,
                                    .key = key_of(n),
                                    .kind = ObjectKind::kHistory,
                                    .block = static_cast<std::uint32_t>(n % 64),
                                    .length = static_cast<std::uint32_t>(length),
                                    .payload_crc = from.crc(n),
                                    .expiry = hour,
                                    .ttl = 72h};
                    const auto r = co_await world.store->append(info, from.payload(n));
                    CHECK_MSG(r.ok(), r.ok() ? "" : r.error().message);
                }
                --left;
            }(w, source, block, next, count, expiry, running));
        }
        while (running > 0) co_await w.loop.sleep_for(200us);
        co_await w.store->close();
    });
    const double seconds = to_seconds(w.loop.now() - begin);
    const double gb = static_cast<double>(count * block) / 1e9;
    const SsdStats s = w.store->stats();
    fmt::print(
        "{{\"gb_s\":{:.4f},\"cpu_s_per_gb\":{:.4f},\"write_amplification\":{:.4f},"
        "\"backend\":\"{}\"}}\n",
        gb / seconds, (cpu_seconds() - cpu) / gb,
        static_cast<double>(s.written_bytes) / static_cast<double>(s.payload_bytes),
        w.disk.backend());
    return 0;
}

int read(const std::string& folder, double seconds, std::size_t block, std::size_t depth) {
    World w;
    std::vector<ScanEntry> entries;
    w.run([&]() -> Task<void> {
        co_await w.open(folder);
        for (bool done = false; !done;) {
            const auto batch = *co_await w.store->scan_next();
            done = batch.done;
            entries.insert(entries.end(), batch.entries.begin(), batch.entries.end());
        }
    });
    CHECK_MSG(!entries.empty(), "nothing to read: run write first");
    std::vector<double> micros;
    const TimePoint begin = w.loop.now();
    const TimePoint end = begin + Duration(static_cast<std::int64_t>(seconds * 1e9));
    const double cpu = cpu_seconds();
    w.run([&]() -> Task<void> {
        std::size_t running = depth;
        for (std::size_t i = 0; i < depth; ++i) {
            w.loop.spawn([](World& world, const std::vector<ScanEntry>& all, std::size_t length,
                            TimePoint until, std::uint64_t seed, std::vector<double>& times,
                            std::size_t& left) -> Task<void> {
                Prng rng(seed);
                io::AlignedBuffer into(length);
                const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(into.data()),
                                                    length);
                for (TimePoint now = world.loop.now(); now < until;) {
                    const ScanEntry& e = all[rng.below(all.size())];
                    const auto r = co_await world.store->read(e.location, e.key, bytes);
                    CHECK_MSG(r.ok(), r.ok() ? "" : r.error().message);
                    const TimePoint then = world.loop.now();
                    times.push_back(static_cast<double>((then - now).count()) / 1e3);
                    now = then;
                }
                --left;
            }(w, entries, block, end, i + 1, micros, running));
        }
        while (running > 0) co_await w.loop.sleep_for(200us);
        co_await w.store->quiesce();
    });
    const double took = to_seconds(w.loop.now() - begin);
    const double gb = static_cast<double>(micros.size() * block) / 1e9;
    std::ranges::sort(micros);
    fmt::print(
        "{{\"gb_s\":{:.4f},\"cpu_s_per_gb\":{:.4f},\"p50_us\":{:.1f},\"p99_us\":{:.1f},"
        "\"reads\":{}}}\n",
        gb / took, (cpu_seconds() - cpu) / gb, micros[micros.size() / 2],
        micros[micros.size() * 99 / 100], micros.size());
    return 0;
}

// Segments of 256 MiB whose records are holes: what a restart reads is there, the rest costs no
// disk.
std::uint64_t make_segments(const std::string& folder, std::uint64_t count, std::size_t block) {
    io::RealLoop loop;
    io::RealDisk disk(loop, 1);
    bool done = false;
    FolderId id{};
    std::filesystem::remove_all(folder);
    const auto now = static_cast<std::uint32_t>(loop.wall_now().seconds());
    const std::uint64_t pages = record_bytes(block >= kPagedFrom, 0, block) / kPage;
    std::uint64_t made = 0;
    loop.spawn([](io::RealLoop& l, io::RealDisk& d, std::string dir, FolderId& out,
                  bool& flag) -> Task<void> {
        auto r = co_await SegmentStore::open(l, d, {.folder = dir});
        CHECK(r.ok());
        r->reset();
        auto file = *co_await d.open(dir + "/superblock", io::OpenMode::kRead);
        std::string page(kPage, '\0');
        static_cast<void>(co_await file->read_at(page, 0));
        out = decode_superblock(page)->folder;
        flag = true;
    }(loop, disk, folder, id, done));
    CHECK(loop.run_until([&] { return done; }, 1min));
    for (std::uint64_t segment = 1; made < count; ++segment) {
        const SegmentHead head{.folder = id,
                               .segment = segment,
                               .capacity = kMaxSegmentBytes,
                               .created_s = now,
                               .expires_s = (now / 3600 + 72) * 3600,
                               .ttl_s = 72 * 3600};
        FooterBuilder footer;
        RecordHeader h;
        h.ns = kNs;
        h.paged = block >= kPagedFrom;
        h.payload_bytes = static_cast<std::uint32_t>(block);
        h.expires_s = head.expires_s;
        h.page = 1;
        while (made < count && h.page * kPage + pages * kPage + footer.bytes(1) <= head.capacity) {
            h.key = key_of(made);
            h.generation = ++made;
            h.depth = static_cast<std::uint32_t>(made % 64);
            CHECK(footer.add(h));
            h.page += static_cast<std::uint32_t>(pages);
        }
        std::string bytes;
        footer.encode(head, h.page, bytes);
        std::FILE* f = std::fopen((folder + "/" + segment_name(segment)).c_str(), "wb");
        CHECK(f != nullptr);
        CHECK(std::fseek(f, static_cast<long>(h.page) * static_cast<long>(kPage), SEEK_SET) == 0);
        CHECK(std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size());
        CHECK(fflush(f) == 0 && fsync(fileno(f)) == 0);
        std::fclose(f);
    }
    return made;
}

struct Loaded {
    double wall_s = 0;
    double cpu_s = 0;
    double first_ms = 0;
};
Loaded load(const std::string& folder, std::uint64_t count) {
    World w;
    auto index = *Index::create({.entries = count, .seed = 1});
    std::uint64_t put = 0;
    Loaded out;
    const TimePoint begin = w.loop.now();
    const double cpu = cpu_seconds();
    w.run([&]() -> Task<void> {
        co_await w.open(folder);
        std::vector<ObjectKey> keys;
        for (bool done = false; !done;) {
            const auto batch = *co_await w.store->scan_next();
            done = batch.done;
            constexpr std::size_t kAhead = 32;
            for (std::size_t i = 0; i < batch.entries.size(); ++i) {
                if (i % kAhead == 0) {
                    keys.clear();
                    for (std::size_t j = i; j < std::min(i + kAhead, batch.entries.size()); ++j)
                        keys.push_back(batch.entries[j].key);
                    index->prefetch(keys);
                }
                const ScanEntry& e = batch.entries[i];
                CHECK(index->put(e.key, {.location = e.location,
                                         .expiry = e.expiry,
                                         .generation = e.generation}) != Index::Put::kFull);
            }
            if (put == 0) out.first_ms = to_ms(w.loop.now() - begin);
            put += batch.entries.size();
        }
        co_await w.store->quiesce();
    });
    out.wall_s = to_seconds(w.loop.now() - begin);
    out.cpu_s = cpu_seconds() - cpu;
    CHECK(put == count && index->stats().entries == count);
    return out;
}

int restart(const std::string& folder, std::uint64_t count, std::size_t block, int rounds) {
    make_segments(folder, count, block);
    std::vector<Loaded> all;
    for (int i = 0; i < rounds; ++i) all.push_back(load(folder, count));
    const auto median = [&](double Loaded::* field) {
        std::ranges::nth_element(all, all.begin() + rounds / 2, {}, field);
        return all[static_cast<std::size_t>(rounds) / 2].*field;
    };
    const auto n = static_cast<double>(count);
    fmt::print(
        "{{\"entries_per_s\":{:.0f},\"entries_per_cpu_s\":{:.0f},\"serving_after_ms\":{:.2f},"
        "\"entries\":{},\"block\":{}}}\n",
        n / median(&Loaded::wall_s), n / median(&Loaded::cpu_s), median(&Loaded::first_ms), count,
        block);
    std::filesystem::remove_all(folder);
    return 0;
}

// Three turns of a TTL of 24 h under steady puts on the simulated disk and clock; of what is kept a
// fiftieth is hit each hour, so most of it at some time and much of it late in its life.
int turn() {
    constexpr std::size_t kBytes = 114'048;  // DeepInfer's V4.1-Flash
    constexpr int kPerHour = 60;
    io::SimScheduler scheduler(1);
    io::SimLoop loop(scheduler);
    io::SimDisk sim(scheduler, {});
    io::SimDiskView disk(sim, loop);
    const Source source(kBytes);
    SsdStats stats;
    bool done = false;
    struct Kept final : SsdListener {
        std::map<ObjectKey, Location> live;
        void on_gone(std::span<const ScanEntry> entries, GoneCause) override {
            for (const ScanEntry& e : entries) live.erase(e.key);
        }
        void on_moved(ObjectKey key, Location, Location to, ExpiryHour) override { live[key] = to; }
        void on_writable(bool) override {}
    } kept;
    loop.spawn([](io::Loop& l, io::Disk& d, const Source& from, Kept& k, SsdStats& out,
                  bool& flag) -> Task<void> {
        auto opened =
            co_await SegmentStore::open(l, d, {.folder = "/kv", .capacity_bytes = 1 << 30});
        CHECK(opened.ok());
        SegmentStore& store = **opened;
        store.set_listener(&k);
        while (!(*co_await store.scan_next()).done) {
        }
        Prng rng(1);
        std::uint64_t next = 0;
        for (int hour = 0; hour < 3 * 24; ++hour) {
            for (int i = 0; i < kPerHour; ++i) {
                const std::uint64_t n = next++;
                const RecordInfo info{.ns = kNs,
                                      .key = key_of(n),
                                      .kind = ObjectKind::kHistory,
                                      .block = static_cast<std::uint32_t>(n % 64),
                                      .length = kBytes,
                                      .payload_crc = from.crc(n),
                                      .expiry = expiry_hour(l.wall_now(), 24h),
                                      .ttl = 24h};
                const auto at = co_await store.append(info, from.payload(n));
                CHECK(at.ok());
                k.live[info.object()] = *at;
            }
            co_await l.sleep_for(1h);
            for (const auto& [key, at] : k.live) {
                if (rng.chance(0.02)) store.touch(at, l.wall_now());
            }
            co_await store.tick(l.wall_now());
        }
        out = store.stats();
        co_await store.quiesce();
        store.set_listener(nullptr);
        flag = true;
    }(loop, disk, source, kept, stats, done));
    CHECK(scheduler.run_until([&] { return done; }, 24h * 365) == io::SimEnd::kDone);
    fmt::print(
        "{{\"write_amplification\":{:.4f},\"forwarded_share\":{:.4f}}}\n",
        static_cast<double>(stats.written_bytes) / static_cast<double>(stats.payload_bytes),
        static_cast<double>(stats.forwarded_bytes) / static_cast<double>(stats.payload_bytes));
    return 0;
}

int dram(std::uint64_t bytes, std::size_t block, int rounds) {
    auto region = *io::MemoryRegion::anonymous(bytes, true);
    std::memset(region.bytes().data(), 0, region.size());
    auto arena = *Arena::create(region.bytes(), {});
    std::vector<SlotRef> refs;
    Prng rng(1);
    while (const auto slot = arena->allocate(static_cast<std::uint32_t>(block))) {
        auto into = arena->bytes(*slot);
        for (std::size_t i = 0; i + 8 <= into.size(); i += 64) {
            const std::uint64_t v = rng.next();
            std::memcpy(into.data() + i, &v, 8);
        }
        arena->publish(*slot, {refs.size() + 1, 7}, crc32c(into));
        refs.push_back(arena->ref(*slot));
    }
    const auto reader = *ArenaReader::open(region.bytes());
    // As large as an engine's cache of many blocks, so that the copies do not stay in ours.
    auto target = *io::MemoryRegion::anonymous(std::max<ByteCount>(64 << 20, block), true);
    std::memset(target.bytes().data(), 1, target.size());
    std::size_t next = 0;
    const auto to = [&]() -> std::span<std::uint8_t> {
        next = next + 2 * block <= target.size() ? next + block : 0;
        return target.bytes().subspan(next, block);
    };
    io::RealLoop clock;
    double ours = 0;
    double theirs = 0;
    double views = 0;
    const double gb = static_cast<double>(refs.size() * block) / 1e9;
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round) {
        TimePoint begin = clock.now();
        for (const SlotRef& r : refs)
            std::memcpy(to().data(), region.bytes().data() + r.offset, block);
        const double memcpy_s = to_seconds(clock.now() - begin);
        begin = clock.now();
        for (const SlotRef& r : refs) CHECK(reader.copy(r, to()).ok());
        const double copy_s = to_seconds(clock.now() - begin);
        begin = clock.now();
        for (const SlotRef& r : refs) CHECK(reader.view(r).ok() && reader.still_valid(r));
        views += to_seconds(clock.now() - begin);
        ours += copy_s;
        theirs += memcpy_s;
        ratios.push_back(memcpy_s / copy_s);
    }
    std::ranges::sort(ratios);
    fmt::print(
        "{{\"ratio\":{:.4f},\"copy_gb_s\":{:.4f},\"memcpy_gb_s\":{:.4f},\"view_ns\":{:.1f},"
        "\"source_bytes\":{}}}\n",
        ratios[ratios.size() / 2], gb * rounds / ours, gb * rounds / theirs,
        views * 1e9 / static_cast<double>(refs.size()) / rounds, refs.size() * block);
    return 0;
}

}  // namespace
}  // namespace nereid::kv::ssd

int main(int argc, char** argv) {
    namespace ssd = nereid::kv::ssd;
    const std::vector<std::string> a(argv + 1, argv + argc);
    const auto number = [&](std::size_t i) { return std::strtoull(a[i].c_str(), nullptr, 10); };
    if (a.size() == 5 && a[0] == "write") return ssd::write(a[1], number(2), number(3), number(4));
    if (a.size() == 5 && a[0] == "read")
        return ssd::read(a[1], std::strtod(a[2].c_str(), nullptr), number(3), number(4));
    if (a.size() == 5 && a[0] == "restart")
        return ssd::restart(a[1], number(2), number(3), static_cast<int>(number(4)));
    if (a.size() == 1 && a[0] == "turn") return ssd::turn();
    if (a.size() == 4 && a[0] == "dram")
        return ssd::dram(number(1), number(2), static_cast<int>(number(3)));
    std::fprintf(stderr, "see the head of ssd_bench.cc\n");
    return 2;
}
