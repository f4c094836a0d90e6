// Bytes -> (family, options, text, chunking): every parser gives the same for every chunking, valid
// UTF-8, calls numbered in order, and without tools not a byte of the text is lost.
#include <cstdint>
#include <string_view>

#include "text/parser_fuzz_input.h"

// First byte: family; the rest as read_parser_input says.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using nereid::text::Family;
    if (size < 3) return 0;
    const auto family = static_cast<Family>(data[0] % 8);  // the ninth: recipe_fuzz
    const auto [options, sizes, text] =
        nereid::text::read_parser_input({reinterpret_cast<const char*>(data) + 1, size - 1});
    const auto whole = run_parser(family, options, text, "");
    CHECK(run_parser(family, options, text, sizes) == whole);
    CHECK(whole.called == !whole.calls.empty());
    if (options.tools == nullptr) {
        CHECK(whole.calls.empty());
        if (whole.reasoning.empty() && !options.in_reasoning && family != Family::kHarmony &&
            text.find("<think>") == std::string::npos && text.find("[THINK]") == std::string::npos)
            CHECK(whole.content == text);
    }
    return 0;
}
