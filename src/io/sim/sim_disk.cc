#include "io/sim_disk.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"

namespace nereid::io {

namespace {

constexpr std::size_t kSector = 512;  // what a platter writes whole

struct Change {  // not yet durable
    bool truncate = false;
    std::uint64_t offset = 0;  // or the new size
    std::string bytes;
};

struct Inode {
    std::string visible;  // what reads see
    std::string durable;  // what a crash leaves, before `unsynced` is drawn
    std::vector<Change> unsynced;
    std::list<const Change*> under_way;  // given to the device, not answered yet
    std::weak_ptr<void> locked_by;       // an open file; of an earlier boot it does not count
    std::uint64_t locked_boot = 0;
};

void apply(std::string& content, const Change& c, std::size_t length) {
    if (c.truncate) {
        content.resize(c.offset, '\0');
        return;
    }
    if (content.size() < c.offset + length) content.resize(c.offset + length, '\0');
    content.replace(c.offset, length, c.bytes, 0, length);
}

std::string parent_of(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return "";
    return slash == 0 ? "/" : path.substr(0, slash);
}

// What a torn write leaves: a prefix of its sectors, or any of them.
void tear(std::string& content, const Change& c, Prng& rng) {
    const std::size_t sectors = c.bytes.size() / kSector;
    if (rng.chance(0.5)) {
        apply(content, c, rng.below(sectors + 1) * kSector);
        return;
    }
    for (std::size_t i = 0; i < sectors; ++i) {
        if (rng.chance(0.5)) continue;
        const Change one{.truncate = false,
                         .offset = c.offset + i * kSector,
                         .bytes = c.bytes.substr(i * kSector, kSector)};
        apply(content, one, kSector);
    }
}

Error missing(const std::string& path) {
    return {Code::kNotFound, path + ": No such file or directory"};
}

}  // namespace

struct SimDisk::Core {
    Core(SimScheduler& s, SimDiskOptions o) : rng(s.fork_rng()), options(o) {}

    // Waits for the operation's time; false when the device failed it, or the power went away
    // meanwhile.
    Task<bool> operate(Loop& loop) {
        ++counters.operations;
        const auto span =
            static_cast<std::uint64_t>((options.max_latency - options.min_latency).count());
        const auto before = boot;
        co_await loop.sleep_for(options.min_latency +
                                Duration(static_cast<std::int64_t>(rng.below(span + 1))));
        bool ok = before == boot;
        if (failures > 0) {
            --failures;
            ok = false;
        }
        if (!ok) ++counters.failed;
        co_return ok;
    }
    bool has_folder(const std::string& path) const {
        return path.empty() || path == "/" || folders.contains(path);
    }
    ByteCount used() const {
        ByteCount sum = 0;
        for (const auto& [path, inode] : files) sum += inode->visible.size();
        return sum;
    }

    Prng rng;
    SimDiskOptions options;
    SimDiskCounters counters;
    std::map<std::string, std::shared_ptr<Inode>> files;
    std::set<std::string> folders;
    std::uint64_t boot = 0;  // an open file of an earlier boot is dead
    int failures = 0;
};

namespace {

using Core = SimDisk::Core;

// What a file object and its running operations share.
struct OpenFile {
    std::shared_ptr<Core> core;
    Loop& loop;
    std::shared_ptr<Inode> inode;
    std::string path;
    bool writable;
    std::uint64_t boot;

