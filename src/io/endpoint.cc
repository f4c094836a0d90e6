#include <fmt/format.h>

#include "io/stream.h"

namespace nereid::io {

std::string Endpoint::to_string() const {
    if (!unix_path.empty()) return "unix:" + unix_path;
    if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
    return fmt::format("{}:{}", host, port);
}

}  // namespace nereid::io
