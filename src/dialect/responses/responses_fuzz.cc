// Bytes -> JSON -> parse_create -> messages: no crash; and a custom tool's input is the same for
// two chunkings of the bytes.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "dialect/responses/responses.h"
#include "dialect/responses/tools.h"

namespace {

std::string extracted(std::string_view bytes, std::size_t step) {
    nereid::dialect::responses::InputExtractor extractor;
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += step) extractor.feed(bytes.substr(i, step), out);
    extractor.finish(out);
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using nereid::Json;
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    CHECK(extracted(bytes, 1) == extracted(bytes, 7));
    static const nereid::Aead aead{nereid::Digest256{}};
    const nereid::dialect::Seal seal(aead, "t");
    const auto json = Json::parse(bytes);
    if (!json.ok()) return 0;
    auto create = nereid::dialect::responses::parse_create(*json, "f");
    if (!create.ok()) return 0;
    (void)nereid::dialect::responses::add_messages(*create, create->input, seal);
    return 0;
}