    Error failed(std::string_view what) const {
        return {Code::kIo, fmt::format("{} {}: Input/output error", what, path)};
    }
};

Task<Result<std::size_t>> read_from(std::shared_ptr<OpenFile> f, std::vector<std::span<char>> into,
                                    std::uint64_t offset) {
    if (!co_await f->core->operate(f->loop) || f->boot != f->core->boot)
        co_return f->failed("read");
    const std::string& content = f->inode->visible;
    std::size_t done = 0;
    for (const auto& piece : into) {
        if (offset + done >= content.size()) break;
        done += content.copy(piece.data(), piece.size(), offset + done);
    }
    co_return done;
}

class UnderWay {
  public:
    UnderWay(std::shared_ptr<Inode> inode, const Change& c) : inode_(std::move(inode)) {
        at_ = inode_->under_way.insert(inode_->under_way.end(), &c);
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    ~UnderWay() { inode_->under_way.erase(at_); }

  private:
    std::shared_ptr<Inode> inode_;
    std::list<const Change*>::iterator at_;
};

Task<Result<void>> change(std::shared_ptr<OpenFile> f, Change c) {
    bool alive = false;
    {
        const UnderWay mark(f->inode, c);
        alive = co_await f->core->operate(f->loop);
    }
    if (!alive || f->boot != f->core->boot) co_return f->failed("write");
    if (!f->writable) co_return Error{Code::kPermissionDenied, f->path + ": open for reading only"};
    Core& core = *f->core;
    Inode& inode = *f->inode;
    if (!c.truncate) {
        const std::uint64_t end = c.offset + c.bytes.size();
        const std::uint64_t grows = end > inode.visible.size() ? end - inode.visible.size() : 0;
        if (core.used() + grows > core.options.capacity) {
            // A prefix may have got in.
            c.bytes.resize(core.rng.below(c.bytes.size() + 1));
            const std::uint64_t room =
                core.options.capacity - std::min(core.options.capacity, core.used());
            const std::uint64_t limit = inode.visible.size() + room;
            c.bytes.resize(
                std::min<std::uint64_t>(c.bytes.size(), limit > c.offset ? limit - c.offset : 0));
            if (!c.bytes.empty()) {
                apply(inode.visible, c, c.bytes.size());
                inode.unsynced.push_back(std::move(c));
            }
            co_return Error{Code::kNoSpace,
                            fmt::format("write {}: No space left on device", f->path)};
        }
    }
    apply(inode.visible, c, c.bytes.size());
    inode.unsynced.push_back(std::move(c));
    co_return Result<void>{};
}

Task<Result<void>> sync_file(std::shared_ptr<OpenFile> f) {
    if (!co_await f->core->operate(f->loop) || f->boot != f->core->boot)
        co_return f->failed("sync");
    for (const Change& c : f->inode->unsynced) apply(f->inode->durable, c, c.bytes.size());
    f->inode->unsynced.clear();
    co_return Result<void>{};
}

Task<Result<std::uint64_t>> size_of(std::shared_ptr<OpenFile> f) {
    if (!co_await f->core->operate(f->loop) || f->boot != f->core->boot)
        co_return f->failed("stat");
    co_return f->inode->visible.size();
}

// Like a file that was cut longer: the size is durable with the next sync.
Task<Result<void>> reserve(std::shared_ptr<OpenFile> f, std::uint64_t bytes) {
    const std::uint64_t now = f->inode->visible.size();
    if (bytes <= now) co_return Result<void>{};
    if (f->core->used() + (bytes - now) > f->core->options.capacity) {
        co_return Error{Code::kNoSpace,
                        fmt::format("allocate {}: No space left on device", f->path)};
    }
    co_return co_await change(f, {.truncate = true, .offset = bytes, .bytes = {}});
}

class SimFile final : public File {
  public:
    explicit SimFile(std::shared_ptr<OpenFile> f) : f_(std::move(f)) {}
    Task<Result<std::size_t>> read_at(std::span<char> into, std::uint64_t offset) override {
        return read_from(f_, {into}, offset);
    }
    Task<Result<void>> write_at(std::span<const char> bytes, std::uint64_t offset) override {
        return change(f_, {.truncate = false,
                           .offset = offset,
                           .bytes = std::string(bytes.begin(), bytes.end())});
    }
    Task<Result<std::size_t>> read_pieces(std::vector<std::span<char>> into,
                                          std::uint64_t offset) override {
        return read_from(f_, std::move(into), offset);
    }
    Task<Result<void>> write_pieces(std::vector<std::span<const char>> pieces,
                                    std::uint64_t offset) override {
        std::string bytes;
        for (const auto& p : pieces) bytes.append(p.begin(), p.end());
        return change(f_, {.truncate = false, .offset = offset, .bytes = std::move(bytes)});
    }
    Task<Result<void>> allocate(std::uint64_t bytes) override { return reserve(f_, bytes); }
    Task<Result<void>> sync() override { return sync_file(f_); }
    Task<Result<std::uint64_t>> size() override { return size_of(f_); }
    Task<Result<void>> truncate(std::uint64_t bytes) override {
        return change(f_, {.truncate = true, .offset = bytes, .bytes = {}});
    }

