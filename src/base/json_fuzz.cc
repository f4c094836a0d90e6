// Json::parse over any bytes: what it accepts survives dump and parse unchanged, and our own fault
// finder, a second parser, agrees on what JSON is.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/json.h"
#include "base/json_fault.h"
#include "base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using nereid::Json;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const bool well_formed = !nereid::find_json_fault(text, 128).has_value();
    const auto first = Json::parse(text);
    if (!first.ok()) {
        CHECK_MSG(!well_formed || first.error().message.ends_with("out of range"),
                  first.error().message);
        CHECK(nereid::is_valid_utf8(first.error().message));
        return 0;
    }
    CHECK(well_formed);
    const std::string dumped = first->dump();
    const auto second = Json::parse(dumped);
    CHECK_MSG(second.ok(), dumped);
    CHECK_MSG(*second == *first, dumped);
    CHECK(second->dump() == dumped);
    return 0;
}
