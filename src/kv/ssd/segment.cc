#include "kv/ssd/segment.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"

namespace nereid::kv::ssd {

namespace {

constexpr std::uint32_t kHeadMagic = 0x48534b4e;        // "NKSH"
constexpr std::uint32_t kRecordMagic = 0x52534b4e;      // "NKSR"
constexpr std::uint32_t kTrailerMagic = 0x46534b4e;     // "NKSF"
constexpr std::uint32_t kSuperblockMagic = 0x42534b4e;  // "NKSB"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeadBytes = 80;
constexpr std::size_t kTrailerBytes = 80;
constexpr std::size_t kSuperblockBytes = 64;
constexpr std::size_t kMaxEntries = 65536;
constexpr std::size_t kMaxNamespaces = 65535;

// Fields at the end of a cursor over memory that is known to be long enough.
class Put {
  public:
    explicit Put(char* at) : at_(at) {}
    template <class T>
    Put& operator()(T v) {
        std::memcpy(at_, &v, sizeof v);
        at_ += sizeof v;
        return *this;
    }

  private:
    char* at_;
};
class Get {
  public:
    explicit Get(const char* at) : at_(at) {}
    template <class T>
    T take() {
        T v;
        std::memcpy(&v, at_, sizeof v);
        at_ += sizeof v;
        return v;
    }

  private:
    const char* at_;
};

std::uint32_t crc_of(const char* from, std::size_t bytes) {
    return crc32c({reinterpret_cast<const std::uint8_t*>(from), bytes});
}
// Magic and CRC in the first eight bytes, the CRC over what follows up to `bytes`.
void seal(char* block, std::uint32_t magic, std::size_t bytes) {
    Put put(block);
    put(magic);
    put(crc_of(block + 8, bytes - 8));
}
bool sealed(const char* block, std::uint32_t magic, std::size_t bytes) {
    Get get(block);
    return get.take<std::uint32_t>() == magic &&
           get.take<std::uint32_t>() == crc_of(block + 8, bytes - 8);
}
bool all_zero(std::string_view bytes) {
    // Equal to itself one byte on: a page of them is looked at with each segment of a restart.
    return bytes.empty() || (bytes[0] == 0 && bytes.substr(1) == bytes.substr(0, bytes.size() - 1));
}
std::unexpected<Error> corrupt(std::string_view what) {
    return err(Code::kCorrupt, fmt::format("segment: {}", what));
}

}  // namespace

void encode_record_header(const RecordHeader& h, std::span<const RecordSlice> slices,
                          std::span<char> out) {
    const std::size_t bytes = header_bytes(slices.size());
    CHECK(slices.size() <= kMaxSlices && out.size() >= bytes);
    CHECK(h.payload_bytes > 0 && h.payload_bytes <= kMaxPayloadBytes);
    std::uint64_t sum = 0;
    for (const RecordSlice& s : slices) sum += s.length;
    CHECK(slices.empty() || sum == h.payload_bytes);
    std::memset(out.data(), 0, bytes);
    Put put(out.data() + 8);
    put(kVersion)(static_cast<std::uint16_t>(bytes))(h.kind)(std::uint8_t{h.paged});
    put(static_cast<std::uint16_t>(slices.size()))(h.ttl_s)(h.depth);
    put(h.payload_bytes)(h.payload_crc)(h.generation)(h.segment)(h.page)(h.expires_s);
    put(h.ns.digest)(h.key.bytes)(std::array<char, 24>{});
    for (const RecordSlice& s : slices) put(s.layer)(s.role)(s.length);
    seal(out.data(), kRecordMagic, bytes);
}

Result<DecodedRecord> decode_record_header(std::string_view bytes) {
    if (bytes.size() < kRecordFixedBytes) return corrupt("record shorter than its header");
    Get get(bytes.data());
    if (get.take<std::uint32_t>() != kRecordMagic) return corrupt("no record here");
    get.take<std::uint32_t>();
    const auto version = get.take<std::uint16_t>();
    const std::size_t length = get.take<std::uint16_t>();
    if (length < kRecordFixedBytes || length > kPage || length > bytes.size())
        return corrupt("record header of an impossible length");
    if (!sealed(bytes.data(), kRecordMagic, length)) return corrupt("record header fails its CRC");
    if (version != kVersion) return corrupt("record of an unknown version");
    DecodedRecord r;
    RecordHeader& h = r.header;
    h.kind = get.take<std::uint8_t>();
    const auto paged = get.take<std::uint8_t>();
    r.slices = get.take<std::uint16_t>();
    h.ttl_s = get.take<std::uint32_t>();
    h.depth = get.take<std::uint32_t>();
    h.payload_bytes = get.take<std::uint32_t>();
    h.payload_crc = get.take<std::uint32_t>();
    h.generation = get.take<std::uint64_t>();
    h.segment = get.take<std::uint64_t>();
    h.page = get.take<std::uint32_t>();
    h.expires_s = get.take<std::uint32_t>();
    h.ns.digest = get.take<Digest256>();
    h.key.bytes = get.take<std::array<std::uint8_t, 16>>();
    h.paged = paged != 0;
    r.payload_offset = payload_offset(h.paged, r.slices);
    if (h.kind > 1 || paged > 1) return corrupt("record of an unknown kind");
    if (h.payload_bytes == 0 || h.payload_bytes > kMaxPayloadBytes)
        return corrupt("record with an impossible payload");
    if (r.slices > kMaxSlices || header_bytes(r.slices) != length)
        return corrupt("record whose layer map does not fit its header");
    if (!all_zero(bytes.substr(104, 24)) ||
        !all_zero(bytes.substr(kRecordFixedBytes + std::size_t{8} * r.slices,
                               length - kRecordFixedBytes - std::size_t{8} * r.slices)))
        return corrupt("record with reserved bytes in use");
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < r.slices; ++i)
        sum += Get(bytes.data() + kRecordFixedBytes + 8 * i + 4).take<std::uint32_t>();
    if (r.slices != 0 && sum != h.payload_bytes)
        return corrupt("record whose layer map does not add up");
    return r;
}