  private:
    std::shared_ptr<OpenFile> f_;
};

}  // namespace

SimDisk::SimDisk(SimScheduler& scheduler, SimDiskOptions options)
    : core_(std::make_shared<Core>(scheduler, options)) {}
SimDisk::~SimDisk() = default;

void SimDisk::crash() {
    ++core_->boot;
    for (auto& [path, inode] : core_->files) {
        const auto settle = [&](const Change& c) {
            switch (core_->rng.below(3)) {
                case 0:
                    ++core_->counters.lost_writes;
                    break;
                case 1:
                    ++core_->counters.torn_writes;
                    if (!c.truncate) tear(inode->durable, c, core_->rng);
                    break;
                default:
                    ++core_->counters.kept_writes;
                    apply(inode->durable, c, c.bytes.size());
                    break;
            }
        };
        for (const Change& c : inode->unsynced) settle(c);
        for (const Change* c : inode->under_way) settle(*c);
        inode->unsynced.clear();
        inode->visible = inode->durable;
    }
}

bool SimDisk::flip_bits(const std::string& path, int count) {
    const auto it = core_->files.find(path);
    if (it == core_->files.end() || it->second->visible.empty()) return false;
    Inode& inode = *it->second;
    for (int i = 0; i < count; ++i) {
        const auto at = core_->rng.below(inode.visible.size());
        const auto bit = static_cast<char>(1 << core_->rng.below(8));
        inode.visible[at] = static_cast<char>(inode.visible[at] ^ bit);
        if (at < inode.durable.size())
            inode.durable[at] = static_cast<char>(inode.durable[at] ^ bit);
    }
    return true;
}

void SimDisk::fail_operations(int count) { core_->failures = count; }
void SimDisk::set_capacity(ByteCount bytes) { core_->options.capacity = bytes; }
ByteCount SimDisk::used() const { return core_->used(); }
const SimDiskCounters& SimDisk::counters() const { return core_->counters; }

SimDiskView::SimDiskView(SimDisk& disk, SimLoop& loop) : core_(disk.core_), loop_(loop) {}

Task<Result<std::unique_ptr<File>>> SimDiskView::open(std::string path, OpenMode mode) {
    const auto core = core_;
    Loop& loop = loop_;
    if (!co_await core->operate(loop))
        co_return Error{Code::kIo, "open " + path + ": Input/output error"};
    auto it = core->files.find(path);
    if (it != core->files.end() && mode == OpenMode::kCreateExclusive) {
        co_return Error{Code::kConflict, "open " + path + ": File exists"};
    }
    if (it == core->files.end()) {
        if (mode == OpenMode::kRead || mode == OpenMode::kReadWrite ||
            !core->has_folder(parent_of(path))) {
            co_return missing(path);
        }
        it = core->files.emplace(path, std::make_shared<Inode>()).first;
    }
    const auto file = std::make_shared<OpenFile>(core, loop, it->second, path,
                                                 mode != OpenMode::kRead, core->boot);
    if (mode == OpenMode::kCreateLocked) {
        Inode& inode = *it->second;
        if (inode.locked_boot == core->boot && !inode.locked_by.expired())
            co_return Error{Code::kConflict, path + " is in use by another process"};
        inode.locked_by = file;
        inode.locked_boot = core->boot;
    }
    co_return std::make_unique<SimFile>(file);
}

Task<Result<void>> SimDiskView::remove(std::string path) {
    const auto core = core_;
    if (!co_await core->operate(loop_))
        co_return Error{Code::kIo, "remove " + path + ": Input/output error"};
    if (core->files.erase(path) == 0) co_return missing(path);
    co_return Result<void>{};
}

Task<Result<void>> SimDiskView::rename(std::string from, std::string to) {
    const auto core = core_;
    if (!co_await core->operate(loop_))
        co_return Error{Code::kIo, "rename " + from + ": Input/output error"};
    const auto it = core->files.find(from);
    if (it == core->files.end()) co_return missing(from);
    if (!core->has_folder(parent_of(to))) co_return missing(to);
    auto inode = std::move(it->second);
    core->files.erase(it);
    core->files[to] = std::move(inode);
    co_return Result<void>{};
}

Task<Result<std::vector<std::string>>> SimDiskView::list(std::string folder) {
    const auto core = core_;
    if (!co_await core->operate(loop_))
        co_return Error{Code::kIo, "list " + folder + ": Input/output error"};
    if (!core->has_folder(folder)) co_return missing(folder);
    std::vector<std::string> names;
    const auto add = [&](const std::string& path) {
        if (path != "/" && parent_of(path) == folder)
            names.push_back(path.substr(path.rfind('/') + 1));
    };
    for (const auto& [path, inode] : core->files) add(path);
    for (const auto& path : core->folders) add(path);
    std::ranges::sort(names);
    co_return names;
}

Task<Result<void>> SimDiskView::make_folders(std::string path) {
    const auto core = core_;
    if (!co_await core->operate(loop_))
        co_return Error{Code::kIo, "make folder " + path + ": Input/output error"};
    for (std::string at = path; !core->has_folder(at); at = parent_of(at)) {
        if (core->files.contains(at)) co_return Error{Code::kConflict, at + " is a file"};
        core->folders.insert(at);
    }
    co_return Result<void>{};
}

}  // namespace nereid::io
