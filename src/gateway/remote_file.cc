#include "gateway/remote_file.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "gateway/address_filter.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kMaxBytes = 20u << 20;
constexpr Duration kTimeout = 15s;

struct Url {
    bool tls = false;
    std::string host;
    std::uint16_t port = 0;
    std::string path;
};

Result<Url> read_url(std::string_view text, std::string_view noun) {
    const auto bad = [noun] {
        return err(Code::kInvalidArgument, fmt::format("The {}'s URL cannot be read.", noun));
    };
    Url url;
    url.tls = text.starts_with("https://");
    if (!url.tls && !text.starts_with("http://")) return bad();
    text.remove_prefix(url.tls ? 8 : 7);
    const auto slash = text.find_first_of("/?#");
    std::string_view authority = text.substr(0, slash);
    std::string_view rest =
        slash == std::string_view::npos ? std::string_view{} : text.substr(slash);
    rest = rest.substr(0, rest.find('#'));
    url.path = rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
    if (authority.find('@') != std::string_view::npos) return bad();  // no credentials in URLs
    url.port = url.tls ? 443 : 80;
    const auto colon = authority.rfind(':');
    if (colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
        const std::string_view port = authority.substr(colon + 1);
        const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
        if (error != std::errc{} || end != port.data() + port.size() || url.port == 0) return bad();
        authority = authority.substr(0, colon);
    }
    if (authority.starts_with('[') && authority.ends_with(']'))
        authority = authority.substr(1, authority.size() - 2);
    url.host = std::string(authority);
    for (const char c : url.path + url.host) {
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) return bad();
    }
    if (url.host.empty()) return bad();
    return url;
}

}  // namespace

io::Task<Result<std::unique_ptr<io::Stream>>> PublicNetwork::connect(const io::Endpoint& to,
                                                                     TimePoint deadline) {
    const auto denied = [] { return Error{Code::kPermissionDenied, "the address is not public"}; };
    if (!to.unix_path.empty()) co_return denied();
    CO_TRY(auto stream, co_await network_.connect(to, deadline));
    const std::string peer = stream->peer();  // "1.2.3.4:443", "[::1]:443"
    if (!is_public_address(std::string_view(peer).substr(0, peer.rfind(':')))) co_return denied();
    co_return std::move(stream);
}

Result<std::unique_ptr<io::Listener>> PublicNetwork::listen(const io::Endpoint&, bool) {
    return err(Code::kPermissionDenied, "nobody listens here");
}

io::Task<Result<RemoteFile>> fetch_file(Exchange& x, io::Network& network, std::string url,
                                        std::string_view noun) {
    if (x.options().file_urls == "refuse") {
        co_return Error{
            Code::kUnsupported,
            fmt::format("The {}'s URL is not fetched: that is turned off here; send its data.",
                        noun)};
    }
    // Not more: what an inner service says must not come back in an error.
    const auto cannot = [noun](std::string_view why) {
        return err(Code::kInvalidArgument,
                   fmt::format("The {} could not be fetched: {}.", noun, why));
    };
    CO_TRY(const Url at, read_url(url, noun));
    io::HttpClientOptions options;
    options.endpoint.host = at.host;
    options.endpoint.port = at.port;
    options.tls = at.tls;
    PublicNetwork guarded(network);
    io::Network& through = x.options().file_private ? network : static_cast<io::Network&>(guarded);
    const auto client = io::make_http_client(x.loop(), through, std::move(options));
    io::HttpClientRequest request{.method = "GET", .path = at.path};
    request.headers.add("accept", noun == "image" ? "image/*" : "*/*");
    request.headers.add("user-agent", "nereid");
    const TimePoint deadline = x.loop().now() + kTimeout;
    auto response = co_await client->request(request, deadline);
    // Which of the two is not said: it would tell what listens in here.
    if (!response.ok())
        co_return cannot("its server cannot be reached, or its address is not public");
    const int status = (*response)->status();
    if (status != 200) co_return cannot(fmt::format("status {}", status));
    RemoteFile out;
    const std::string_view type = (*response)->headers().get("content-type");
    out.media_type = std::string(type.substr(0, type.find(';')));
    if (noun == "image" && !out.media_type.starts_with("image/"))
        co_return cannot("it is no image");
    auto bytes = co_await (*response)->read_all(kMaxBytes, deadline);
    if (!bytes.ok())
        co_return cannot(bytes.code() == Code::kTooLarge ? "it is over 20 MiB" : "it broke off");
    out.bytes = *std::move(bytes);
    co_return out;
}

}  // namespace nereid::gateway
