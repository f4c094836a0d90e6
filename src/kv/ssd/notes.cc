#include "kv/ssd/notes.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/hash.h"

namespace nereid::kv::ssd {

namespace {

constexpr std::uint32_t kMagic = 0x4e534b4e;  // "NKSN"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeadBytes = 48;

}  // namespace

std::string encode_notes(const Notes& notes, const FolderId& folder) {
    std::string out;
    ByteWriter w(out);
    w.put(kMagic);
    w.put(std::uint32_t{0});
    w.put(kVersion);
    w.put(std::uint16_t{0});
    w.put(static_cast<std::uint32_t>(notes.clears.size()));
    w.put(static_cast<std::uint32_t>(notes.hits.size()));
    w.put(std::uint32_t{0});
    w.put(std::uint64_t{0});  // length
    w.put_bytes(folder);
    for (const auto& [digest, count] : notes.clears) {
        w.put_bytes(digest);
        w.put(count);
    }
    for (const auto& [segment, words] : notes.hits) {
        w.put(segment);
        w.put(static_cast<std::uint64_t>(words.size()));
        for (const std::uint64_t word : words) w.put(word);
    }
    const std::uint64_t length = out.size();
    std::memcpy(out.data() + 24, &length, sizeof length);
    const std::uint32_t crc = crc32c(as_bytes(std::string_view(out).substr(8)));
    std::memcpy(out.data() + 4, &crc, sizeof crc);
    out.resize(round_to_page(out.size()), '\0');
    return out;
}

Result<Notes> decode_notes(std::string_view bytes, const FolderId& folder) {
    const auto corrupt = [](std::string_view what) {
        return err(Code::kCorrupt, "notes: " + std::string(what));
    };
    if (bytes.size() < kHeadBytes || bytes.size() % kPage != 0) return corrupt("no whole pages");
    std::uint64_t length;
    std::memcpy(&length, bytes.data() + 24, sizeof length);
    if (length < kHeadBytes || length > bytes.size() || round_to_page(length) != bytes.size())
        return corrupt("another length");
    ByteReader r(bytes.substr(0, length));
    const auto magic = r.get<std::uint32_t>();
    const auto crc = r.get<std::uint32_t>();
    if (magic != kMagic || crc != crc32c(as_bytes(bytes.substr(8, length - 8))))
        return corrupt("fail their CRC");
    const auto version = r.get<std::uint16_t>();
    const auto reserved = r.get<std::uint16_t>();
    const auto clears = r.get<std::uint32_t>();
    const auto segments = r.get<std::uint32_t>();
    const auto zero = r.get<std::uint32_t>();
    r.get<std::uint64_t>();
    FolderId of{};
    r.get_bytes(of);
    if (version != kVersion || reserved != 0 || zero != 0 || of != folder)
        return corrupt("of an unknown version or another folder");
    Notes out;
    for (std::uint32_t i = 0; i < clears && !r.bad(); ++i) {
        Digest256 digest{};
        r.get_bytes(digest);
        if (!out.clears.empty() && !(out.clears.rbegin()->first < digest))
            return corrupt("out of order");
        out.clears[digest] = r.get<std::uint64_t>();
    }
    for (std::uint32_t i = 0; i < segments && !r.bad(); ++i) {
        const auto segment = r.get<std::uint64_t>();
        const auto words = r.get<std::uint64_t>();
        if (words > kMaxSegmentBytes / kPage / 64 || words * 8 > r.remaining())
            return corrupt("a count that cannot be");
        if (!out.hits.empty() && out.hits.rbegin()->first >= segment)
            return corrupt("out of order");
        auto& bits = out.hits[segment];
        bits.resize(words);
        for (auto& word : bits) word = r.get<std::uint64_t>();
    }
    const bool rest = std::ranges::any_of(bytes.substr(length), [](char c) { return c != 0; });
    if (!r.at_end() || rest || out.clears.size() != clears || out.hits.size() != segments)
        return corrupt("end elsewhere");
    return out;
}

}  // namespace nereid::kv::ssd
