// kv-wire's decoder over any bytes, checksums mended first. What is accepted must encode and decode
// to itself.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/hash.h"
#include "kv/wire/wire.h"

namespace {

using nereid::kv::wire::kHeaderBytes;

std::string mend_checksums(std::string bytes) {
    for (std::size_t at = 0; at + kHeaderBytes <= bytes.size();) {
        std::uint32_t length;
        std::memcpy(&length, bytes.data() + at + 8, sizeof length);
        if (length > bytes.size() - at - kHeaderBytes) break;
        const auto all = nereid::as_bytes(bytes);
        const std::uint32_t sum = nereid::crc32c(all.subspan(at + kHeaderBytes, length),
                                                 nereid::crc32c(all.subspan(at, 12)));
        std::memcpy(bytes.data() + at + 12, &sum, sizeof sum);
        at += kHeaderBytes + length;
    }
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    namespace wire = nereid::kv::wire;
    const std::string bytes = mend_checksums({reinterpret_cast<const char*>(data), size});
    wire::Decoder decoder;
    for (std::size_t at = 0; at < bytes.size(); at += 61) {
        decoder.feed(std::string_view(bytes).substr(at, 61));
        for (;;) {
            const auto next = decoder.next();
            if (!next.ok()) {
                CHECK(next.code() == nereid::Code::kCorrupt);
                return 0;
            }
            if (!next->has_value()) break;
            std::string once;
            CHECK(wire::encode(**next, once));
            wire::Decoder again;
            again.feed(once);
            const auto back = again.next();
            CHECK_MSG(back.ok() && back->has_value(), "our own message is refused");
            std::string twice;
            CHECK(wire::encode(**back, twice));
            CHECK(once == twice);
        }
    }
    return 0;
}
