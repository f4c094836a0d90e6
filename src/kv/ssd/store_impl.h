// The state of a SegmentStore, shared by the files that implement it. Internal to kv/ssd.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/waiter.h"
#include "kv/ssd/notes.h"
#include "kv/ssd/store.h"

namespace nereid::kv::ssd {

using FilePtr = std::shared_ptr<io::File>;

// A record on its way to the device. Kept by its batch, and by the coroutine that waits for it.
struct Item {
    explicit Item(io::Loop& loop) : waiter(loop) {}
    RecordInfo info;
    std::span<const std::uint8_t> payload;
    io::AlignedBuffer own;  // holds the payload when no owner does
    RecordHeader header;
    std::vector<RecordSlice> slices;
    std::optional<Result<Location>> result;
    io::Waiter waiter;
};
using ItemPtr = std::shared_ptr<Item>;

struct Segment {
    enum class State : std::uint8_t {
        kOpening,  // takes records, writes none yet
        kOpen,
        kSealing,
        kSealed,
        kGone,
    };
    SegmentHead head;
    std::uint32_t slot = 0;
    State state = State::kOpening;
    std::uint64_t file_bytes = 0;  // taken on the device
    std::uint64_t records = 0;
    FilePtr file;
    bool used = false;                // since the clock hand passed (open files)
    std::vector<std::uint64_t> hits;  // one bit per page, empty until the first
    std::vector<std::uint64_t> moved;

    // Of an open one; a footer that could not be written stays here.
    std::uint32_t next_page = 1;
    std::size_t assigned = 0;  // records that have a place, written or not
    FooterBuilder footer;
    std::deque<ItemPtr> pending;
    std::uint32_t writing = 0;
    bool pump_posted = false;
    bool closing = false;  // full, old or failed: seals when nothing is in flight
    bool dirty = false;
    TimePoint opened;

    std::string path;
    std::uint64_t final_quarter_s() const { return head.expires_s - head.ttl_s / 4; }
};
using SegmentPtr = std::shared_ptr<Segment>;

// An entry of a footer with its namespace.
struct Listed {
    FooterEntry entry;
    model::Namespace ns;
};

inline constexpr std::size_t kLoadsInFlight = 16;

struct Load {  // of one segment at a restart
    explicit Load(io::Loop& loop) : waiter(loop) {}
    std::uint64_t id = 0;
    bool done = false;
    ScanBatch batch;
    io::Waiter waiter;
};

struct SegmentStore::Impl : std::enable_shared_from_this<SegmentStore::Impl> {
    Impl(io::Loop& l, io::Disk& d, StoreOptions o) : loop(l), disk(d), options(std::move(o)) {}

    // store.cc
    io::Task<Result<void>> start();
    io::Task<Result<FilePtr>> file_of(SegmentPtr s);
    void keep_open(const SegmentPtr& s);
    SegmentPtr segment_at(Location location) const;
    Location location(const Segment& s, std::uint32_t page) const;
    io::AlignedBuffer take_buffer(std::size_t bytes);
    void give_buffer(io::AlignedBuffer buffer);
    void set_writable(bool on);
    void leave();  // an operation ended
    ByteCount used_bytes() const;

    // store_write.cc
    Result<ItemPtr> enqueue(const RecordInfo& info, std::span<const std::uint8_t> payload,
                            bool bounded);
    SegmentPtr segment_for(std::uint32_t expires_s, std::uint32_t ttl_s, std::uint64_t bytes);
    void close_segment(const SegmentPtr& s);
    static io::Task<void> open_segment(std::shared_ptr<Impl> self, SegmentPtr s);
    io::Task<Result<void>> prepare_file(SegmentPtr s);
    io::Task<void> make_room();
    io::Task<bool> drop_earliest();
    void pump_later(const SegmentPtr& s);
    void pump(const SegmentPtr& s);
    static io::Task<void> write_batch(std::shared_ptr<Impl> self, SegmentPtr s,
                                      std::vector<ItemPtr> items);
    void answer(Segment& s, const std::vector<ItemPtr>& items, const Result<void>& written);
    void seal_if_drained(const SegmentPtr& s);
    static io::Task<void> seal(std::shared_ptr<Impl> self, SegmentPtr s);
    io::Task<Result<void>> write_footer(SegmentPtr s);

