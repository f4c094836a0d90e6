// What goes: expiry by whole segment, copying forward within a budget, and scrubbing.
#include <algorithm>
#include <utility>

#include "kv/ssd/store_impl.h"

namespace nereid::kv::ssd {

namespace {

constexpr std::size_t kSegmentsPerTick = 64;

ScanEntry entry_of(const SegmentStore::Impl& impl, const Segment& s, const Listed& l) {
    return {.key = object_key(l.ns, l.entry.key, static_cast<ObjectKind>(l.entry.kind)),
            .location = impl.location(s, l.entry.page),
            .expiry = hour_of(l.entry.expires_s),
            .generation = static_cast<std::uint16_t>(s.head.segment)};
}

}  // namespace

// From here on the segment is not found any more; then the owner hears of it, then the file goes.
// Reads that run keep the file open and get what they asked for.
io::Task<void> SegmentStore::Impl::drop(SegmentPtr s, GoneCause cause) {
    if (std::exchange(s->state, Segment::State::kGone) == Segment::State::kGone) co_return;
    std::vector<ScanEntry> gone;
    if (s->records > 0) {
        const auto entries = co_await list(s);
        // A footer that cannot be read: the owner finds out read by read.
        if (entries.ok()) {
            for (const Listed& l : *entries) {
                if (!bit(s->moved, l.entry.page)) gone.push_back(entry_of(*this, *s, l));
            }
        } else if (entries.code() == Code::kCorrupt) {
            ++counts.corrupt;
        } else {
            ++counts.io_errors;
        }
    }
    segments.erase(s->slot);
    std::erase(opened, s);
    s->file.reset();
    if (listener != nullptr && !gone.empty()) listener->on_gone(gone, cause);
    if (const auto r = co_await disk.remove(s->path); !r.ok() && r.code() != Code::kNotFound)
        ++counts.io_errors;
}

// Blocks that were hit in the final quarter of their life get another one, head of a prefix first.
io::Task<void> SegmentStore::Impl::forward(SegmentPtr s, WallTime now) {
    if (s->hits.empty()) co_return;
    const auto hits = std::exchange(s->hits, {});
    const auto entries = co_await list(s);
    if (!entries.ok()) co_return;
    std::vector<Listed> chosen;
    for (const Listed& l : *entries) {
        if (bit(hits, l.entry.page) && !bit(s->moved, l.entry.page)) chosen.push_back(l);
    }
    std::ranges::sort(chosen, {},
                      [](const Listed& l) { return std::pair(l.entry.depth, l.entry.page); });
    const std::size_t pages = s->head.capacity / kPage;
    for (const Listed& l : chosen) {
        const FooterEntry& e = l.entry;
        const auto cost = static_cast<double>(record_bytes(e.paged, 0, e.payload_bytes));
        if (cost > budget || !writable || closed) {
            ++counts.budget_overruns;
            continue;  // a smaller one may still fit
        }
        budget -= cost;
        io::AlignedBuffer payload(e.payload_bytes);
        const std::span<std::uint8_t> into(reinterpret_cast<std::uint8_t*>(payload.data()),
                                           e.payload_bytes);
        const ObjectKey key = object_key(l.ns, e.key, static_cast<ObjectKind>(e.kind));
        auto info = co_await read_record(s, e.page, e.paged, 0, into, key);
        if (!info.ok()) continue;  // counted there; it goes with its segment
        info->expiry = expiry_hour(now, info->ttl);
        const auto item = enqueue(*info, into, false);
        if (!item.ok()) continue;
        (*item)->own = std::move(payload);  // who awaits the tick may go, the write does not
        if (!(*item)->result) co_await (*item)->waiter.wait();
        if (!(*item)->result->ok()) continue;
        counts.forwarded_bytes += e.payload_bytes;
        counts.payload_bytes -= e.payload_bytes;  // not the owner's
        appended_since -= std::min<ByteCount>(appended_since, e.payload_bytes);
        set_bit(s->moved, e.page, pages);
        if (listener != nullptr)
            listener->on_moved(key, location(*s, e.page), **(*item)->result, info->expiry);
    }
}

// The budget grows with what is appended, or with what a full turn of the kept bytes' life would
// write, whichever is more: a node that is only read from keeps its hot blocks too.
void SegmentStore::Impl::accrue(WallTime now) {
    const double seconds = to_seconds(now.since_epoch - budget_at.since_epoch);
    budget_at = now;
    double turn = 0;
    for (const auto& [slot, s] : segments) {
        if (s->state == Segment::State::kSealed && s->head.ttl_s > 0)
            turn += static_cast<double>(s->file_bytes) / s->head.ttl_s * std::max(seconds, 0.0);
    }
    budget += options.forward_share *
              std::max(static_cast<double>(std::exchange(appended_since, 0)), turn);
    budget = std::min(budget, options.forward_share * static_cast<double>(options.capacity_bytes));
}

io::Task<void> SegmentStore::Impl::sync_open() {
    if (loop.now() - last_sync < options.sync_every) co_return;
    last_sync = loop.now();
    const auto list_of_open = open;
    for (const auto& s : list_of_open) {
        if (s->state != Segment::State::kOpen || !std::exchange(s->dirty, false)) continue;
        const auto file = s->file;
        if (const auto r = co_await file->sync(); !r.ok()) ++counts.io_errors;
    }
}

io::Task<void> SegmentStore::Impl::tick(WallTime now) {
    if (std::exchange(ticking, true)) co_return;
    struct Reset {
        bool& flag;
        ~Reset() { flag = false; }
    };
    const Reset reset{ticking};
    if (!writable && loop.now() >= retry_at && !closed) {
        failures = 0;
        set_writable(true);
    }
    accrue(now);
    const auto list_of_open = open;
    for (const auto& s : list_of_open) {
        if (loop.now() - s->opened >= options.seal_after || s->head.expires_s <= now.seconds())
            close_segment(s);
    }
    co_await sync_open();
    if (hits_changed && loop.now() - notes_written >= options.notes_every)
        static_cast<void>(co_await write_notes());
    std::vector<SegmentPtr> due;
    const std::int64_t lead = options.forward_lead.count() / 1'000'000'000;
    for (const auto& [slot, s] : segments) {
        if (s->state == Segment::State::kSealed && s->head.expires_s <= now.seconds() + lead)
            due.push_back(s);
    }
    std::ranges::sort(due, {},
                      [](const SegmentPtr& s) { return std::pair(s->head.expires_s, s->slot); });
    if (due.size() > kSegmentsPerTick) due.resize(kSegmentsPerTick);
    for (const auto& s : due) {
        if (s->state != Segment::State::kSealed) continue;
        co_await forward(s, now);
        if (s->head.expires_s <= now.seconds()) co_await drop(s, GoneCause::kExpired);
    }
}

io::Task<ScrubReport> SegmentStore::scrub_next() {
    const auto impl = impl_;
    const Busy busy(impl);
    ScrubReport report;
    SegmentPtr s;
    for (const auto& [slot, candidate] : impl->segments) {
        if (slot > impl->scrub_from && candidate->state == Segment::State::kSealed) {
            s = candidate;
            break;
        }
    }
    if (!s) {
        impl->scrub_from = 0;
        report.wrapped = true;
        co_return report;
    }
    impl->scrub_from = s->slot;
    const auto entries = co_await impl->list(s);
    if (!entries.ok()) {
        ++report.corrupt;
        co_return report;
    }
    std::vector<ScanEntry> bad;
    for (const Listed& l : *entries) {
        if (s->state == Segment::State::kGone) break;
        if (bit(s->moved, l.entry.page)) continue;
        io::AlignedBuffer payload(l.entry.payload_bytes);
        const ScanEntry e = entry_of(*impl, *s, l);
        const auto r = co_await impl->read_record(
            s, l.entry.page, l.entry.paged, 0,
            {reinterpret_cast<std::uint8_t*>(payload.data()), l.entry.payload_bytes}, e.key);
        ++report.records;
        if (r.ok()) continue;
        ++report.corrupt;
        bad.push_back(e);
    }
    if (impl->listener != nullptr && !bad.empty())
        impl->listener->on_gone(bad, GoneCause::kCorrupt);
    co_return report;
}

}  // namespace nereid::kv::ssd
