#include "gateway/image_decode.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nereid_image.h>

namespace nereid::gateway {
namespace {

constexpr std::size_t kLongestReason = 200;

std::string_view media_type_of(std::uint32_t format) {
    switch (format) {
        case NI_PNG:
            return "image/png";
        case NI_JPEG:
            return "image/jpeg";
        case NI_GIF:
            return "image/gif";
        default:
            return "image/webp";
    }
}

Error refusal(std::int32_t code, std::string reason) {
    reason.resize(std::min(reason.size(), kLongestReason));
    switch (code) {
        case NI_UNSUPPORTED:
            return {Code::kInvalidArgument,
                    fmt::format("The image cannot be read: {} (unsupported image media type).",
                                reason)};
        case NI_LIMIT:
            return {Code::kInvalidArgument, fmt::format("The image is too large: {}.", reason)};
        case NI_INVALID:
            return {Code::kInvalidArgument, fmt::format("The image is damaged: {}.", reason)};
        default:
            return {Code::kInternal, "the image decoder failed: " + reason};
    }
}

}  // namespace

Result<ImageFacts> decode_image(std::string_view bytes, const ImageLimits& limits) {
    const ni_limits bounds{.max_side = limits.max_side,
                           .max_frames = limits.max_frames,
                           .max_pixels = limits.max_pixels};
    ni_image out{};
    char* message = nullptr;
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const std::int32_t code = ni_decode(data, bytes.size(), &bounds, &out, &message);
    if (code == NI_OK)
        return ImageFacts{media_type_of(out.format), out.width, out.height, out.frames};
    std::string reason = message == nullptr ? "" : message;
    ni_string_free(message);
    return std::unexpected(refusal(code, std::move(reason)));
}

}  // namespace nereid::gateway
