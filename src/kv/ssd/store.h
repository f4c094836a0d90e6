// SegmentStore: the SSD tier on io::Disk (docs/formats/segment.md; interface: kv/tier/tier.h).
//
// One open segment per (hour of expiry, time to live). Appends that are ready together go to the
// device in one large aligned write; several writes are in flight. Large payloads are written and
// read where they lie, small ones are copied once together with their CRC. Nothing is acknowledged
// before the device has taken it; records survive a kill of the node, and the power going away
// loses at most what came after the last sync (`sync_every`) of an unsealed segment: such records
// are found torn or missing at the restart, never wrong.
//
// Expiry drops whole segments. Blocks hit in the final quarter of their life are copied forward,
// head of a prefix first, while the budget (a share of what is written) lasts. What the disk has no
// room for goes by the earliest expiry.
//
// Threads: one loop. The listener is never called inside a call of its owner's. Cost: append and
// read a few microseconds besides the device; memory about 300 bytes per segment, 8 KiB more for a
// segment that is hit in the final quarter of its life, 48 bytes per record while it is open.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/disk.h"
#include "io/loop.h"
#include "kv/ssd/segment.h"
#include "kv/tier/tier.h"

namespace nereid::kv::ssd {

// Payloads from here on lie on pages of their own (format: `paged`).
inline constexpr std::size_t kPagedFrom = std::size_t{256} << 10;

struct StoreOptions {
    std::string folder;
    ByteCount capacity_bytes = ByteCount{64} << 30;
    ByteCount segment_bytes = kMaxSegmentBytes;  // made smaller when capacity has no room for 16
    ByteCount batch_bytes = 1 << 20;             // of one write
    std::uint32_t writes_in_flight = 16;         // per segment
    ByteCount queue_bytes = 64 << 20;  // accepted and not yet on the device: kOverloaded beyond
    std::uint32_t open_segments = 8;
    std::uint32_t open_files = 256;
    double forward_share = 0.05;    // of what is appended, or of what is kept per turn of TTL
    Duration forward_lead = 10min;  // so long before its expiry a segment's hit blocks move
    Duration seal_after = 1h;       // an open segment takes records no longer than this
    Duration sync_every = 5s;
    Duration notes_every = 60s;  // hits are written down so often: a kill loses no more
    Duration retry_after = 10s;  // a failing or full device is tried again
};

struct ScrubReport {
    std::uint64_t records = 0;
    std::uint64_t corrupt = 0;
    bool wrapped = false;  // every segment has been seen since the last time
};

class SegmentStore final : public SsdTier {
  public:
    // Makes the folder and its superblock when missing, and locks it. kConflict: another node uses
    // it; kCorrupt: the superblock is damaged (delete the folder: it is a cache); kIo,
    // kPermissionDenied, kNoSpace. Records of earlier runs come by scan_next(); appends and reads
    // work meanwhile.
    static io::Task<Result<std::unique_ptr<SegmentStore>>> open(io::Loop& loop, io::Disk& disk,
                                                                StoreOptions options);
    ~SegmentStore() override;

    // The layer map of a namespace's blocks, written into the headers of paged records of exactly
    // this length from now on.
    void set_layer_map(const model::Namespace& ns, std::vector<RecordSlice> slices);

    void set_listener(SsdListener* listener) override;
    io::Task<Result<Location>> append(RecordInfo info,
                                      std::span<const std::uint8_t> payload) override;
    io::Task<Result<RecordInfo>> read(Location location, ObjectKey expected,
                                      std::span<std::uint8_t> into) override;
    io::Task<Result<ScanBatch>> scan_next() override;
    void touch(Location location, WallTime now) override;
    io::Task<void> tick(WallTime now) override;
    io::Task<void> quiesce() override;
    io::Task<Result<void>> remember_clear(const model::Namespace& ns,
                                          std::uint64_t clears) override;
    // Namespaces that were cleared, in this run or before, and how often.
    const std::map<Digest256, std::uint64_t>& clears() const;
    SsdStats stats() const override;

    // Seals all open segments: the next start then reads footers alone. No appends after it.
    io::Task<void> close();
    // Reads every record of one more sealed segment and reports what is damaged to the listener.
    io::Task<ScrubReport> scrub_next();

    struct Impl;

  private:
    explicit SegmentStore(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

}  // namespace nereid::kv::ssd
