// Bytes that call themselves an image: a verdict within the limits, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "gateway/image_decode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const nereid::gateway::ImageLimits limits{
        .max_side = 512, .max_frames = 8, .max_pixels = 1 << 16};
    const auto facts = nereid::gateway::decode_image(
        std::string_view(reinterpret_cast<const char*>(data), size), limits);
    if (!facts.ok()) {
        CHECK_MSG(facts.error().code == nereid::Code::kInvalidArgument, facts.error().message);
        return 0;
    }
    CHECK(facts->width > 0 && facts->height > 0 && facts->frames > 0);
    CHECK(facts->width <= limits.max_side && facts->height <= limits.max_side);
    CHECK(std::uint64_t{facts->width} * facts->height * facts->frames <= limits.max_pixels);
    return 0;
}