std::vector<RecordSlice> record_slices(std::string_view bytes, const DecodedRecord& r) {
    std::vector<RecordSlice> out(r.slices);
    Get get(bytes.data() + kRecordFixedBytes);
    for (RecordSlice& s : out) {
        s.layer = get.take<std::uint16_t>();
        s.role = get.take<std::array<char, 2>>();
        s.length = get.take<std::uint32_t>();
    }
    return out;
}

void encode_head(const SegmentHead& h, std::span<char, kPage> out) {
    std::memset(out.data(), 0, out.size());
    Put put(out.data() + 8);
    put(kVersion)(std::uint16_t{0})(static_cast<std::uint32_t>(kPage))(h.folder)(h.segment);
    put(h.capacity)(h.created_s)(h.expires_s)(h.ttl_s);
    seal(out.data(), kHeadMagic, kHeadBytes);
}

Result<SegmentHead> decode_head(std::string_view bytes) {
    if (bytes.size() < kPage || !sealed(bytes.data(), kHeadMagic, kHeadBytes))
        return corrupt("no segment head");
    Get get(bytes.data() + 8);
    if (get.take<std::uint16_t>() != kVersion) return corrupt("segment of an unknown version");
    const auto reserved = get.take<std::uint16_t>();
    const auto page = get.take<std::uint32_t>();
    SegmentHead h;
    h.folder = get.take<FolderId>();
    h.segment = get.take<std::uint64_t>();
    h.capacity = get.take<std::uint64_t>();
    h.created_s = get.take<std::uint32_t>();
    h.expires_s = get.take<std::uint32_t>();
    h.ttl_s = get.take<std::uint32_t>();
    if (reserved != 0 || page != kPage || h.segment == 0 || h.capacity < kMinSegmentBytes ||
        h.capacity > kMaxSegmentBytes || h.capacity % kPage != 0 ||
        !all_zero(bytes.substr(60, kPage - 60)))
        return corrupt("segment head out of bounds");
    return h;
}

