// The bytes of SSD segments: head, records, footer and superblock (docs/formats/segment.md).
//
// Pure: encoders write into memory of the caller, decoders look at bytes that may be anything
// (torn, rotten, hostile) and either accept them or say kCorrupt; they allocate nothing by a count
// that they have not checked. What is accepted encodes to the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "model/block_key.h"

namespace nereid::kv::ssd {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kMaxSegmentBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMinSegmentBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxPayloadBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxSlices = 496;
inline constexpr std::size_t kRecordFixedBytes = 128;
inline constexpr std::size_t kFooterEntryBytes = 48;

using FolderId = std::array<std::uint8_t, 16>;  // random, of the superblock

constexpr std::uint64_t round_to_page(std::uint64_t n) { return (n + kPage - 1) / kPage * kPage; }

// One piece of a block: the rows of one tensor of one layer.
struct RecordSlice {
    std::uint16_t layer = 0;
    std::array<char, 2> role{};  // the first two characters of the layout's role
    std::uint32_t length = 0;
    bool operator==(const RecordSlice&) const = default;
};

struct RecordHeader {
    model::Namespace ns;
    model::BlockKey key;
    std::uint8_t kind = 0;  // 0 history, 1 state
    bool paged = false;     // the payload begins at the next page, not right behind the header
    std::uint32_t ttl_s = 0;
    std::uint32_t depth = 0;  // in its prefix
    std::uint32_t payload_bytes = 0;
    std::uint32_t payload_crc = 0;
    std::uint64_t generation = 0;
    std::uint64_t segment = 0;
    std::uint32_t page = 0;
    std::uint32_t expires_s = 0;
    bool operator==(const RecordHeader&) const = default;
};

constexpr std::size_t header_bytes(std::size_t slices) {
    return (kRecordFixedBytes + 8 * slices + 63) / 64 * 64;
}
constexpr std::size_t payload_offset(bool paged, std::size_t slices) {
    return paged ? kPage : header_bytes(slices);
}
// What a record takes in the file.
constexpr std::uint64_t record_bytes(bool paged, std::size_t slices, std::uint64_t payload_bytes) {
    return round_to_page(payload_offset(paged, slices) + payload_bytes);
}

// Writes header_bytes(slices.size()) bytes to `out`, which is at least that long. CHECKs that
// `slices` fit and add up to the payload (or are empty).
void encode_record_header(const RecordHeader& h, std::span<const RecordSlice> slices,
                          std::span<char> out);

struct DecodedRecord {
    RecordHeader header;
    std::size_t payload_offset = 0;  // from the record's begin
    std::uint16_t slices = 0;
};
// Checks magic, CRC, version, bounds and the layer map. `bytes` begins at the record and holds at
// least its header (4,096 are always enough); the payload need not be there. kCorrupt.
Result<DecodedRecord> decode_record_header(std::string_view bytes);
// The layer map of a record that decode_record_header has accepted.
std::vector<RecordSlice> record_slices(std::string_view bytes, const DecodedRecord& r);

struct SegmentHead {
    FolderId folder{};
    std::uint64_t segment = 0;
    std::uint64_t capacity = 0;
    std::uint32_t created_s = 0;
    std::uint32_t expires_s = 0;
    std::uint32_t ttl_s = 0;  // of all its records
    bool operator==(const SegmentHead&) const = default;
};
void encode_head(const SegmentHead& h, std::span<char, kPage> out);
Result<SegmentHead> decode_head(std::string_view bytes);  // at least a page; kCorrupt

struct FooterEntry {
    model::BlockKey key;
    std::uint64_t generation = 0;
    std::uint32_t page = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t depth = 0;
    std::uint32_t ttl_s = 0;
    std::uint32_t expires_s = 0;
    std::uint16_t ns = 0;  // number in the footer's table of namespaces
    std::uint8_t kind = 0;
    bool paged = false;
    bool operator==(const FooterEntry&) const = default;
};

// The footer of one segment while its records are written. 48 bytes per block.
class FooterBuilder {
  public:
    // In any order. False when there is no room for one more (65,536 entries, 65,535 namespaces).
    bool add(const RecordHeader& h);
    std::size_t entries() const { return entries_.size(); }
    const std::vector<FooterEntry>& list() const { return entries_; }
    const std::vector<model::Namespace>& namespaces() const { return namespaces_; }
    // Bytes of body, padding and trailer if `more` entries (and namespaces) came.
    std::uint64_t bytes(std::size_t more = 0) const;
    // Appends body, padding and trailer to `out`; `body_page` is where they will lie.
    void encode(const SegmentHead& head, std::uint32_t body_page, std::string& out);

  private:
    std::vector<FooterEntry> entries_;
    std::vector<model::Namespace> namespaces_;
    std::uint64_t payload_ = 0;
};

struct Trailer {
    FolderId folder{};
    std::uint64_t segment = 0;
    std::uint32_t body_page = 0;
    std::uint32_t body_crc = 0;
    std::uint32_t created_s = 0;
    std::uint32_t expires_s = 0;
    std::uint32_t ttl_s = 0;
    std::uint16_t namespaces = 0;
    std::uint32_t entries = 0;
    std::uint64_t payload = 0;
    std::uint64_t body_bytes() const {
        return std::uint64_t{namespaces} * 32 + std::uint64_t{entries} * kFooterEntryBytes;
    }
    bool operator==(const Trailer&) const = default;
};
// `page` is the last page of a file of `file_bytes`; kCorrupt unless body and trailer exactly fill
// the file's end.
Result<Trailer> decode_trailer(std::string_view page, std::uint64_t file_bytes);

// A footer's body in place: checked once, then read by number without copies.
class FooterView {
  public:
    // `body` is what lies from body_page on, at least body_bytes(). kCorrupt: wrong CRC, an entry
    // with a namespace that is not in the table or outside the records.
    static Result<FooterView> open(const Trailer& t, std::string_view body);
    std::size_t size() const { return entries_; }
    FooterEntry entry(std::size_t i) const;
    std::size_t namespaces() const { return namespaces_; }
    model::Namespace ns(std::size_t i) const;

  private:
    const char* namespaces_at_ = nullptr;
    const char* entries_at_ = nullptr;
    std::size_t namespaces_ = 0;
    std::size_t entries_ = 0;
};

struct Superblock {
    FolderId folder{};
    std::uint32_t created_s = 0;
    bool operator==(const Superblock&) const = default;
};
std::string encode_superblock(const Superblock& s);           // one page
Result<Superblock> decode_superblock(std::string_view page);  // kCorrupt

// "seg-00000000000000a1.nks" and back; 0 for any other name (no segment has the id 0).
std::string segment_name(std::uint64_t id);
std::uint64_t segment_of_name(std::string_view name);

}  // namespace nereid::kv::ssd
