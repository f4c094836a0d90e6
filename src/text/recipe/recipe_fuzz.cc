// Bytes -> (options, text, chunking): the parser of DeepSeek V4 and V4.1, which is another
// library's, gives the same for every chunking, valid UTF-8 and calls numbered in order. Its own
// code is not instrumented: the corpus and the dictionary lead.
#include <cstdint>
#include <string_view>

#include "text/parser_fuzz_input.h"

// As read_parser_input says.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const auto [options, sizes, text] =
        nereid::text::read_parser_input({reinterpret_cast<const char*>(data), size});
    const auto family = nereid::text::Family::kDeepSeek4;
    const auto whole = run_parser(family, options, text, "");
    CHECK(run_parser(family, options, text, sizes) == whole);
    CHECK(whole.called == !whole.calls.empty());
    return 0;
}