bool FooterBuilder::add(const RecordHeader& h) {
    if (entries_.size() >= kMaxEntries) return false;
    // A segment holds few namespaces, and runs of the same one: from the end it is found at once.
    const auto found = std::find(namespaces_.rbegin(), namespaces_.rend(), h.ns);
    if (found == namespaces_.rend() && namespaces_.size() >= kMaxNamespaces) return false;
    auto number = static_cast<std::size_t>(namespaces_.rend() - found);
    if (found == namespaces_.rend()) {
        namespaces_.push_back(h.ns);
        number = namespaces_.size();
    }
    entries_.push_back({.key = h.key,
                        .generation = h.generation,
                        .page = h.page,
                        .payload_bytes = h.payload_bytes,
                        .depth = h.depth,
                        .ttl_s = h.ttl_s,
                        .expires_s = h.expires_s,
                        .ns = static_cast<std::uint16_t>(number - 1),
                        .kind = h.kind,
                        .paged = h.paged});
    payload_ += h.payload_bytes;
    return true;
}

std::uint64_t FooterBuilder::bytes(std::size_t more) const {
    return round_to_page((namespaces_.size() + more) * 32 +
                         (entries_.size() + more) * kFooterEntryBytes) +
           kPage;
}

void FooterBuilder::encode(const SegmentHead& head, std::uint32_t body_page, std::string& out) {
    std::ranges::sort(entries_, {}, &FooterEntry::page);
    const std::size_t begin = out.size();
    ByteWriter w(out);
    for (const auto& ns : namespaces_) w.put_bytes(ns.digest);
    for (const FooterEntry& e : entries_) {
        w.put_bytes(e.key.bytes);
        w.put(e.generation);
        w.put(e.page);
        w.put(e.payload_bytes);
        w.put(e.depth);
        w.put(e.ttl_s);
        w.put(e.expires_s);
        w.put(e.ns);
        w.put(e.kind);
        w.put(std::uint8_t{e.paged});
    }
    const std::uint32_t body_crc = crc_of(out.data() + begin, out.size() - begin);
    const std::size_t trailer = begin + round_to_page(out.size() - begin);
    out.resize(trailer + kPage, '\0');
    Put put(out.data() + trailer + 8);
    put(kVersion)(static_cast<std::uint16_t>(namespaces_.size()));
    put(static_cast<std::uint32_t>(entries_.size()))(head.folder)(head.segment);
    put(body_page)(body_crc)(head.created_s)(head.expires_s)(payload_)(head.ttl_s);
    seal(out.data() + trailer, kTrailerMagic, kTrailerBytes);
}

Result<Trailer> decode_trailer(std::string_view page, std::uint64_t file_bytes) {
    if (page.size() != kPage || !sealed(page.data(), kTrailerMagic, kTrailerBytes))
        return corrupt("no trailer");
    Get get(page.data() + 8);
    if (get.take<std::uint16_t>() != kVersion) return corrupt("trailer of an unknown version");
    Trailer t;
    t.namespaces = get.take<std::uint16_t>();
    t.entries = get.take<std::uint32_t>();
    t.folder = get.take<FolderId>();
    t.segment = get.take<std::uint64_t>();
    t.body_page = get.take<std::uint32_t>();
    t.body_crc = get.take<std::uint32_t>();
    t.created_s = get.take<std::uint32_t>();
    t.expires_s = get.take<std::uint32_t>();
    t.payload = get.take<std::uint64_t>();
    t.ttl_s = get.take<std::uint32_t>();
    if (t.entries > kMaxEntries || t.segment == 0 || t.body_page == 0 ||
        t.body_page * kPage + round_to_page(t.body_bytes()) + kPage != file_bytes ||
        !all_zero(page.substr(68)))
        return corrupt("trailer out of bounds");
    return t;
}

