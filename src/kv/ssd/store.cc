#include "kv/ssd/store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "kv/ssd/store_impl.h"

namespace nereid::kv::ssd {

std::uint32_t absolute_s(ExpiryHour hour, WallTime now) {
    const std::int64_t now_hour = now.seconds() / 3600;
    const auto ahead = static_cast<std::int16_t>(hour - static_cast<std::uint16_t>(now_hour));
    return static_cast<std::uint32_t>((now_hour + ahead) * 3600);
}

std::span<const std::uint8_t> bytes_of(std::span<const char> s) {
    return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

namespace {

std::string superblock_path(const std::string& folder) { return folder + "/superblock"; }

// Unlike that of any other folder: nothing secret rests on it.
FolderId new_folder_id(io::Loop& loop, const std::string& folder) {
    std::string text = folder;
    ByteWriter w(text);
    w.put(loop.wall_now().since_epoch.count());
    w.put(loop.now().since_origin.count());
    const Digest256 digest = sha256(as_bytes(text));
    FolderId id;
    std::copy_n(digest.begin(), id.size(), id.begin());
    return id;
}

StoreOptions bounded(StoreOptions o) {
    const ByteCount most = std::min<ByteCount>(o.segment_bytes, o.capacity_bytes / 16);
    o.segment_bytes =
        std::clamp<ByteCount>(most / kPage * kPage, kMinSegmentBytes, kMaxSegmentBytes);
    o.batch_bytes = std::max<ByteCount>(o.batch_bytes, kPage);
    o.writes_in_flight = std::max(o.writes_in_flight, 1U);
    o.open_segments = std::max(o.open_segments, 1U);
    return o;
}

}  // namespace

io::Task<Result<void>> SegmentStore::Impl::start() {
    CO_TRY_VOID(co_await disk.make_folders(options.folder));
    const std::string path = superblock_path(options.folder);
    CO_TRY(auto locked, co_await disk.open(path, io::OpenMode::kCreateLocked));
    superblock = std::move(locked);
    CO_TRY(const auto names, co_await disk.list(options.folder));
    for (const auto& name : names) {
        if (const auto id = segment_of_name(name); id != 0) scan_ids.push_back(id);
    }
    std::ranges::sort(scan_ids);
    io::AlignedBuffer page(kPage);
    CO_TRY(const auto n, co_await superblock->read_at(page.span(), 0));
    const auto found = decode_superblock({page.data(), n});
    if (found.ok()) {
        folder = found->folder;
    } else if (!scan_ids.empty()) {
        co_return err(found.code(),
                      fmt::format("{}: {}. Delete the folder to begin anew: it is a cache.", path,
                                  found.error().message));
    } else {  // new, or the power went before its superblock was durable
        folder = new_folder_id(loop, options.folder);
        const std::string bytes = encode_superblock(
            {.folder = folder, .created_s = static_cast<std::uint32_t>(loop.wall_now().seconds())});
        std::ranges::copy(bytes, page.data());
        CO_TRY_VOID(co_await superblock->write_at(page.span(), 0));
        CO_TRY_VOID(co_await superblock->sync());
    }
    if (!scan_ids.empty()) next_id = scan_ids.back() + 1;
    CO_TRY_VOID(co_await read_notes());
    generation = static_cast<std::uint64_t>(loop.wall_now().seconds()) << 32;
    counts.capacity_bytes = options.capacity_bytes;
    budget_at = loop.wall_now();
    last_sync = loop.now();
    notes_written = loop.now();
    co_return Result<void>{};
}

io::Task<Result<FilePtr>> SegmentStore::Impl::file_of(SegmentPtr s) {
    s->used = true;
    if (s->file) co_return s->file;
    CO_TRY(auto file, co_await disk.open(s->path, io::OpenMode::kReadWrite));
    if (s->file) co_return s->file;  // another was quicker
    if (s->state == Segment::State::kGone) co_return FilePtr(std::move(file));
    const FilePtr mine(std::move(file));
    s->file = mine;
    keep_open(s);
    co_return mine;
}

void SegmentStore::Impl::keep_open(const SegmentPtr& s) {
    opened.push_back(s);
    // Second chance; those that take records keep theirs.
    for (std::size_t tries = 2 * opened.size(); opened.size() > options.open_files && tries > 0;
         --tries) {
        auto first = std::move(opened.front());
        opened.pop_front();
        if (std::exchange(first->used, false) || first->state < Segment::State::kSealed)
            opened.push_back(std::move(first));
        else
            first->file.reset();
    }
}

SegmentPtr SegmentStore::Impl::segment_at(Location at) const {
    if (at.tier != Tier::kSsd) return nullptr;
    const auto it = segments.find(static_cast<std::uint32_t>(at.value >> 16));
    return it == segments.end() ? nullptr : it->second;
}

Location SegmentStore::Impl::location(const Segment& s, std::uint32_t page) const {
    return {.tier = Tier::kSsd, .value = std::uint64_t{s.slot} << 16 | page};
}

// Buffers of one size go around: fresh memory would be faulted in page by page each time.
io::AlignedBuffer SegmentStore::Impl::take_buffer(std::size_t bytes) {
    const auto fits =
        std::ranges::find_if(buffers, [&](const auto& b) { return b.size() >= bytes; });
    if (fits == buffers.end()) return io::AlignedBuffer(std::max<std::size_t>(bytes, kPage));
    io::AlignedBuffer out = std::move(*fits);
    *fits = std::move(buffers.back());
    buffers.pop_back();
    return out;
}
void SegmentStore::Impl::give_buffer(io::AlignedBuffer buffer) {
    constexpr std::size_t kKept = 64;
    if (buffers.size() < kKept) buffers.push_back(std::move(buffer));
}

void SegmentStore::Impl::set_writable(bool on) {
    if (writable == on) return;
    writable = on;
    if (listener != nullptr) listener->on_writable(on);
}

void SegmentStore::Impl::leave() {
    if (--busy > 0) return;
    for (const auto& w : std::exchange(idle, {})) w->wake_later(io::Wake::kEvent, w);
}

ByteCount SegmentStore::Impl::used_bytes() const {
    ByteCount sum = 0;
    for (const auto& [slot, s] : segments) sum += s->file_bytes;
    return sum;
}

SegmentStore::SegmentStore(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
SegmentStore::~SegmentStore() {
    impl_->listener = nullptr;
    impl_->closed = true;
    impl_->superblock.reset();
}

io::Task<Result<std::unique_ptr<SegmentStore>>> SegmentStore::open(io::Loop& loop, io::Disk& disk,
                                                                   StoreOptions options) {
    const auto impl = std::make_shared<Impl>(loop, disk, bounded(std::move(options)));
    CO_TRY_VOID(co_await impl->start());
    co_return std::unique_ptr<SegmentStore>(new SegmentStore(impl));
}

void SegmentStore::set_layer_map(const model::Namespace& ns, std::vector<RecordSlice> slices) {
    CHECK(slices.size() <= kMaxSlices);
    impl_->layer_maps[ns.digest] = std::move(slices);
}

void SegmentStore::set_listener(SsdListener* listener) { impl_->listener = listener; }

io::Task<Result<Location>> SegmentStore::append(RecordInfo info,
                                                std::span<const std::uint8_t> payload) {
    const auto impl = impl_;
    CO_TRY(const auto item, impl->enqueue(info, payload, true));
    if (!item->result) co_await item->waiter.wait();
    co_return std::move(*item->result);
}

io::Task<Result<RecordInfo>> SegmentStore::read(Location location, ObjectKey expected,
                                                std::span<std::uint8_t> into) {
    const auto impl = impl_;
    const Busy busy(impl);
    const auto s = impl->segment_at(location);
    if (!s) co_return err(Code::kNotFound, "no such segment");
    const auto page = static_cast<std::uint32_t>(location.value & 0xffff);
    co_return co_await impl->read_record(s, page, into.size() >= kPagedFrom, 0, into, expected);
}

void SegmentStore::touch(Location location, WallTime now) {
    const auto s = impl_->segment_at(location);
    if (!s || now.seconds() < static_cast<std::int64_t>(s->final_quarter_s())) return;
    set_bit(s->hits, static_cast<std::uint32_t>(location.value & 0xffff), s->head.capacity / kPage);
    impl_->hits_changed = true;
}

io::Task<void> SegmentStore::tick(WallTime now) {
    const auto impl = impl_;
    const Busy busy(impl);
    co_await impl->tick(now);
}

io::Task<void> SegmentStore::quiesce() {
    const auto impl = impl_;
    while (impl->busy > 0) {
        const auto waiter = std::make_shared<io::Waiter>(impl->loop);
        impl->idle.push_back(waiter);
        co_await waiter->wait();
    }
}

io::Task<void> SegmentStore::close() {
    impl_->closed = true;
    const auto open = impl_->open;
    for (const auto& s : open) impl_->close_segment(s);
    co_await quiesce();
    if (impl_->hits_changed) static_cast<void>(co_await impl_->write_notes());
}

SsdStats SegmentStore::stats() const {
    SsdStats s = impl_->counts;
    s.used_bytes = impl_->used_bytes();
    for (const auto& [slot, segment] : impl_->segments) s.records += segment->records;
    return s;
}

}  // namespace nereid::kv::ssd
