// Images as requests carry them: base64 data, data: URLs, http(s) URLs. Nothing is fetched and no
// picture is decoded here: that is the gateway's (remote_file, image_decode). Internal to dialect.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/request.h"

namespace nereid::dialect {

// "data:image/png;base64,...": its parts, still encoded. kInvalidArgument naming `path`.
struct DataUrl {
    std::string_view media_type;
    std::string_view data;
};
Result<DataUrl> split_data_url(std::string_view url, const std::string& path);

// A http:, https: or base64 data: URL, without a length limit of its own (A94). kInvalidArgument
// naming `path`.
Result<model::ImagePart> read_image_url(const Json& url, const std::string& path);
// Base64 text of an image/* type.
Result<model::ImagePart> read_image_base64(std::string_view data, std::string_view media_type,
                                           const std::string& path);

}  // namespace nereid::dialect
