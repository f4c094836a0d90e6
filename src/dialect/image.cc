#include "dialect/image.h"

#include <fmt/format.h>

#include "base/base64.h"
#include "dialect/fields.h"

namespace nereid::dialect {
Result<DataUrl> split_data_url(std::string_view url, const std::string& path) {
    const std::size_t comma = url.find(',');
    if (comma == std::string_view::npos)
        return bad_value(path, "a data: URL has a ',' before its data.");
    const std::string_view header = url.substr(5, comma - 5);  // "image/png;base64"
    if (!header.ends_with(";base64")) return bad_value(path, "a data: URL must be base64.");
    return DataUrl{header.substr(0, header.find(';')), url.substr(comma + 1)};
}

Result<model::ImagePart> read_image_base64(std::string_view data, std::string_view media_type,
                                           const std::string& path) {
    model::ImagePart image;
    image.media_type = std::string(media_type);
    if (!media_type.starts_with("image/")) {
        return bad_value(path, fmt::format("the data's type is '{}', not an image type.",
                                           media_type.substr(0, 64)));
    }
    auto bytes = base64_decode(data);
    if (!bytes) return bad_value(path, "the image's data is not valid base64.");
    if (bytes->empty()) return bad_value(path, "there is no image data.");
    image.bytes = std::move(*bytes);
    image.path = path;
    return image;
}

Result<model::ImagePart> read_image_url(const Json& url, const std::string& path) {
    if (!url.is_string()) return wrong_type(url, path, "a URL");
    const std::string& text = url.as_string();
    if (text.starts_with("data:")) {
        TRY(const DataUrl parts, split_data_url(text, path));
        return read_image_base64(parts.data, parts.media_type, path);
    }
    if (!text.starts_with("http://") && !text.starts_with("https://"))
        return bad_value(path, "expected a http:, https: or data: URL.");
    model::ImagePart image;
    image.url = text;
    image.path = path;
    return image;
}

}  // namespace nereid::dialect
