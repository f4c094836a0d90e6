// Images are decoded before anything else is done with a request: what an engine or an upstream
// server gets is an image, and its size is known. PNG, JPEG, GIF and WebP, through the Rust crate
// `image` (ffi/include/nereid_image.h); docs/adr/0013.
//
// Limits hold before anything is allocated for pixels: the header's size is read first, and frames
// are counted as they are decoded. Pixels are dropped; engines decode by themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nereid::gateway {

struct ImageLimits {
    std::uint32_t max_side = 16'384;        // pixels
    std::uint32_t max_frames = 256;         // of an animated image
    std::uint64_t max_pixels = 40'000'000;  // of all frames
};

struct ImageFacts {
    std::string_view media_type;  // what the bytes are, whatever the caller calls them
    std::uint32_t width = 0;
    std::uint32_t height = 0;
    std::uint32_t frames = 0;
};

// kInvalidArgument: no such format, damaged, beyond the limits. Blocks for as long as decoding
// takes (about 10 ns a pixel); any thread.
Result<ImageFacts> decode_image(std::string_view bytes, const ImageLimits& limits);

}  // namespace nereid::gateway
