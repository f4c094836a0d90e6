// Fetches what a request names by URL, so that engines and upstream servers see bytes only. Public
// addresses only (address_filter.h), no redirects, a bound on size and time.
#pragma once

#include <string>

#include "gateway/exchange.h"
#include "io/http.h"
#include "io/stream.h"
#include "io/tls.h"

namespace nereid::gateway {

// A network that lets nobody through to a private address: the connection is closed before a byte
// was sent. kPermissionDenied.
class PublicNetwork final : public io::Network {
  public:
    explicit PublicNetwork(io::Network& network) : network_(network) {}
    io::Task<Result<std::unique_ptr<io::Stream>>> connect(const io::Endpoint& to,
                                                          TimePoint deadline) override;
    Result<std::unique_ptr<io::Listener>> listen(const io::Endpoint& at, bool reuse_port) override;

  private:
    io::Network& network_;
};

struct RemoteFile {
    std::string bytes;
    std::string media_type;  // as its server says, without parameters
};

// `noun` is what errors call it: "image", "file". kInvalidArgument naming the URL's trouble (not
// its answer), kUnsupported when the operator has turned fetching off.
io::Task<Result<RemoteFile>> fetch_file(Exchange& x, io::Network& network, std::string url,
                                        std::string_view noun);

}  // namespace nereid::gateway
