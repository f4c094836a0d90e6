// The way back: reads that believe nothing, and the restart.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "kv/ssd/store_impl.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv::ssd {

namespace {

constexpr std::size_t kTailBytes =
    16 << 10;  // read at a restart: trailer and the body of up to 255 records
constexpr std::size_t kScanBytes = 256 << 10;  // steps through a segment without footer
// Segments on their way at a restart. Of large blocks a segment has few records, and what a thread
// and a wake-up cost is shared by more of them; of small ones a footer takes 3 MB.
constexpr std::size_t kSmallLoadsInFlight = 32;
constexpr std::size_t kSmallLoad = 4096;  // records

RecordInfo info_of(const RecordHeader& h) {
    return {.ns = h.ns,
            .key = h.key,
            .kind = static_cast<ObjectKind>(h.kind),
            .block = h.depth,
            .length = h.payload_bytes,
            .payload_crc = h.payload_crc,
            .expiry = hour_of(h.expires_s),
            .ttl = std::chrono::seconds(h.ttl_s)};
}

std::string_view view(std::span<const char> s) { return {s.data(), s.size()}; }

// A buffer of the pool while it is in use.
class Borrowed {
  public:
    Borrowed(std::shared_ptr<SegmentStore::Impl> impl, std::size_t bytes)
        : impl_(std::move(impl)), buffer_(impl_->take_buffer(bytes)) {}
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ~Borrowed() { impl_->give_buffer(std::move(buffer_)); }
    std::span<char> first(std::size_t n) { return buffer_.first(n); }

  private:
    std::shared_ptr<SegmentStore::Impl> impl_;
    io::AlignedBuffer buffer_;
};

}  // namespace

// `expected` absent: whatever lies there, for scrubbing and copying forward.
io::Task<Result<RecordInfo>> SegmentStore::Impl::read_record(SegmentPtr s, std::uint32_t page,
                                                             bool paged, std::size_t slices,
                                                             std::span<std::uint8_t> into,
                                                             std::optional<ObjectKey> expected) {
    if (into.empty() || into.size() > kMaxPayloadBytes)
        co_return err(Code::kInvalidArgument, "a record of an impossible length");
    if (paged && reinterpret_cast<std::uintptr_t>(into.data()) % kIoAlignment != 0)
        co_return err(Code::kInvalidArgument, "direct I/O into unaligned memory");
    const auto file = co_await file_of(s);
    if (!file.ok()) {
        if (file.code() == Code::kNotFound || s->state == Segment::State::kGone)
            co_return err(Code::kNotFound, "the segment has gone");
        ++counts.io_errors;
        co_return file.error();
    }
    const std::size_t own = paged ? kPage : record_bytes(false, slices, into.size());
    Borrowed buffer(shared_from_this(), own);
    std::vector<std::span<char>> pieces{buffer.first(own)};
    if (paged) {
        pieces.emplace_back(reinterpret_cast<char*>(into.data()), round_to_page(into.size()));
    }
    const std::size_t wanted = own + (paged ? round_to_page(into.size()) : 0);
    const auto n = co_await (*file)->read_pieces(std::move(pieces), std::uint64_t{page} * kPage);
    if (!n.ok()) {
        ++counts.io_errors;
        co_return n.error();
    }
    counts.read_bytes += *n;
    const auto corrupt = [&](std::string_view what) {
        ++counts.corrupt;
        return err(Code::kCorrupt, fmt::format("{} page {}: {}", s->path, page, what));
    };
    if (*n < own) co_return corrupt("the file ends before the record");
    const std::string_view bytes = view(buffer.first(own));
    const auto r = decode_record_header(bytes);
    if (!r.ok()) co_return corrupt(r.error().message);
    if (r->header.segment != s->head.segment || r->header.page != page)
        co_return corrupt("a record of another place");
    const RecordInfo info = info_of(r->header);
    if (expected && info.object() != *expected)
        co_return err(Code::kNotFound, "another record is there");
    if (info.length != into.size() || r->header.paged != paged)
        co_return err(Code::kInvalidArgument, "the record has another length");
    if (*n < wanted) co_return corrupt("the file ends inside the record");
    std::uint32_t crc = 0;
    if (paged) {
        crc = crc32c(into);
    } else {
        if (r->payload_offset + info.length > own) co_return corrupt("a header longer than meant");
        crc =
            copy_crc32c(into, bytes_of(buffer.first(own).subspan(r->payload_offset, info.length)));
    }
    if (crc != info.payload_crc) co_return corrupt("the payload fails its CRC");
    co_return info;
}

// ---------------------------------------------------------------- restart

