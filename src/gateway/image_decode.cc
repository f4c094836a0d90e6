#include "gateway/image_decode.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nereid_image.h>

#include "gateway/image_fetch.h"
#include "model/images.h"
#include "store/offload.h"

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

// Anthropic's errors have no field for the place: it is in the text.
Error placed(Error error, const model::Request& request, const std::string& path) {
    error.param = path;
    if (request.endpoint == model::Endpoint::kMessages && !path.empty())
        error.message = path + ": " + error.message;
    return error;
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

io::Task<Result<void>> bring_images(Exchange& x, io::Network& network, model::Request& request,
                                    const ImageLimits& limits) {
    auto fetched = co_await fetch_images(x, network, request);
    if (!fetched.ok()) {
        const std::string path = fetched.error().param;
        co_return placed(std::move(fetched.error()), request, path);
    }
    const std::vector<model::ImagePart*> images = model::images_of(request);
    if (images.size() > limits.max_images) {
        co_return Error{Code::kInvalidArgument,
                        fmt::format("{} images in one request are more than {}.", images.size(),
                                    limits.max_images),
                        images[limits.max_images]->path};
    }
    std::uint64_t left = limits.max_request;
    for (model::ImagePart* image : images) {
        ImageLimits now = limits;
        now.max_pixels = std::min(limits.max_pixels, left);
        // The request may be gone before its image is decoded: the bytes belong to the job
        // meanwhile.
        const auto bytes = std::make_shared<std::string>(std::move(image->bytes));
        const auto decode = [bytes, now] { return decode_image(*bytes, now); };
        auto facts = x.core().helper == nullptr
                         ? decode()
                         : co_await store::offload(*x.core().helper, x.loop(), decode);
        if (!facts.ok()) co_return placed(std::move(facts.error()), request, image->path);
        image->bytes = std::move(*bytes);
        image->media_type = facts->media_type;
        image->width = facts->width;
        image->height = facts->height;
        left -= std::uint64_t{facts->width} * facts->height * facts->frames;
    }
    co_return Result<void>();
}

}  // namespace nereid::gateway
