// Every reader over any bytes, cut anywhere: no crash, the cut changes nothing, and what is
// accepted survives the compact form.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "workload/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace nereid;
    using namespace nereid::workload;
    if (size < 2) return 0;
    const auto format = static_cast<TraceFormat>(data[0] % 4);
    std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
    if (format == TraceFormat::kCompact) {
        // The right checksum, or mutations would never get past it.
        const std::uint32_t crc = crc32c(as_bytes(text));
        ByteWriter(text).put(crc);
    }
    const auto whole = parse_trace(format, text);
    const std::size_t cut = text.empty() ? 0 : data[1] % text.size();
    TraceReader reader(format);
    const auto first = reader.feed(std::string_view(text).substr(0, cut));
    if (first.ok()) (void)reader.feed(std::string_view(text).substr(cut)).ok();
    const auto again = reader.finish();
    CHECK(again.ok() == whole.ok());
    if (!whole.ok()) return 0;
    CHECK(*again == *whole);
    const auto back = parse_trace(TraceFormat::kCompact, write_compact(*whole));
    CHECK_MSG(back.ok(), back.error().message);
    CHECK(back->size() == whole->size());
    (void)summarize(*whole);
    return 0;
}