io::Task<Result<ScanBatch>> SegmentStore::scan_next() {
    const auto impl = impl_;
    const Busy busy(impl);
    while (impl->loads.size() < impl->loads_wanted && impl->scan_at < impl->scan_ids.size()) {
        const auto load = std::make_shared<Load>(impl->loop);
        load->id = impl->scan_ids[impl->scan_at++];
        impl->loads.push_back(load);
        impl->loop.spawn(Impl::load(impl, load));
    }
    if (impl->loads.empty()) {
        ScanBatch end;
        end.done = true;
        co_return end;
    }
    const auto first = impl->loads.front();
    if (!first->done) co_await first->waiter.wait();
    impl->loads.pop_front();
    impl->loads_wanted =
        first->batch.entries.size() < kSmallLoad ? kSmallLoadsInFlight : kLoadsInFlight;
    first->batch.done = impl->loads.empty() && impl->scan_at == impl->scan_ids.size();
    co_return std::move(first->batch);
}

io::Task<void> SegmentStore::Impl::load(std::shared_ptr<Impl> self, std::shared_ptr<Load> out) {
    const Busy busy(self);
    const auto s = std::make_shared<Segment>();
    s->head.segment = out->id;
    s->path = self->options.folder + "/" + segment_name(out->id);
    s->state = Segment::State::kSealed;
    const auto finish = [&] {
        out->done = true;
        out->waiter.wake_later(io::Wake::kEvent, out);
    };
    auto file = co_await self->disk.open(s->path, io::OpenMode::kReadWrite);
    if (!file.ok()) {
        ++self->counts.io_errors;
        finish();
        co_return;
    }
    s->file = std::move(*file);
    const std::uint64_t errors = self->counts.io_errors;
    const auto size = co_await s->file->size();
    bool ours = size.ok() && *size >= 2 * kPage;
    if (ours && !co_await self->load_footer(s, *size, out->batch))
        ours = co_await self->load_records(s, *size, out->batch);
    if (!ours) {
        // Of another folder it stays where it is, and what could not be read this time; what makes
        // no sense goes.
        s->file.reset();
        const bool readable = size.ok() && self->counts.io_errors == errors;
        if (readable && (s->head.folder == self->folder || s->head.folder == FolderId{}))
            static_cast<void>(co_await self->disk.remove(s->path));
        out->batch.entries.clear();
        finish();
        co_return;
    }
    finish();
}

// True: the trailer was good, and what it says has been taken over (or has expired).
io::Task<bool> SegmentStore::Impl::load_footer(SegmentPtr s, std::uint64_t size, ScanBatch& out) {
    if (size % kPage != 0) co_return false;
    const std::size_t tail = std::min<std::uint64_t>(size, kTailBytes);
    Borrowed buffer(shared_from_this(), tail);
    const auto n = co_await s->file->read_at(buffer.first(tail), size - tail);
    if (!n.ok() || *n != tail) {
        ++counts.io_errors;
        co_return false;
    }
    counts.read_bytes += tail;
    const auto t = decode_trailer(view(buffer.first(tail)).substr(tail - kPage), size);
    if (!t.ok() || t->folder != folder || t->segment != s->head.segment) co_return false;
    const std::uint64_t body_at = std::uint64_t{t->body_page} * kPage;
    std::string_view body;
    io::AlignedBuffer more;
    if (body_at >= size - tail) {
        body = view(buffer.first(tail)).substr(body_at - (size - tail));
    } else {
        more = io::AlignedBuffer(round_to_page(t->body_bytes()));
        const auto m = co_await s->file->read_at(more.span(), body_at);
        if (!m.ok() || *m < t->body_bytes()) co_return false;
        counts.read_bytes += *m;
        body = view(more.span());
    }
    const auto footer = FooterView::open(*t, body);
    if (!footer.ok()) co_return false;
    s->head = {.folder = folder,
               .segment = t->segment,
               .capacity = std::clamp<std::uint64_t>(size, kMinSegmentBytes, kMaxSegmentBytes),
               .created_s = t->created_s,
               .expires_s = t->expires_s,
               .ttl_s = t->ttl_s};
    s->file_bytes = size;
    s->records = footer->size();
    if (!admit(s)) co_return true;
    out.entries.reserve(footer->size());
    std::vector<model::Namespace> namespaces;
    for (std::size_t i = 0; i < footer->namespaces(); ++i) namespaces.push_back(footer->ns(i));
    for (std::size_t i = 0; i < footer->size(); ++i) {
        const FooterEntry e = footer->entry(i);
        out.entries.push_back(
            {.key = object_key(namespaces[e.ns], e.key, static_cast<ObjectKind>(e.kind)),
             .location = location(*s, e.page),
             .expiry = hour_of(e.expires_s),
             .generation = static_cast<std::uint16_t>(s->head.segment)});
    }
    co_return true;
}

