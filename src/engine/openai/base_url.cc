#include "engine/openai/base_url.h"

#include <charconv>

#include <fmt/format.h>

namespace nereid::engine::openai {
namespace {

bool parse_port(std::string_view text, std::uint16_t& port) {
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), port);
    return ec == std::errc() && end == text.data() + text.size() && port != 0;
}

// "host", "host:port", "[v6]", "[v6]:port". Returns false when it is none.
bool parse_authority(std::string_view text, io::Endpoint& out) {
    std::string_view host = text;
    std::string_view port;
    if (text.starts_with('[')) {
        const auto close = text.find(']');
        if (close == std::string_view::npos) return false;
        host = text.substr(1, close - 1);
        text.remove_prefix(close + 1);
        if (!text.empty() && !text.starts_with(':')) return false;
        if (!text.empty()) port = text.substr(1);
        if (!text.empty() && port.empty()) return false;
    } else if (const auto colon = text.find(':'); colon != std::string_view::npos) {
        host = text.substr(0, colon);
        port = text.substr(colon + 1);
        if (port.empty()) return false;
    }
    if (host.empty() || host.find_first_of(" @?#\\") != std::string_view::npos) return false;
    out.host = host;
    return port.empty() || parse_port(port, out.port);
}

}  // namespace

Result<BaseUrl> parse_base_url(std::string_view url) {
    const auto bad = [&](std::string_view why) {
        return err(Code::kConfig,
                   fmt::format("base url \"{}\": {}. Mend: write it like http://127.0.0.1:8000.",
                               url, why));
    };
    BaseUrl out;
    std::string_view rest = url;
    if (rest.starts_with("http://")) {
        rest.remove_prefix(7);
        out.endpoint.port = 80;
    } else if (rest.starts_with("https://")) {
        rest.remove_prefix(8);
        out.endpoint.port = 443;
        out.tls = true;
    } else {
        return bad("it begins with neither http:// nor https://");
    }
    const auto slash = rest.find('/');
    const std::string_view authority = rest.substr(0, slash);
    if (!parse_authority(authority, out.endpoint)) return bad("host or port cannot be read");
    out.host_header = authority;
    if (slash != std::string_view::npos) {
        std::string_view prefix = rest.substr(slash);
        if (prefix.find_first_of("?# ") != std::string_view::npos)
            return bad("a query or fragment has no place in it");
        while (prefix.ends_with('/')) prefix.remove_suffix(1);
        if (prefix.ends_with("/v1")) prefix.remove_suffix(3);
        out.prefix = prefix;
    }
    return out;
}

}  // namespace nereid::engine::openai
