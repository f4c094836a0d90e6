#include "io/tls_context.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "io/disk.h"

namespace nereid::io {

std::string openssl_reason() {
    const unsigned long code = ERR_peek_last_error();
    const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
    ERR_clear_error();
    return reason != nullptr ? reason : "unknown error";
}

namespace {

using Context = TlsServer::Context;
template <class T, void (*kFree)(T*)>
struct Freed {
    void operator()(T* p) const { kFree(p); }
};
using X509Ptr = std::unique_ptr<X509, Freed<X509, X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
struct BioFree {
    void operator()(BIO* b) const { BIO_free(b); }
};
using BioPtr = std::unique_ptr<BIO, BioFree>;

constexpr std::size_t kMaxPemBytes = 1 << 20;
constexpr std::string_view kAlpn = "\x08http/1.1";  // RFC 7301: length, name

Error config_error(std::string_view what, const std::string& file, std::string_view problem) {
    return {Code::kConfig, fmt::format("{} {}: {}", what, file, problem)};
}

Result<std::string> read_pem(std::string_view what, const std::string& file) {
    auto text = read_file(file, kMaxPemBytes);
    if (!text.ok()) {
        return Error{Code::kConfig, fmt::format("{}: {}; give the path of a readable PEM file",
                                                what, text.error().message)};
    }
    return text;
}

BioPtr memory_bio(const std::string& text) {
    return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::int64_t unix_seconds(const ASN1_TIME* time) {
    std::tm tm{};
    ASN1_TIME_to_tm(time, &tm);
    return timegm(&tm);
}

Result<void> check_validity(const X509* cert, const std::string& file, WallTime now) {
    const auto after = unix_seconds(X509_get0_notAfter(cert));
    if (after < now.seconds()) {
        return config_error(
            "TLS certificate", file,
            fmt::format("expired {} days ago: renew it", (now.seconds() - after) / 86'400));
    }
    if (unix_seconds(X509_get0_notBefore(cert)) > now.seconds()) {
        return config_error("TLS certificate", file,
                            "is not valid yet: check this machine's clock");
    }
    return {};
}

// The server's certificate and the chain behind it.
Result<void> use_certificates(Context& c, const std::string& file, WallTime now, X509Ptr& server) {
    TRY(const auto text, read_pem("TLS certificate", file));
    const auto bio = memory_bio(text);
    server.reset(PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr));
    if (!server) {
        ERR_clear_error();
        return config_error(
            "TLS certificate", file,
            "holds no PEM certificate (-----BEGIN CERTIFICATE-----): is it the key, or DER?");
    }
    TRY_VOID(check_validity(server.get(), file, now));
    if (SSL_CTX_use_certificate(c.ctx, server.get()) != 1) {
        return config_error("TLS certificate", file, openssl_reason());
    }
    while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))
        SSL_CTX_add0_chain_cert(c.ctx, next);
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
        return config_error("TLS certificate", file,
                            "a certificate of the chain is damaged: " + openssl_reason());
    }
    ERR_clear_error();
    c.expires = {std::chrono::seconds(unix_seconds(X509_get0_notAfter(server.get())))};
    return {};
}

// OpenSSL would ask on the terminal.
int note_password_wanted(char*, int, int, void* wanted) {
    *static_cast<bool*>(wanted) = true;
    return -1;
}

Result<void> use_key(Context& c, const std::string& file, const std::string& certificate_file,
                     const X509* server) {
    TRY(const auto text, read_pem("TLS key", file));
    const auto bio = memory_bio(text);
    bool encrypted = false;
    const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, note_password_wanted, &encrypted));
    if (!key) {
        ERR_clear_error();
        return config_error(
            "TLS key", file,
            encrypted
                ? "is encrypted: write it without a passphrase (`openssl pkey -in FILE -out NEW`)"
                : "holds no PEM private key (-----BEGIN PRIVATE KEY-----)");
    }
    if (X509_check_private_key(server, key.get()) != 1) {
        ERR_clear_error();
        return config_error(
            "TLS key", file,
            fmt::format(
                "does not belong to the certificate {}: give the pair that was issued together",
                certificate_file));
    }
    if (SSL_CTX_use_PrivateKey(c.ctx, key.get()) != 1)
        return config_error("TLS key", file, openssl_reason());
    return {};
}

int choose_alpn(SSL*, const unsigned char** out, unsigned char* out_size,
                const unsigned char* offered, unsigned int size, void*) {
    const auto* ours = reinterpret_cast<const unsigned char*>(kAlpn.data());
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, out_size, ours, kAlpn.size(), offered, size) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

