// The folder's notes: read at the start, written as a whole, atomically, when a namespace is
// cleared and now and then for the hits.
#include <algorithm>
#include <utility>

#include "kv/ssd/store_impl.h"

namespace nereid::kv::ssd {

namespace {

std::string notes_path(const StoreOptions& o) { return o.folder + "/notes"; }

}  // namespace

// Notes that are damaged may have said that a namespace was cleared: then nothing here may be
// found, and all records go. It is a cache.
io::Task<Result<void>> SegmentStore::Impl::read_notes() {
    auto file = co_await disk.open(notes_path(options), io::OpenMode::kRead);
    if (!file.ok() && file.code() == Code::kNotFound) co_return Result<void>{};
    if (!file.ok()) co_return file.error();
    CO_TRY(const auto size, co_await (*file)->size());
    Result<Notes> found = err(Code::kCorrupt, "notes: too long");
    if (size <= kMaxNotesBytes) {
        io::AlignedBuffer buffer(std::max<std::uint64_t>(round_to_page(size), kPage));
        CO_TRY(const auto n, co_await (*file)->read_at(buffer.span(), 0));
        found = decode_notes({buffer.data(), n}, folder);
    }
    file->reset();
    if (found.ok()) {
        notes = std::move(*found);
        co_return Result<void>{};
    }
    ++counts.corrupt;
    for (const std::uint64_t id : std::exchange(scan_ids, {}))
        CO_TRY_VOID(co_await disk.remove(options.folder + "/" + segment_name(id)));
    co_return co_await disk.remove(notes_path(options));
}

// Returns when notes that were taken after the call are durable.
io::Task<Result<void>> SegmentStore::Impl::write_notes() {
    const auto self = shared_from_this();
    const Busy holding(self);
    while (writing_notes) co_await loop.sleep_for(1ms);
    writing_notes = true;
    const Result<void> r = co_await replace_notes();
    writing_notes = false;
    if (!r.ok()) ++counts.io_errors;
    co_return r;
}

io::Task<Result<void>> SegmentStore::Impl::replace_notes() {
    hits_changed = false;
    notes_written = loop.now();
    Notes now{.clears = notes.clears, .hits = {}};
    for (const auto& [slot, s] : segments) {
        if (s->state != Segment::State::kGone && !s->hits.empty())
            now.hits[s->head.segment] = s->hits;
    }
    // Of segments that a restart has not come to yet.
    for (const auto& [id, words] : notes.hits) now.hits.emplace(id, words);
    const std::string bytes = encode_notes(now, folder);
    io::AlignedBuffer buffer(bytes.size());
    std::ranges::copy(bytes, buffer.data());
    const std::string fresh = notes_path(options) + ".new";
    CO_TRY(auto file, co_await disk.open(fresh, io::OpenMode::kCreate));
    CO_TRY_VOID(co_await file->truncate(0));
    CO_TRY_VOID(co_await file->write_at(buffer.first(bytes.size()), 0));
    CO_TRY_VOID(co_await file->sync());
    file.reset();
    co_return co_await disk.rename(fresh, notes_path(options));
}

io::Task<Result<void>> SegmentStore::remember_clear(const model::Namespace& ns,
                                                    std::uint64_t clears) {
    const auto impl = impl_;
    auto& count = impl->notes.clears[ns.digest];
    count = std::max(count, clears);
    co_return co_await impl->write_notes();
}

const std::map<Digest256, std::uint64_t>& SegmentStore::clears() const {
    return impl_->notes.clears;
}

}  // namespace nereid::kv::ssd