Result<FooterView> FooterView::open(const Trailer& t, std::string_view body) {
    if (body.size() < t.body_bytes()) return corrupt("footer shorter than it says");
    if (crc_of(body.data(), t.body_bytes()) != t.body_crc) return corrupt("footer fails its CRC");
    FooterView v;
    v.namespaces_at_ = body.data();
    v.namespaces_ = t.namespaces;
    v.entries_at_ = body.data() + std::size_t{32} * t.namespaces;
    v.entries_ = t.entries;
    std::uint64_t end = 1;
    for (std::size_t i = 0; i < v.entries_; ++i) {
        const FooterEntry e = v.entry(i);
        const std::uint64_t pages = record_bytes(e.paged, 0, e.payload_bytes) / kPage;
        // 47: the byte that says where the payload begins.
        if (e.ns >= v.namespaces_ || e.kind > 1 || v.entries_at_[i * kFooterEntryBytes + 47] > 1 ||
            e.payload_bytes == 0 || e.payload_bytes > kMaxPayloadBytes || e.page < end ||
            e.page + pages > t.body_page)
            return corrupt("footer entry out of bounds");
        end = e.page + pages;
    }
    return v;
}

FooterEntry FooterView::entry(std::size_t i) const {
    Get get(entries_at_ + i * kFooterEntryBytes);
    FooterEntry e;
    e.key.bytes = get.take<std::array<std::uint8_t, 16>>();
    e.generation = get.take<std::uint64_t>();
    e.page = get.take<std::uint32_t>();
    e.payload_bytes = get.take<std::uint32_t>();
    e.depth = get.take<std::uint32_t>();
    e.ttl_s = get.take<std::uint32_t>();
    e.expires_s = get.take<std::uint32_t>();
    e.ns = get.take<std::uint16_t>();
    e.kind = get.take<std::uint8_t>();
    e.paged = get.take<std::uint8_t>() != 0;
    return e;
}

model::Namespace FooterView::ns(std::size_t i) const {
    return {Get(namespaces_at_ + i * 32).take<Digest256>()};
}

std::string encode_superblock(const Superblock& s) {
    std::string out(kPage, '\0');
    Put put(out.data() + 8);
    put(kVersion)(std::uint16_t{0})(static_cast<std::uint32_t>(kPage))(s.folder)(s.created_s);
    seal(out.data(), kSuperblockMagic, kSuperblockBytes);
    return out;
}

Result<Superblock> decode_superblock(std::string_view bytes) {
    if (bytes.size() != kPage || !sealed(bytes.data(), kSuperblockMagic, kSuperblockBytes))
        return corrupt("superblock fails its CRC");
    Get get(bytes.data() + 8);
    const auto version = get.take<std::uint16_t>();
    const auto reserved = get.take<std::uint16_t>();
    const auto page = get.take<std::uint32_t>();
    if (version != kVersion || reserved != 0 || page != kPage || !all_zero(bytes.substr(36)))
        return corrupt("superblock of an unknown version");
    Superblock s;
    s.folder = get.take<FolderId>();
    s.created_s = get.take<std::uint32_t>();
    return s;
}

std::string segment_name(std::uint64_t id) { return fmt::format("seg-{:016x}.nks", id); }

std::uint64_t segment_of_name(std::string_view name) {
    if (name.size() != 24 || !name.starts_with("seg-") || !name.ends_with(".nks")) return 0;
    std::uint64_t id = 0;
    for (const char c : name.substr(4, 16)) {
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return 0;
        id = id << 4 | static_cast<std::uint64_t>(digit);
    }
    return id;
}

}  // namespace nereid::kv::ssd