    // store_read.cc
    io::Task<Result<RecordInfo>> read_record(SegmentPtr s, std::uint32_t page, bool paged,
                                             std::size_t slices, std::span<std::uint8_t> into,
                                             std::optional<ObjectKey> expected);
    static io::Task<void> load(std::shared_ptr<Impl> self, std::shared_ptr<Load> out);
    io::Task<bool> load_footer(SegmentPtr s, std::uint64_t size, ScanBatch& out);
    io::Task<bool> load_records(SegmentPtr s, std::uint64_t size, ScanBatch& out);
    bool admit(const SegmentPtr& s);
    io::Task<Result<std::vector<Listed>>> list(SegmentPtr s);

    // store_notes.cc
    io::Task<Result<void>> read_notes();
    io::Task<Result<void>> write_notes();
    io::Task<Result<void>> replace_notes();

    // store_expire.cc
    io::Task<void> drop(SegmentPtr s, GoneCause cause);
    io::Task<void> forward(SegmentPtr s, WallTime now);
    io::Task<void> tick(WallTime now);
    io::Task<void> sync_open();
    void accrue(WallTime now);

    io::Loop& loop;
    io::Disk& disk;
    StoreOptions options;
    SsdListener* listener = nullptr;
    FolderId folder{};
    std::unique_ptr<io::File> superblock;          // holds the lock
    std::map<std::uint32_t, SegmentPtr> segments;  // by slot
    std::vector<SegmentPtr> open;                  // take records
    std::map<std::array<std::uint8_t, 32>, std::vector<RecordSlice>> layer_maps;
    std::uint64_t next_id = 1;
    std::uint32_t next_slot = 1;
    std::uint64_t generation = 0;
    ByteCount queued = 0;
    bool writable = true;
    bool closed = false;
    Code refusal = Code::kNoSpace;  // why not writable
    TimePoint retry_at;
    std::uint32_t failures = 0;  // of writes, in a row
    bool ticking = false;
    TimePoint last_sync;

    std::deque<SegmentPtr> opened;  // with a file, in the order of the clock hand
    std::vector<io::AlignedBuffer> buffers;

    std::vector<std::uint64_t> scan_ids;  // of earlier runs, rising
    std::size_t scan_at = 0;
    std::deque<std::shared_ptr<Load>> loads;
    std::size_t loads_wanted = kLoadsInFlight;
    std::uint64_t scrub_from = 0;

    Notes notes;                // hits: of segments that a restart has not come to yet
    bool hits_changed = false;  // since they were written
    bool writing_notes = false;
    TimePoint notes_written;

    double budget = 0;  // bytes that may be copied forward
    WallTime budget_at;
    ByteCount appended_since = 0;

    std::uint64_t busy = 0;
    std::vector<std::shared_ptr<io::Waiter>> idle;
    SsdStats counts;
};

// Counts an operation as long as it lives.
class Busy {
  public:
    explicit Busy(std::shared_ptr<SegmentStore::Impl> impl) : impl_(std::move(impl)) {
        ++impl_->busy;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { impl_->leave(); }

  private:
    std::shared_ptr<SegmentStore::Impl> impl_;
};

inline bool bit(const std::vector<std::uint64_t>& bits, std::uint32_t i) {
    return i / 64 < bits.size() && (bits[i / 64] >> (i % 64) & 1) != 0;
}
inline void set_bit(std::vector<std::uint64_t>& bits, std::uint32_t i, std::size_t of) {
    if (bits.empty()) bits.resize((of + 63) / 64);
    if (i / 64 < bits.size()) bits[i / 64] |= std::uint64_t{1} << (i % 64);
}
inline ExpiryHour hour_of(std::uint32_t expires_s) {
    return static_cast<ExpiryHour>(expires_s / 3600);
}
// Of two absolute times that an ExpiryHour may mean, the one near `now`.
std::uint32_t absolute_s(ExpiryHour hour, WallTime now);
std::span<const std::uint8_t> bytes_of(std::span<const char> s);

}  // namespace nereid::kv::ssd
