// TLS 1.2 and 1.3 over any Stream (OpenSSL 3, memory BIOs), so also in the simulator.
//
// The handshake happens inside the first read() or write(): a listener hands out a connection at
// once and a slow client holds up nobody; it must be done within `handshake_timeout` of the
// connection's start, whatever the operation's own deadline. After an error other than a read's
// kDeadlineExceeded the stream is dead. The peer's closing without close_notify is kIo, not an end:
// a cut cannot be told from an attack. shutdown_write() sends close_notify. close() sends it when
// that needs no waiting. wait_hangup() is the inner stream's. Thread rules are the inner stream's;
// TlsServer and TlsClient may be shared by loops.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "io/stream.h"

namespace nereid::io {

struct TlsServerOptions {
    std::string certificate_file;  // PEM: the server's certificate, then intermediates
    std::string key_file;          // PEM, not encrypted
    Duration handshake_timeout = 10s;
};

class TlsServer {
  public:
    // Reads both files. kConfig, with the file and the mend: missing, unreadable, not PEM,
    // encrypted key, key of another certificate, expired or not yet valid at `now`.
    static Result<std::unique_ptr<TlsServer>> create(TlsServerOptions options, WallTime now);
    ~TlsServer();

    // Reads the files again. New connections use what was read; running ones go on. On an error (as
    // create) what there was stays. Blocks for the two files. Any thread.
    Result<void> reload(WallTime now);
    // End of validity of the certificate in use, for a gauge and an alert.
    WallTime expires() const;

    // Streams of this listener speak TLS. The server must outlive the listener, not the streams.
    std::unique_ptr<Listener> wrap(Loop& loop, std::unique_ptr<Listener> inner);
    std::unique_ptr<Stream> wrap(Loop& loop, std::unique_ptr<Stream> inner);

    struct Context;

  private:
    explicit TlsServer(TlsServerOptions options);
    TlsServerOptions options_;
    mutable std::mutex mutex_;
    std::shared_ptr<Context>
        context_;  // guarded by mutex_; connections hold the one they began with
};

struct TlsClientOptions {
    std::string ca_file;  // empty = the system's
    bool verify = true;   // false: any certificate (tests, and a loud flag)
    Duration handshake_timeout = 10s;
};

class TlsClient {
  public:
    // kConfig: the CA file is missing or holds no certificate.
    static Result<std::unique_ptr<TlsClient>> create(TlsClientOptions options);
    ~TlsClient();
    // `server_name` is sent (SNI, unless it is an address) and must be in the certificate.
    std::unique_ptr<Stream> wrap(Loop& loop, std::unique_ptr<Stream> inner,
                                 const std::string& server_name);

  private:
    explicit TlsClient(TlsClientOptions options);
    TlsClientOptions options_;
    std::shared_ptr<TlsServer::Context> context_;
};

// A Network whose connect() speaks TLS to Endpoint::host. listen() is the inner one's, without TLS.
class TlsNetwork final : public Network {
  public:
    TlsNetwork(Loop& loop, Network& inner, TlsClient& client)
        : loop_(loop), inner_(inner), client_(client) {}
    Task<Result<std::unique_ptr<Stream>>> connect(const Endpoint& to, TimePoint deadline) override;
    Result<std::unique_ptr<Listener>> listen(const Endpoint& at, bool reuse_port = false) override {
        return inner_.listen(at, reuse_port);
    }

  private:
    Loop& loop_;
    Network& inner_;
    TlsClient& client_;
};

}  // namespace nereid::io
