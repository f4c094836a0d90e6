// Bytes -> JSON -> parse_create / parse_count: no crash, and an error's body is JSON.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "dialect/messages/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using nereid::Json;
    static const nereid::Aead aead{nereid::Digest256{}};
    const nereid::dialect::Seal seal(aead, "t");
    const auto json = Json::parse({reinterpret_cast<const char*>(data), size});
    if (!json.ok()) return 0;
    for (const auto& create : {nereid::dialect::messages::parse_create(*json, seal),
                               nereid::dialect::messages::parse_count(*json, seal)}) {
        if (create.ok()) continue;
        CHECK(Json::parse(nereid::dialect::messages::error_body(create.error(), "r")).ok());
    }
    return 0;
}
