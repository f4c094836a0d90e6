// Base urls of OpenAI-compatible servers, as people write them. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "io/stream.h"

namespace nereid::engine::openai {

struct BaseUrl {
    io::Endpoint endpoint;
    bool tls = false;
    std::string host_header;  // as in the url
    std::string prefix;       // before "/v1/...": "" or "/openai", no slash at the end
};
// "http(s)://host[:port][/prefix][/v1][/]", IPv6 in brackets. kConfig naming the url and the mend.
Result<BaseUrl> parse_base_url(std::string_view url);

}  // namespace nereid::engine::openai
