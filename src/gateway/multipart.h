// multipart/form-data bodies (RFC 7578): the upload of files. Pure; nothing is copied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nereid::gateway {

struct FormPart {
    std::string name;
    std::string filename;    // empty = a plain field
    std::string media_type;  // without its parameters; empty = none was said
    std::string_view body;   // a view into the body
};

// kInvalidArgument: no multipart/form-data with a boundary, or a body that is not framed by it.
// At most 64 parts.
Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body);

}  // namespace nereid::gateway
