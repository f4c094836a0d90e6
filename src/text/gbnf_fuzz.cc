// Any bytes as GBNF: an error or a Lark text, never a crash or a stack that runs out.
#include <cstdint>

#include "base/check.h"
#include "text/gbnf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto lark = nereid::text::lark_of_gbnf({reinterpret_cast<const char*>(data), size});
    if (lark.ok())
        CHECK(lark->starts_with("start: "));
    else
        CHECK(!lark.error().message.empty());
    return 0;
}
