// Bytes as a multipart body: no crash, and each part's body lies inside the whole.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "gateway/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const auto line = bytes.find('\n');
    const std::string_view body = line == std::string_view::npos ? bytes : bytes.substr(line + 1);
    for (const std::string_view type :
         {bytes.substr(0, line), std::string_view("multipart/form-data; boundary=x")}) {
        const auto parts = nereid::gateway::parse_multipart(type, body);
        if (!parts.ok()) continue;
        for (const auto& part : *parts)
            CHECK(part.body.data() >= body.data() &&
                  part.body.data() + part.body.size() <= body.data() + body.size());
    }
    return 0;
}