std::shared_ptr<Context> new_context(const SSL_METHOD* method) {
    auto c = std::make_shared<Context>();
    c->ctx = SSL_CTX_new(method);
    CHECK(c->ctx != nullptr);
    SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(c->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    // A record may be tried again from another buffer; idle connections give their 34 KiB back.
    SSL_CTX_set_mode(c->ctx, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    return c;
}

Result<std::shared_ptr<Context>> load(const TlsServerOptions& options, WallTime now) {
    auto c = new_context(TLS_server_method());
    X509Ptr server;
    TRY_VOID(use_certificates(*c, options.certificate_file, now, server));
    TRY_VOID(use_key(*c, options.key_file, options.certificate_file, server.get()));
    SSL_CTX_set_alpn_select_cb(c->ctx, choose_alpn, nullptr);
    return c;
}

class TlsListener final : public Listener {
  public:
    TlsListener(TlsServer& server, Loop& loop, std::unique_ptr<Listener> inner)
        : server_(server), loop_(loop), inner_(std::move(inner)) {}
    Task<Result<std::unique_ptr<Stream>>> accept() override {
        TlsServer& server = server_;  // the listener may go while we wait
        Loop& loop = loop_;
        auto stream = co_await inner_->accept();
        if (!stream.ok()) co_return stream;
        co_return server.wrap(loop, std::move(*stream));
    }
    Endpoint local() const override { return inner_->local(); }
    void close() override { inner_->close(); }

  private:
    TlsServer& server_;
    Loop& loop_;
    std::unique_ptr<Listener> inner_;
};

bool is_address(const std::string& name) {
    std::array<char, sizeof(in6_addr)> out{};
    return inet_pton(AF_INET, name.c_str(), out.data()) == 1 ||
           inet_pton(AF_INET6, name.c_str(), out.data()) == 1;
}

}  // namespace

TlsServer::TlsServer(TlsServerOptions options) : options_(std::move(options)) {}
TlsServer::~TlsServer() = default;

Result<std::unique_ptr<TlsServer>> TlsServer::create(TlsServerOptions options, WallTime now) {
    std::unique_ptr<TlsServer> server(new TlsServer(std::move(options)));
    TRY_VOID(server->reload(now));
    return server;
}

Result<void> TlsServer::reload(WallTime now) {
    TRY(auto fresh, load(options_, now));
    const std::lock_guard lock(mutex_);
    context_ = std::move(fresh);
    return {};
}

WallTime TlsServer::expires() const {
    const std::lock_guard lock(mutex_);
    return context_->expires;
}

std::unique_ptr<Listener> TlsServer::wrap(Loop& loop, std::unique_ptr<Listener> inner) {
    return std::make_unique<TlsListener>(*this, loop, std::move(inner));
}

std::unique_ptr<Stream> TlsServer::wrap(Loop& loop, std::unique_ptr<Stream> inner) {
    std::shared_ptr<Context> context;
    {
        const std::lock_guard lock(mutex_);
        context = context_;
    }
    SSL* ssl = SSL_new(context->ctx);
    CHECK(ssl != nullptr);
    SSL_set_accept_state(ssl);
    return make_tls_stream(loop, std::move(inner), ssl, std::move(context),
                           options_.handshake_timeout);
}

TlsClient::TlsClient(TlsClientOptions options)
    : options_(std::move(options)), context_(new_context(TLS_client_method())) {}
TlsClient::~TlsClient() = default;

Result<std::unique_ptr<TlsClient>> TlsClient::create(TlsClientOptions options) {
    std::unique_ptr<TlsClient> client(new TlsClient(std::move(options)));
    SSL_CTX* ctx = client->context_->ctx;
    const std::string& file = client->options_.ca_file;
    if (file.empty()) {
        SSL_CTX_set_default_verify_paths(ctx);
    } else {
        TRY_VOID(read_pem("TLS CA file", file));
        if (SSL_CTX_load_verify_file(ctx, file.c_str()) != 1) {
            ERR_clear_error();
            return config_error("TLS CA file", file,
                                "holds no PEM certificate (-----BEGIN CERTIFICATE-----)");
        }
    }
    SSL_CTX_set_verify(ctx, client->options_.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
    return client;
}

std::unique_ptr<Stream> TlsClient::wrap(Loop& loop, std::unique_ptr<Stream> inner,
                                        const std::string& server_name) {
    SSL* ssl = SSL_new(context_->ctx);
    CHECK(ssl != nullptr);
    SSL_set_connect_state(ssl);
    if (is_address(server_name)) {
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), server_name.c_str());
    } else {
        SSL_set_tlsext_host_name(ssl, server_name.c_str());
        SSL_set1_host(ssl, server_name.c_str());
    }
    SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(kAlpn.data()), kAlpn.size());
    return make_tls_stream(loop, std::move(inner), ssl, context_, options_.handshake_timeout);
}

Task<Result<std::unique_ptr<Stream>>> TlsNetwork::connect(const Endpoint& to, TimePoint deadline) {
    Loop& loop = loop_;
    TlsClient& client = client_;
    const std::string host = to.host;
    CO_TRY(auto inner, co_await inner_.connect(to, deadline));
    co_return client.wrap(loop, std::move(inner), host);
}

}  // namespace nereid::io
