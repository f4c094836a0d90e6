// Bytes -> (stop strings, text, chunking): the streamed result equals the one-shot result, and
// every delta is UTF-8.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/output.h"

namespace {

struct Result {
    std::string text;
    std::string stop;
};

Result one_run(const std::vector<std::string>& stops, std::string_view bytes,
               std::string_view sizes) {
    nereid::text::Utf8Assembler assembler;
    nereid::text::StopMatcher matcher(stops);
    Result result;
    const auto take = [&](const nereid::text::StopMatcher::Step& step) {
        CHECK(nereid::is_valid_utf8(step.text));
        result.text += step.text;
        if (step.stopped_by) result.stop = *step.stopped_by;
    };
    for (std::size_t i = 0; !bytes.empty(); ++i) {
        std::size_t size = sizes.empty()
                               ? bytes.size()
                               : 1 + static_cast<unsigned char>(sizes[i % sizes.size()]) % 7;
        size = std::min(size, bytes.size());
        take(matcher.push(assembler.push(bytes.substr(0, size))));
        bytes.remove_prefix(size);
    }
    take(matcher.push(assembler.finish()));
    take(matcher.finish());
    return result;
}

}  // namespace

// The input: stop strings, text and chunk sizes, separated by zero bytes; the last field is the
// text, the one before it the sizes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::vector<std::string> fields(1);
    for (std::size_t i = 0; i < size; ++i) {
        if (data[i] == 0 && fields.size() < 6)
            fields.emplace_back();
        else
            fields.back() += static_cast<char>(data[i]);
    }
    const std::string text = std::move(fields.back());
    fields.pop_back();
    std::string sizes = "a";
    if (!fields.empty()) {
        sizes = std::move(fields.back());
        fields.pop_back();
    }
    for (std::string& stop : fields) stop = nereid::replace_invalid_utf8(stop);
    const Result streamed = one_run(fields, text, sizes.empty() ? "a" : sizes);
    const Result whole = one_run(fields, text, "");
    CHECK(streamed.text == whole.text);
    CHECK(streamed.stop == whole.stop);
    return 0;
}