// A segment that its node did not seal: record by record up to the first invalid one. Then it is
// sealed, so that the next restart does not walk again.
io::Task<bool> SegmentStore::Impl::load_records(SegmentPtr s, std::uint64_t size, ScanBatch& out) {
    io::AlignedBuffer buffer(kScanBytes);
    std::uint64_t from = 0;  // of the buffer's content in the file
    std::size_t have = 0;
    const auto at = [&](std::uint64_t offset) -> io::Task<bool> {
        if (offset >= from && offset + kPage <= from + have) co_return true;
        from = offset;
        const auto n = co_await s->file->read_at(buffer.span(), offset);
        if (!n.ok()) ++counts.io_errors;
        have = n.ok() ? *n : 0;
        counts.read_bytes += have;
        co_return have >= kPage;
    };
    if (!co_await at(0)) co_return false;
    const auto head = decode_head(view(buffer.first(kPage)));
    if (!head.ok()) co_return false;
    const bool right = head->segment == s->head.segment;
    s->head = *head;
    if (!right || head->folder != folder) co_return false;
    std::uint64_t page = 1;
    while (page * kPage + kPage <= size) {
        if (!co_await at(page * kPage)) break;
        const char* here = buffer.data() + (page * kPage - from);
        const auto r = decode_record_header({here, kPage});
        if (!r.ok() || r->header.segment != s->head.segment || r->header.page != page) {
            if (std::any_of(here, here + kPage, [](char c) { return c != 0; })) ++counts.torn;
            break;
        }
        const std::uint64_t pages =
            record_bytes(r->header.paged, r->slices, r->header.payload_bytes) / kPage;
        if ((page + pages) * kPage > size || !s->footer.add(r->header)) {
            ++counts.torn;
            break;
        }
        page += pages;
    }
    s->next_page = static_cast<std::uint32_t>(page);
    s->records = s->footer.entries();
    s->file_bytes = size;
    if (s->records == 0) co_return false;
    if (!admit(s)) co_return true;
    for (const FooterEntry& e : s->footer.list()) {
        out.entries.push_back({.key = object_key(s->footer.namespaces()[e.ns], e.key,
                                                 static_cast<ObjectKind>(e.kind)),
                               .location = location(*s, e.page),
                               .expiry = hour_of(e.expires_s),
                               .generation = static_cast<std::uint16_t>(s->head.segment)});
    }
    if ((co_await write_footer(s)).ok()) s->footer = {};
    co_return true;
}

// Gives a segment of an earlier run its slot. False: its time is over, the next tick removes it.
bool SegmentStore::Impl::admit(const SegmentPtr& s) {
    s->slot = next_slot++;
    segments.emplace(s->slot, s);
    keep_open(s);
    if (auto hits = notes.hits.extract(s->head.segment)) {
        s->hits = std::move(hits.mapped());
        s->hits.resize((s->head.capacity / kPage + 63) / 64);
    }
    return s->head.expires_s > loop.wall_now().seconds();
}

io::Task<Result<std::vector<Listed>>> SegmentStore::Impl::list(SegmentPtr s) {
    std::vector<Listed> out;
    if (s->footer.entries() > 0) {
        for (const FooterEntry& e : s->footer.list())
            out.push_back({e, s->footer.namespaces()[e.ns]});
        co_return out;
    }
    CO_TRY(const auto file, co_await file_of(s));
    CO_TRY(const auto size, co_await file->size());
    if (size < 2 * kPage || size % kPage != 0)
        co_return err(Code::kCorrupt, s->path + ": no footer");
    io::AlignedBuffer page(kPage);
    CO_TRY(const auto n, co_await file->read_at(page.span(), size - kPage));
    CO_TRY(const auto t, decode_trailer({page.data(), n}, size));
    if (t.folder != folder || t.segment != s->head.segment)
        co_return err(Code::kCorrupt, s->path + ": another segment's footer");
    io::AlignedBuffer body(round_to_page(t.body_bytes()) + kPage);
    CO_TRY(const auto m, co_await file->read_at(body.span(), std::uint64_t{t.body_page} * kPage));
    CO_TRY(const auto footer, FooterView::open(t, {body.data(), m}));
    counts.read_bytes += n + m;
    for (std::size_t i = 0; i < footer.size(); ++i) {
        const FooterEntry e = footer.entry(i);
        out.push_back({e, footer.ns(e.ns)});
    }
    co_return out;
}

}  // namespace nereid::kv::ssd
