// What tls_context.cc (files, certificates) and tls_stream.cc (bytes) share. Internal to io.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "io/tls.h"

namespace nereid::io {

struct TlsServer::Context {
    SSL_CTX* ctx = nullptr;
    WallTime expires{};

    Context() = default;
    ~Context() { SSL_CTX_free(ctx); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
};

// The last reason in OpenSSL's error queue of this thread, which is emptied; "unknown error" when
// there is none.
std::string openssl_reason();

// `ssl` is owned from here on and in server or client state.
std::unique_ptr<Stream> make_tls_stream(Loop& loop, std::unique_ptr<Stream> inner, SSL* ssl,
                                        std::shared_ptr<TlsServer::Context> context,
                                        Duration handshake_timeout);

}  // namespace nereid::io
