// Fetches the images that a request names by URL, so that engines and upstream servers see bytes
// only. Public addresses only (address_filter.h), no redirects, a bound on size and time.
#pragma once

#include <string>

#include "gateway/exchange.h"
#include "io/http.h"
#include "io/stream.h"
#include "io/tls.h"
#include "model/request.h"

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

// Puts the bytes into each image part that names a URL. kInvalidArgument naming the URL's trouble
// (not its answer), kUnsupported when the operator has turned fetching off.
io::Task<Result<void>> fetch_images(Exchange& x, io::Network& network, model::Request& request);

}  // namespace nereid::gateway
