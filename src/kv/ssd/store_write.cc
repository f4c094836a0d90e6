// The way to the device: records gather in open segments, leave in batches, segments are sealed.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "kv/ssd/store_impl.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv::ssd {

namespace {

// Of an unfinished segment: what would be lost by one more failure is small, but a device that
// refuses three writes in a row refuses the fourth.
constexpr std::uint32_t kFailuresToStop = 3;

}  // namespace

Result<ItemPtr> SegmentStore::Impl::enqueue(const RecordInfo& info,
                                            std::span<const std::uint8_t> payload, bool bounded) {
    if (closed) return err(Code::kUnavailable, "the SSD tier is closing");
    if (payload.empty() || payload.size() != info.length || payload.size() > kMaxPayloadBytes)
        return err(Code::kInvalidArgument, "a record of an impossible length");
    if (!writable) return err(refusal, "the SSD tier takes no records at the moment");
    if (bounded && queued > 0 && queued + payload.size() > options.queue_bytes)
        return err(Code::kOverloaded, "the SSD tier's queue is full");
    const auto item = std::make_shared<Item>(loop);
    item->info = info;
    item->payload = payload;
    RecordHeader& h = item->header;
    h.paged = payload.size() >= kPagedFrom;
    if (h.paged) {
        CHECK(reinterpret_cast<std::uintptr_t>(payload.data()) % kIoAlignment == 0);
        if (const auto it = layer_maps.find(info.ns.digest); it != layer_maps.end()) {
            std::uint64_t sum = 0;
            for (const RecordSlice& s : it->second) sum += s.length;
            if (sum == payload.size()) item->slices = it->second;
        }
    }
    const WallTime now = loop.wall_now();
    h.ns = info.ns;
    h.key = info.key;
    h.kind = static_cast<std::uint8_t>(info.kind);
    h.ttl_s = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(info.ttl.count() / 1'000'000'000, 0, 0xffffffff));
    h.depth = info.block;
    h.payload_bytes = info.length;
    h.payload_crc = info.payload_crc;
    h.expires_s = absolute_s(info.expiry, now);
    h.generation = ++generation;
    const std::uint64_t bytes = record_bytes(h.paged, item->slices.size(), payload.size());
    if (bytes + 4 * kPage > options.segment_bytes)
        return err(Code::kInvalidArgument, "a record longer than a segment");
    const auto s = segment_for(h.expires_s, h.ttl_s, bytes);
    h.segment = s->head.segment;
    h.page = s->next_page;
    s->next_page += static_cast<std::uint32_t>(bytes / kPage);
    ++s->assigned;
    s->pending.push_back(item);
    queued += payload.size();
    ++busy;  // until it is answered
    pump_later(s);
    return item;
}

// The open segment of that hour and life with room for `bytes` and its footer, a new one if need
// be.
SegmentPtr SegmentStore::Impl::segment_for(std::uint32_t expires_s, std::uint32_t ttl_s,
                                           std::uint64_t bytes) {
    const auto it = std::ranges::find_if(open, [&](const SegmentPtr& s) {
        return s->head.expires_s == expires_s && s->head.ttl_s == ttl_s;
    });
    if (it != open.end()) {
        const SegmentPtr s = *it;
        const std::size_t unwritten = s->assigned + 1 - s->footer.entries();
        if (s->next_page * kPage + bytes + s->footer.bytes(unwritten) <= s->head.capacity) return s;
        close_segment(s);
    }
    if (open.size() >= options.open_segments) {
        close_segment(
            *std::ranges::min_element(open, {}, [](const SegmentPtr& s) { return s->opened; }));
    }
    const auto s = std::make_shared<Segment>();
    s->head = {.folder = folder,
               .segment = next_id++,
               .capacity = options.segment_bytes,
               .created_s = static_cast<std::uint32_t>(loop.wall_now().seconds()),
               .expires_s = expires_s,
               .ttl_s = ttl_s};
    s->slot = next_slot++;
    s->path = options.folder + "/" + segment_name(s->head.segment);
    s->opened = loop.now();
    s->file_bytes = s->head.capacity;
    open.push_back(s);
    segments.emplace(s->slot, s);
    loop.spawn(open_segment(shared_from_this(), s));
    return s;
}

void SegmentStore::Impl::close_segment(const SegmentPtr& s) {
    std::erase(open, s);
    s->closing = true;
    seal_if_drained(s);
}

io::Task<void> SegmentStore::Impl::open_segment(std::shared_ptr<Impl> self, SegmentPtr s) {
    const Busy busy(self);
    co_await self->loop.yield();  // the listener is not called inside an append
    co_await self->make_room();
    Result<void> r = co_await self->prepare_file(s);
    // Others fill the disk too.
    while (!r.ok() && r.code() == Code::kNoSpace && co_await self->drop_earliest())
        r = co_await self->prepare_file(s);
    if (r.ok()) {
        s->state = Segment::State::kOpen;
        self->keep_open(s);
        self->pump(s);
        self->seal_if_drained(s);
        co_return;
    }
    std::erase(self->open, s);
    self->segments.erase(s->slot);
    s->state = Segment::State::kGone;
    if (r.code() != Code::kNoSpace) ++self->counts.io_errors;
    self->refusal = r.code();
    self->retry_at = self->loop.now() + self->options.retry_after;
    self->set_writable(false);
    std::vector<ItemPtr> items(s->pending.begin(), s->pending.end());
    s->pending.clear();
    self->answer(*s, items, r);
    s->file.reset();
    static_cast<void>(co_await self->disk.remove(s->path));
}

io::Task<Result<void>> SegmentStore::Impl::prepare_file(SegmentPtr s) {
    if (!s->file) {
        CO_TRY(auto file, co_await disk.open(s->path, io::OpenMode::kCreateExclusive));
        s->file = std::move(file);
    }
    CO_TRY_VOID(co_await s->file->allocate(s->head.capacity));
    io::AlignedBuffer page(kPage);
    encode_head(s->head, std::span<char, kPage>(page.data(), kPage));
    CO_TRY_VOID(co_await s->file->write_at(page.span(), 0));
    counts.written_bytes += kPage;
    co_return Result<void>{};
}

io::Task<void> SegmentStore::Impl::make_room() {
    while (used_bytes() > options.capacity_bytes && co_await drop_earliest()) {
    }
}

// The sealed segment of the earliest expiry; false when there is none.
io::Task<bool> SegmentStore::Impl::drop_earliest() {
    SegmentPtr first;
    for (const auto& [slot, s] : segments) {
        if (s->state == Segment::State::kSealed &&
            (!first || s->head.expires_s < first->head.expires_s))
            first = s;
    }
    if (!first) co_return false;
    co_await drop(first, GoneCause::kSpace);
    co_return true;
}

void SegmentStore::Impl::pump_later(const SegmentPtr& s) {
    if (std::exchange(s->pump_posted, true)) return;
    loop.post([weak = weak_from_this(), s] {
        s->pump_posted = false;
        if (const auto self = weak.lock()) self->pump(s);
    });
}

void SegmentStore::Impl::pump(const SegmentPtr& s) {
    while (s->state == Segment::State::kOpen && s->writing < options.writes_in_flight &&
           !s->pending.empty()) {
        std::vector<ItemPtr> items;
        std::uint64_t bytes = 0;
        std::size_t pieces = 0;
        while (!s->pending.empty() && items.size() < 256 && pieces + 2 <= io::File::kMaxPieces) {
            const Item& item = *s->pending.front();
            bytes += item.payload.size();
            if (!items.empty() && bytes > options.batch_bytes) break;
            pieces += 2;
            items.push_back(std::move(s->pending.front()));
            s->pending.pop_front();
        }
        ++s->writing;
        loop.spawn(write_batch(shared_from_this(), s, std::move(items)));
    }
}

namespace {

// Lays records out: headers and small payloads in `staging`, large payloads where they are.
class Layout {
  public:
    explicit Layout(std::span<char> staging) : staging_(staging) {}
    // False: the payload is not what its CRC says.
    bool add(const Item& item) {
        const RecordHeader& h = item.header;
        const std::size_t offset = payload_offset(h.paged, item.slices.size());
        const std::size_t bytes =
            h.paged ? kPage : record_bytes(false, item.slices.size(), h.payload_bytes);
        const std::span<char> own = staging_.subspan(used_, bytes);
        used_ += bytes;
        encode_record_header(h, item.slices, own);
        bool intact = true;
        if (h.paged) {
            std::memset(own.data() + header_bytes(item.slices.size()), 0,
                        kPage - header_bytes(item.slices.size()));
            add_piece(own);
            const auto* payload = reinterpret_cast<const char*>(item.payload.data());
            // Up to the end of its last page, which is the owner's as well (kIoAlignment).
            add_piece({payload, round_to_page(h.payload_bytes)});
        } else {
            auto* to = reinterpret_cast<std::uint8_t*>(own.data() + offset);
            intact = copy_crc32c({to, h.payload_bytes}, item.payload) == h.payload_crc;
            std::memset(to + h.payload_bytes, 0, bytes - offset - h.payload_bytes);
            add_piece(own);
        }
        return intact;
    }
    std::vector<std::span<const char>> take() { return std::move(pieces_); }

  private:
    void add_piece(std::span<const char> p) {
        if (!pieces_.empty() && pieces_.back().data() + pieces_.back().size() == p.data())
            pieces_.back() = {pieces_.back().data(), pieces_.back().size() + p.size()};
        else
            pieces_.push_back(p);
    }
    std::span<char> staging_;
    std::size_t used_ = 0;
    std::vector<std::span<const char>> pieces_;
};

}  // namespace

io::Task<void> SegmentStore::Impl::write_batch(std::shared_ptr<Impl> self, SegmentPtr s,
                                               std::vector<ItemPtr> items) {
    const Busy busy(self);
    std::size_t staging = 0;
    std::uint64_t bytes = 0;
    for (const auto& item : items) {
        const std::uint64_t record =
            record_bytes(item->header.paged, item->slices.size(), item->header.payload_bytes);
        staging += item->header.paged ? kPage : record;
        bytes += record;
    }
    io::AlignedBuffer buffer = self->take_buffer(staging);
    Layout layout(buffer.span());
    std::vector<ItemPtr> damaged;
    for (const auto& item : items) {
        if (!layout.add(*item)) damaged.push_back(item);
    }
    const std::uint64_t offset = std::uint64_t{items.front()->header.page} * kPage;
    const auto written = co_await s->file->write_pieces(layout.take(), offset);
    self->give_buffer(std::move(buffer));
    self->counts.written_bytes += bytes;
    s->dirty = true;
    --s->writing;
    if (written.ok()) {
        self->failures = 0;
    } else {
        if (written.code() != Code::kNoSpace) ++self->counts.io_errors;
        // What lies behind may still be good, but no more goes into this one.
        self->close_segment(s);
        if (written.code() == Code::kNoSpace || ++self->failures >= kFailuresToStop) {
            self->refusal = written.code();
            self->retry_at = self->loop.now() + self->options.retry_after;
            self->set_writable(false);
        }
    }
    // Written, but not what its owner meant: the record would fail its CRC for ever.
    for (const auto& item : damaged) {
        ++self->counts.corrupt;
        std::erase(items, item);
        self->answer(*s, {item}, err(Code::kCorrupt, "the payload changed before it was written"));
    }
    self->answer(*s, items, written);
    self->pump(s);
    self->seal_if_drained(s);
}

void SegmentStore::Impl::answer(Segment& s, const std::vector<ItemPtr>& items,
                                const Result<void>& written) {
    for (const auto& item : items) {
        queued -= item->payload.size();
        if (written.ok() && s.footer.add(item->header)) {
            ++s.records;
            counts.payload_bytes += item->payload.size();
            appended_since += item->payload.size();
            item->result = location(s, item->header.page);
        } else {
            item->result = written.ok() ? Error{Code::kNoSpace, "the segment's footer is full"}
                                        : written.error();
        }
        item->waiter.wake_later(io::Wake::kEvent, item);
        leave();
    }
}

void SegmentStore::Impl::seal_if_drained(const SegmentPtr& s) {
    if (s->state != Segment::State::kOpen || !s->closing || s->writing > 0 || !s->pending.empty())
        return;
    s->state = Segment::State::kSealing;
    loop.spawn(seal(shared_from_this(), s));
}

io::Task<void> SegmentStore::Impl::seal(std::shared_ptr<Impl> self, SegmentPtr s) {
    const Busy busy(self);
    co_await self->loop.yield();
    if (s->records == 0) {
        s->state = Segment::State::kSealed;
        co_await self->drop(s, GoneCause::kExpired);
        co_return;
    }
    const auto r = co_await self->write_footer(s);
    if (!r.ok() && r.code() != Code::kNoSpace) ++self->counts.io_errors;
    if (r.ok()) s->footer = {};  // otherwise it is kept: a restart scans the records
    s->state = Segment::State::kSealed;
    s->dirty = false;
}

// Behind the records, which are durable before it says so; then the rest of the file is given back.
io::Task<Result<void>> SegmentStore::Impl::write_footer(SegmentPtr s) {
    CO_TRY(const auto file, co_await file_of(s));
    CO_TRY_VOID(co_await file->sync());
    std::string bytes;
    s->footer.encode(s->head, s->next_page, bytes);
    io::AlignedBuffer buffer(bytes.size());
    std::ranges::copy(bytes, buffer.data());
    const std::uint64_t at = std::uint64_t{s->next_page} * kPage;
    CO_TRY_VOID(co_await file->write_at(buffer.span(), at));
    counts.written_bytes += bytes.size();
    CO_TRY_VOID(co_await file->sync());
    CO_TRY_VOID(co_await file->truncate(at + bytes.size()));
    CO_TRY_VOID(co_await file->sync());
    s->file_bytes = at + bytes.size();
    co_return Result<void>{};
}

}  // namespace nereid::kv::ssd
