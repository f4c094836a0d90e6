// The decoders of segments over any bytes. The first byte says what the rest is; checksums are
// mended first, or the fuzzer would never get past them. What is accepted must encode to itself.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/hash.h"
#include "kv/ssd/notes.h"
#include "kv/ssd/segment.h"

namespace {

using namespace nereid;           // NOLINT(google-build-using-namespace)
using namespace nereid::kv::ssd;  // NOLINT(google-build-using-namespace)

void mend(std::string& block, std::size_t bytes) {
    if (bytes < 8 || bytes > block.size()) return;
    const std::uint32_t crc = crc32c(as_bytes(block).subspan(8, bytes - 8));
    std::memcpy(block.data() + 4, &crc, sizeof crc);
}

void fuzz_record(std::string bytes) {
    if (bytes.size() >= kRecordFixedBytes) {
        std::uint16_t length;
        std::memcpy(&length, bytes.data() + 10, sizeof length);
        mend(bytes, length);
    }
    const auto r = decode_record_header(bytes);
    if (!r.ok()) return;
    std::string again(header_bytes(r->slices), '\0');
    encode_record_header(r->header, record_slices(bytes, *r), again);
    CHECK(std::string_view(bytes).substr(0, again.size()) == again);
}

void fuzz_head(std::string bytes) {
    bytes.resize(kPage, '\0');
    mend(bytes, 80);
    const auto h = decode_head(bytes);
    if (!h.ok()) return;
    std::string again(kPage, '\0');
    encode_head(*h, std::span<char, kPage>(again.data(), kPage));
    CHECK(again == bytes);
}

// Any body under a right length and checksum.
void fuzz_notes(std::string bytes) {
    if (bytes.size() < 48) return;
    const std::uint64_t length = bytes.size();
    std::memcpy(bytes.data() + 24, &length, sizeof length);
    const std::uint32_t crc = crc32c(as_bytes(std::string_view(bytes).substr(8)));
    std::memcpy(bytes.data() + 4, &crc, sizeof crc);
    bytes.resize(round_to_page(bytes.size()), '\0');
    FolderId folder;
    std::memcpy(folder.data(), bytes.data() + 32, folder.size());
    const auto n = decode_notes(bytes, folder);
    if (n.ok()) CHECK(encode_notes(*n, folder).size() <= bytes.size());
}

// A body of any length, then the 80 bytes of a trailer.
void fuzz_footer(const std::string& bytes) {
    if (bytes.size() < 80) return;
    const std::string body = bytes.substr(0, bytes.size() - 80);
    std::string page = bytes.substr(bytes.size() - 80);
    page.resize(kPage, '\0');
    std::uint16_t namespaces;
    std::uint32_t entries;
    std::uint32_t body_page;
    std::memcpy(&namespaces, page.data() + 10, sizeof namespaces);
    std::memcpy(&entries, page.data() + 12, sizeof entries);
    std::memcpy(&body_page, page.data() + 40, sizeof body_page);
    const std::uint64_t length = std::uint64_t{namespaces} * 32 + std::uint64_t{entries} * 48;
    if (length <= body.size()) {
        const std::uint32_t crc = crc32c(as_bytes(body).first(length));
        std::memcpy(page.data() + 44, &crc, sizeof crc);
    }
    mend(page, 80);
    const auto t = decode_trailer(page, body_page * kPage + round_to_page(length) + kPage);
    if (!t.ok()) return;
    const auto view = FooterView::open(*t, body);
    if (!view.ok()) return;
    for (std::size_t i = 0; i < view->size(); ++i) {
        const FooterEntry e = view->entry(i);
        static_cast<void>(view->ns(e.ns));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 5) {
        case 0:
            fuzz_record(rest);
            break;
        case 1:
            fuzz_head(rest);
            break;
        case 2:
            fuzz_footer(rest);
            break;
        case 4:
            fuzz_notes(rest);
            break;
        default:
            static_cast<void>(decode_superblock(rest));
            static_cast<void>(segment_of_name(rest));
            break;
    }
    return 0;
}
